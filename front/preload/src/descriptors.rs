//! Keeps the program from closing the one descriptor that its memory depends on: the channel to
//! the helper, which forked children get theirs through.
//!
//! Programs that close everything they did not open (daemons, shells) would close ours too. So
//! close, close_range, closefrom, dup2 and dup3 pass it over, as if it were not open. A program
//! that closes it past the C library goes on, but its forked children cannot be served.

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, Ordering::*};

const NONE: libc::c_int = -1;

static GUARDED: AtomicI32 = AtomicI32::new(NONE);

/// Descriptors are moved here or above: shells and daemons use and close the low ones.
const LEAST: RawFd = 900;

/// Moves a descriptor to a high number; where the limit on descriptors allows none, it stays, but
/// off the standard streams.
pub(crate) fn raise(fd: OwnedFd) -> OwnedFd {
    off_streams(move_above(fd, LEAST))
}

/// Moves a descriptor that has the number of a standard stream: the program has closed that.
pub(crate) fn off_streams(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() < 3 { move_above(fd, 3) } else { fd }
}

fn move_above(fd: OwnedFd, least: RawFd) -> OwnedFd {
    // SAFETY: duplicates a descriptor of ours to a new number.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) } {
        ..0 => fd,
        // SAFETY: just made, and nobody else's.
        moved => unsafe { OwnedFd::from_raw_fd(moved) },
    }
}

/// Calls `act`; if the program has no descriptor left, once more under the highest limit that it
/// may have.
pub(crate) fn with_room<R>(act: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
    let done = act();
    if !matches!(done, Err(Errno::MFILE)) {
        return done;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let done = act();
    setrlimit(Resource::Nofile, limit)?;
    done
}

/// Guards a descriptor from now on, and no other.
pub(crate) fn guard(descriptor: RawFd) {
    GUARDED.store(descriptor, Release);
}

/// The guarded descriptor.
pub(crate) fn guarded() -> Option<RawFd> {
    Some(GUARDED.load(Acquire)).filter(|descriptor| *descriptor != NONE)
}

/// Closes the guarded descriptor.
pub(crate) fn close_guarded() {
    let descriptor = GUARDED.swap(NONE, AcqRel);
    if descriptor != NONE {
        close_raw(descriptor);
    }
}

/// Closes a descriptor of ours.
pub(crate) fn close_raw(descriptor: RawFd) {
    // SAFETY: a descriptor that nobody uses any more.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

fn is_ours(descriptor: libc::c_int) -> bool {
    descriptor != NONE && GUARDED.load(Acquire) == descriptor
}

fn fail(errno: libc::c_int) -> libc::c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn close(descriptor: libc::c_int) -> libc::c_int {
    if is_ours(descriptor) {
        return fail(libc::EBADF);
    }
    // SAFETY: the program's descriptor, at its request.
    unsafe { libc::syscall(libc::SYS_close, descriptor) as libc::c_int }
}

/// close_range(2), in pieces around ours.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn close_range(
    first: libc::c_uint,
    last: libc::c_uint,
    flags: libc::c_int,
) -> libc::c_int {
    let ours = guarded().map(|fd| fd as libc::c_uint);
    let Some(ours) = ours.filter(|ours| (first..=last).contains(ours)) else {
        return close_piece(first, last, flags);
    };
    let before = if first < ours { close_piece(first, ours - 1, flags) } else { 0 };
    let after = if ours < last { close_piece(ours + 1, last, flags) } else { 0 };
    before.min(after)
}

fn close_piece(first: libc::c_uint, last: libc::c_uint, flags: libc::c_int) -> libc::c_int {
    // SAFETY: descriptors of the program, at its request.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as libc::c_int }
}

/// closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn closefrom(first: libc::c_int) {
    close_range(first.max(0) as libc::c_uint, libc::c_uint::MAX, 0);
}

/// dup2(2), by the call that every processor has: it differs where both are the same.
#[cfg_attr(not(test), unsafe(no_mangle))]
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
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn dup3(from: libc::c_int, to: libc::c_int, flags: libc::c_int) -> libc::c_int {
    if is_ours(to) {
        return fail(libc::EBUSY);
    }
    // SAFETY: descriptors of the program, at its request.
    unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) as libc::c_int }
}
