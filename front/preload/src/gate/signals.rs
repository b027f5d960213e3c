//! C library functions that set signal masks and actions: the gate's signals stay unblocked, and
//! keep the gate's actions.

use super::actions::{self, ActionFn, SIGACTION};
use super::kept::{Kept, is_signal, keep, kept};
use super::mask;
use super::range::is_paged;
use super::state::{is_on, is_wanted};
use crate::errno::set_errno;
use crate::next::{Next, looks};
use libc::{c_int, sigset_t};
use std::mem::transmute;
use std::ptr::{null, null_mut};

/// Looks the next functions up when the library is loaded.
pub(super) fn learn() {
    learn_masks();
    learn_contexts();
    learn_handlers();
    for next in [&SIGACTION, &PTHREAD_SIGMASK, &SIGPROCMASK] {
        next.learn();
    }
}

/// sigblock(3) and sigsetmask(3): a mask of 32 bits.
macro_rules! masks {
    ($($name:ident)*) => {
        fn learn_masks() {
            $($name::NEXT.learn();)*
        }

        $(pub(super) mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            /// # Safety
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name(mask: u32) -> u32 {
                let given = if is_wanted() { mask::without(mask.into()) as u32 } else { mask };
                // SAFETY: the function of that name has this type.
                unsafe { transmute::<usize, extern "C" fn(u32) -> u32>(NEXT.get())(given) }
            }
        })*
    };
}

masks! { sigblock sigsetmask }

/// setcontext(3) and swapcontext(3): the mask of a context that may have been made before there was
/// a gate, or by hand.
macro_rules! contexts {
    ($($name:ident: $at:literal;)*) => {
        fn learn_contexts() {
            $($name::NEXT.learn();)*
        }

        $(mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            extern "C" fn look(a: *mut libc::ucontext_t, b: *mut libc::ucontext_t) -> usize {
                if is_wanted() {
                    // SAFETY: the program's context.
                    let context = unsafe { &mut *[a, b][$at] };
                    // SAFETY: its mask.
                    unsafe { unblock_in(&mut context.uc_sigmask) };
                    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize];
                    if is_paged(pointer as usize) {
                        actions::expect_coroutines();
                    }
                }
                NEXT.get()
            }

            looks!($name, look);
        })*
    };
}

contexts! {
    setcontext: 0;
    swapcontext: 1;
}

static PTHREAD_SIGMASK: Next = Next::new(b"pthread_sigmask\0");
static SIGPROCMASK: Next = Next::new(b"sigprocmask\0");

/// sigaction(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the function of that name has this type.
    let next = unsafe { transmute::<usize, ActionFn>(SIGACTION.get()) };
    // SAFETY: the caller's structures.
    unsafe {
        if !is_wanted() {
            return next(signal, new, old);
        }
        if is_on() {
            // Not signals that the C library refuses, which are its own.
            if next(signal, null(), null_mut()) != 0 {
                return -1;
            }
            return match actions::replace_by_library(signal, new.as_ref()) {
                Ok(had) => {
                    old.as_mut().into_iter().for_each(|old| *old = had);
                    0
                }
                Err(error) => {
                    set_errno(error);
                    -1
                }
            };
        }
        let Some(new) = new.as_ref() else { return next(signal, new, old) };
        let mut given = *new;
        unblock_in(&mut given.sa_mask);
        next(signal, &given, old)
    }
}

/// Takes the gate's signals out of a mask. The kernel's is the first word of the C library's.
///
/// # Safety
/// `set` is the program's.
unsafe fn unblock_in(set: *mut sigset_t) {
    let set = set.cast::<mask::Mask>();
    // SAFETY: as the caller says.
    unsafe { set.write(mask::without(set.read())) };
}

/// signal(2) and its variants, which differ in the flags that they set.
macro_rules! handlers {
    ($($name:ident: $flags:expr;)*) => {
        fn learn_handlers() {
            $($name::NEXT.learn();)*
        }

        $(mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            /// # Safety
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name(signal: c_int, handler: usize) -> usize {
                let before = is_signal(signal).then(|| kept(signal));
                if let Some(before) = before.filter(|_| is_on() && actions::is_reserved(signal)) {
                    keep(signal, Kept { handler, flags: $flags as u64, mask: 0 });
                    return before.handler;
                }
                // SAFETY: the function of that name has this type.
                let had = unsafe {
                    transmute::<usize, extern "C" fn(c_int, usize) -> usize>(NEXT.get())(
                        signal, handler,
                    )
                };
                actions::adopt(signal);
                before.map_or(had, |before| actions::programs_handler(had, before))
            }
        })*
    };
}

const ONCE: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

handlers! {
    signal: libc::SA_RESTART;
    bsd_signal: libc::SA_RESTART;
    ssignal: libc::SA_RESTART;
    sigset: 0;
    sysv_signal: ONCE;
    __sysv_signal: ONCE;
}

type MaskFn = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// # Safety
/// As for pthread_sigmask(3); `next` is the address of such a function.
unsafe fn set_mask(next: usize, how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        let next = transmute::<usize, MaskFn>(next);
        if !is_wanted() || set.is_null() || how == libc::SIG_UNBLOCK {
            return next(how, set, old);
        }
        let mut given = *set;
        unblock_in(&mut given);
        next(how, &given, old)
    }
}

/// pthread_sigmask(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { set_mask(PTHREAD_SIGMASK.get(), how, set, old) }
}

/// sigprocmask(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: as the caller says.
    unsafe { set_mask(SIGPROCMASK.get(), how, set, old) }
}
