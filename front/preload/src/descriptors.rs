//! Keeps the program from closing descriptors that its memory depends on.
//!
//! Programs that close everything they did not open (daemons, shells) would close ours too; missing
//! pages would then read as zeros, or swapped pages be written into a file that got the number.
//! So close, close_range, closefrom, dup2 and dup3 pass ours over, as if they were not open.

use crate::process;
use std::sync::atomic::{AtomicI32, Ordering::*};

/// Highest number that close_range asks about; ours are lower (see devices and platforms/uffd).
const HIGHEST: libc::c_uint = 1 << 14;

const NONE: libc::c_int = -1;

/// The descriptors of the platform, and one for each generation of ancestors.
static GUARDED: [AtomicI32; 264] = [const { AtomicI32::new(NONE) }; 264];

/// Guards these descriptors from now on, and no others.
pub(crate) fn guard(descriptors: impl Iterator<Item = libc::c_int>) {
    let all = descriptors.chain(std::iter::repeat(NONE));
    GUARDED.iter().zip(all).for_each(|(place, descriptor)| place.store(descriptor, Release));
}

/// The guarded descriptors of the platform.
pub(crate) fn guarded() -> impl Iterator<Item = libc::c_int> {
    GUARDED.iter().map(|place| place.load(Acquire)).take_while(|descriptor| *descriptor != NONE)
}

fn is_ours(descriptor: libc::c_int) -> bool {
    guarded().any(|ours| ours == descriptor)
        || process::running().is_some_and(|process| process.owns_descriptor(descriptor))
}

fn fail(errno: libc::c_int) -> libc::c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// close(2).
#[unsafe(no_mangle)]
extern "C" fn close(descriptor: libc::c_int) -> libc::c_int {
    match is_ours(descriptor) {
        true => fail(libc::EBADF),
        // SAFETY: the program's descriptor, at its request.
        false => unsafe { libc::syscall(libc::SYS_close, descriptor) as libc::c_int },
    }
}

/// close_range(2), in pieces between ours.
#[unsafe(no_mangle)]
extern "C" fn close_range(
    first: libc::c_uint,
    last: libc::c_uint,
    flags: libc::c_int,
) -> libc::c_int {
    let is_kept = |descriptor: &libc::c_uint| is_ours(*descriptor as libc::c_int);
    let mut ours: Vec<libc::c_uint> = (first..=last.min(HIGHEST)).filter(is_kept).collect();
    ours.push(libc::c_uint::MAX);
    let mut from = first;
    for stop in ours {
        let to = last.min(stop.saturating_sub(1));
        if from <= to {
            // SAFETY: descriptors of the program, at its request.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, from, to, flags) };
            if closed != 0 {
                return -1;
            }
        }
        from = stop.saturating_add(1);
    }
    0
}

/// closefrom(3).
#[unsafe(no_mangle)]
extern "C" fn closefrom(first: libc::c_int) {
    close_range(first.max(0) as libc::c_uint, libc::c_uint::MAX, 0);
}

/// dup2(2), by the call that every processor has: it differs where both are the same.
#[unsafe(no_mangle)]
extern "C" fn dup2(from: libc::c_int, to: libc::c_int) -> libc::c_int {
    if from != to || is_ours(to) {
        return dup3(from, to, 0);
    }
    // SAFETY: asks about a number; errno is that of dup2.
    match unsafe { libc::fcntl(from, libc::F_GETFD) } {
        -1 => -1,
        _ => to,
    }
}

/// dup3(2).
#[unsafe(no_mangle)]
extern "C" fn dup3(from: libc::c_int, to: libc::c_int, flags: libc::c_int) -> libc::c_int {
    match is_ours(to) {
        true => fail(libc::EBUSY),
        // SAFETY: descriptors of the program, at its request.
        false => unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) as libc::c_int },
    }
}
