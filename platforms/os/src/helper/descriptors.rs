//! Descriptors of the helper: their numbers, and copies from other processes.
//!
//! close(2) is a raw system call, because the preload library replaces the C library's function.

use libc::c_long;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};

/// Copies a descriptor of another process into this one.
///
/// # Errors
/// The system's error: this process may not trace the other, or the other has ended.
pub fn descriptor_of(process: i32, descriptor: RawFd) -> io::Result<RawFd> {
    let pidfd = pidfd_open(process);
    // SAFETY: requests a new descriptor.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, descriptor, 0) };
    let got = if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as RawFd) };
    // SAFETY: opened above.
    unsafe { rustix::io::close(pidfd) };
    got
}

/// Device and inode of a file; `None`: the number is not open.
pub fn identity_of(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    fstat(file).ok().map(|found| (found.st_dev, found.st_ino))
}

/// Moves a descriptor to a number of at least `above`. If none is free, it stays.
pub fn lift(descriptor: RawFd, above: RawFd) -> RawFd {
    // SAFETY: duplicates a descriptor of the helper.
    match unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, above) } {
        ..0 => descriptor,
        lifted => {
            // SAFETY: the old number, which nothing uses any more.
            unsafe { rustix::io::close(descriptor) };
            lifted
        }
    }
}

/// Changes the numbers of descriptors, each from (here) to (there), its number in another process.
///
/// # Errors
/// The limit on descriptors is reached.
pub fn renumber(descriptors: &[(RawFd, RawFd)]) -> io::Result<()> {
    let above = descriptors.iter().map(|(here, there)| *here.max(there)).max().unwrap_or(0) + 1;
    let check = |result: i32| match result {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd),
    };
    let close = |fd: RawFd| {
        // SAFETY: a descriptor of the helper.
        unsafe { rustix::io::close(fd) };
    };
    let mut aside = Vec::new();
    for (here, there) in descriptors {
        // SAFETY: duplicates a descriptor of the helper.
        let moved = unsafe { libc::fcntl(*here, libc::F_DUPFD_CLOEXEC, above) };
        aside.push((check(moved)?, *there));
        close(*here);
    }
    for (aside, there) in aside {
        // SAFETY: duplicates a descriptor of the helper to an unused number.
        let moved = unsafe { libc::syscall(libc::SYS_dup3, aside, there, libc::O_CLOEXEC) };
        check(moved as i32)?;
        close(aside);
    }
    Ok(())
}

/// Opens a pidfd, with a number above the standard streams. -1 on error, as before Linux 5.3.
pub(super) fn pidfd_open(pid: i32) -> RawFd {
    // SAFETY: requests a new descriptor.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd };
    if (0..3).contains(&opened) { lift(opened, 3) } else { opened }
}

/// The number under which /proc shows the process of a pidfd. /proc may be mounted for another PID
/// namespace, where the process's own number belongs to another process. 0: /proc does not show the
/// process. Does not allocate.
pub fn number_in_proc(pidfd: RawFd) -> i32 {
    let (mut path, mut about) = ([0; 48], [0; 512]);
    if write!(&mut path[..], "/proc/self/fdinfo/{pidfd}\0").is_err() {
        return 0;
    }
    let path = CStr::from_bytes_until_nul(&path).expect("written above");
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let len = file.and_then(|file| rustix::io::read(&file, &mut about[..])).unwrap_or(0);
    number_in(&about[..len])
}

/// The number in a text like that of /proc/self/fdinfo/PIDFD.
fn number_in(about: &[u8]) -> i32 {
    let line = about.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Pid:"));
    let text = line.and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    // -1: the process has ended.
    text.trim().parse().unwrap_or(0).max(0)
}

/// Closes all descriptors except `keep`, and opens the standard streams on /dev/null: a stray write
/// to them must not reach a file that was given the same number.
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
        // The file gets the lowest free number, which is `stream`.
        let opened = open(c"/dev/null", OFlags::RDWR, Mode::empty()).map(IntoRawFd::into_raw_fd);
        debug_assert!(opened.is_err() || opened == Ok(stream));
    }
}

/// The least limit on descriptors that a helper needs.
const LIMIT: u64 = 4096;

/// Raises the limit on descriptors, which is inherited from the program, to [`LIMIT`], or to the
/// hard limit if the privilege for more is missing.
pub(super) fn raise_limit() {
    let now = getrlimit(Resource::Nofile);
    let raise = |maximum: Option<u64>| {
        let current = Some(maximum.map_or(LIMIT, |most| most.min(LIMIT)));
        setrlimit(Resource::Nofile, Rlimit { current, maximum })
    };
    let is_low = now.current.is_some_and(|limit| limit < LIMIT);
    if is_low && raise(now.maximum.map(|most| most.max(LIMIT))).is_err() {
        // If that fails, too, the limit stays.
        let _ = raise(now.maximum);
    }
}

fn close_range(first: c_long, last: c_long) {
    // SAFETY: descriptors of the helper's own table.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed == 0 {
        return;
    }
    // Kernels before 5.9 have no close_range.
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    for fd in first..=last.min(limit.min(1 << 20) as c_long) {
        // SAFETY: as above.
        unsafe { rustix::io::close(fd as RawFd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_proc_is_that_of_the_file_system() {
        let own = std::process::id().cast_signed();
        let pidfd = pidfd_open(own);
        assert_eq!(number_in_proc(pidfd), own);
        // SAFETY: opened above.
        unsafe { rustix::io::close(pidfd) };
        assert_eq!(number_in_proc(pidfd), 0, "closed");
        let [inner, ended, other] = ["Pid:\t71\nNSpid:\t71\t2\n", "Pid:\t-1\n", "pos:\t0\n"]
            .map(|lines| number_in(format!("flags:\t02\n{lines}").as_bytes()));
        assert_eq!((inner, ended, other), (71, 0, 0));
    }
}
