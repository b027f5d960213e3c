//! Functions by which a program gives up rights, or changes its limits and its view of the system.
//! A forked child that may have to be served later (`later.rs`) is served before such a call.

use crate::next::{Next, looks};
use crate::{later, limits, start};
use libc::{c_int, pid_t, rlimit};
use std::ptr;

/// Defines functions that first serve the process, if that was put off.
macro_rules! served_before {
    ($($name:ident)*) => {$(
        mod $name {
            use super::*;

            static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            extern "C" fn look() -> usize {
                later::begin();
                NEXT.get()
            }

            looks!($name, look);
        }
    )*};
}

served_before! {
    setuid seteuid setreuid setresuid
    setgid setegid setregid setresgid
    setgroups initgroups capset
    chroot unshare setns
}

/// setrlimit(2).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn set(resource: c_int, new: *const rlimit) -> c_int {
    // SAFETY: the arguments of the caller of setrlimit.
    unsafe { limits::change(resource, new, ptr::null_mut()) }
}

/// getrlimit(2).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn get(resource: c_int, old: *mut rlimit) -> c_int {
    // SAFETY: the argument of the caller of getrlimit.
    unsafe { limits::change(resource, ptr::null(), old) }
}

/// prlimit(2).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn set_and_get(
    _: pid_t,
    resource: c_int,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the arguments of the caller of prlimit.
    unsafe { limits::change(resource, new, old) }
}

/// Whether this library sets the limit. A process that may have to be served later is served before
/// it limits itself.
fn is_set_here(pid: pid_t, resource: c_int) -> bool {
    later::begin();
    is_own(pid, resource) && start::get().is_some()
}

fn is_own(pid: pid_t, resource: c_int) -> bool {
    let is_own = pid == 0 || pid == std::process::id().cast_signed();
    is_own && limits::counts_range(resource)
}

/// Defines functions: the arguments that are checked, the condition under which a function of this
/// library is called in place of the next one, and that function.
macro_rules! limits {
    ($($name:ident: |$($argument:ident),*| $condition:expr => $ours:ident;)*) => {$(
        mod $name {
            use super::*;

            static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            extern "C" fn look($($argument: c_int),*) -> usize {
                if $condition { $ours as *const () as usize } else { NEXT.get() }
            }

            looks!($name, look);
        }
    )*};
}

limits! {
    setrlimit: |resource| is_set_here(0, resource) => set;
    setrlimit64: |resource| is_set_here(0, resource) => set;
    getrlimit: |resource| is_own(0, resource) => get;
    getrlimit64: |resource| is_own(0, resource) => get;
    prlimit: |pid, resource| is_set_here(pid, resource) => set_and_get;
    prlimit64: |pid, resource| is_set_here(pid, resource) => set_and_get;
}
