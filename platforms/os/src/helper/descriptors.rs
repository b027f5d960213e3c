//! Descriptors of the helper: their numbers, and those of other processes.
//!
//! close(2) is made raw: the preload library replaces the C library's.

use libc::c_long;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{IntoRawFd, RawFd};

/// A descriptor of another process, as one of this one's.
///
/// # Errors
/// The system's: the other may not be traced, or is gone.
pub fn descriptor_of(process: i32, descriptor: RawFd) -> io::Result<RawFd> {
    let pidfd = pidfd_open(process);
    // SAFETY: asks for a new descriptor.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, descriptor, 0) };
    let got = if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as RawFd) };
    // SAFETY: opened above.
    unsafe { rustix::io::close(pidfd) };
    got
}

/// Moves a descriptor of the helper's to a number of at least `above`; where there is none it
/// stays.
pub fn lift(descriptor: RawFd, above: RawFd) -> RawFd {
    // SAFETY: duplicates a descriptor of the helper's.
    match unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, above) } {
        ..0 => descriptor,
        lifted => {
            // SAFETY: the first of two, which nobody uses any more.
            unsafe { rustix::io::close(descriptor) };
            lifted
        }
    }
}

/// Gives descriptors the numbers that they have in another process: (here, there) of each.
///
/// # Errors
/// The limit on descriptors.
pub fn renumber(descriptors: &[(RawFd, RawFd)]) -> io::Result<()> {
    let above = descriptors.iter().map(|(here, there)| *here.max(there)).max().unwrap_or(0) + 1;
    let check = |result: i32| match result {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd),
    };
    let close = |fd: RawFd| {
        // SAFETY: a descriptor of the helper's.
        unsafe { rustix::io::close(fd) };
    };
    let mut aside = Vec::new();
    for (here, there) in descriptors {
        // SAFETY: duplicates a descriptor of the helper's.
        let moved = unsafe { libc::fcntl(*here, libc::F_DUPFD_CLOEXEC, above) };
        aside.push((check(moved)?, *there));
        close(*here);
    }
    for (aside, there) in aside {
        // SAFETY: likewise, to a number that nothing has here.
        let moved = unsafe { libc::syscall(libc::SYS_dup3, aside, there, libc::O_CLOEXEC) };
        check(moved as i32)?;
        close(aside);
    }
    Ok(())
}

/// A descriptor of a process, none of the standard streams; -1 where the kernel (before Linux 5.3)
/// has none.
pub(super) fn pidfd_open(pid: i32) -> RawFd {
    // SAFETY: asks for a new descriptor.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd };
    if (0..3).contains(&opened) { lift(opened, 3) } else { opened }
}

/// Closes all descriptors but some, and opens the standard streams on /dev/null: what is written
/// to them by mistake must not reach a file that got the number.
pub(super) fn close_others(keep: &[RawFd]) {
    let mut kept: Vec<RawFd> = keep.iter().copied().filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut from: c_long = 0;
    for fd in kept.into_iter().map(c_long::from).chain([c_long::from(u32::MAX)]) {
        if from < fd {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    for stream in 0..3 {
        // The lowest free number, which is `stream`.
        let opened = open(c"/dev/null", OFlags::RDWR, Mode::empty()).map(IntoRawFd::into_raw_fd);
        debug_assert!(opened.is_err() || opened == Ok(stream));
    }
}

fn close_range(first: c_long, last: c_long) {
    // SAFETY: descriptors of a table that only the helper has.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed == 0 {
        return;
    }
    // Before Linux 5.9.
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    for fd in first..=last.min(limit.min(1 << 20) as c_long) {
        // SAFETY: as above.
        unsafe { rustix::io::close(fd as RawFd) };
    }
}
