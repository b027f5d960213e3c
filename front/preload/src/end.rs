//! Messages on the program's standard error, and the end of a program that cannot continue.

use crate::program;
use highwater_os::helper;
use highwater_os::helper::Program;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Writes one line and ends the process with status 2: Highwater cannot serve it. In the helper it
/// kills the program.
pub(crate) fn end(message: &str) -> ! {
    say(message);
    if helper::is_inside() {
        kill_program();
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, 2) };
    }
}

/// Writes one line and ends the process by SIGABRT, after an error of the program's own, as the C
/// library does: a handler that the program has set runs first. Not in the helper, which runs no
/// code of the program's.
pub(crate) fn abort(message: &str) -> ! {
    say(message);
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// Kills the program and this helper with it.
pub(crate) fn kill_program() -> ! {
    if let Some(program) = program::program() {
        program.kill();
    }
    loop {
        // The helper's first thread sees the program end, and ends the helper.
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Writes a line to the program's standard error.
pub(crate) fn say(message: &str) {
    let line = format!("highwater: {message}\n");
    let copy = match program::program() {
        Some(program) if helper::is_inside() => stream_of(program),
        Some(_) | None => None,
    };
    // SAFETY: the kernel refuses a number that is not open.
    let own = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let stream = copy.as_ref().map_or(own, AsFd::as_fd);
    // There is nowhere to report a failed write.
    let _ = rustix::io::write(stream, line.as_bytes());
}

/// The program's standard error, which is not in the helper's table.
fn stream_of(program: Program) -> Option<OwnedFd> {
    // SAFETY: open as long as this process lives.
    let pidfd = unsafe { BorrowedFd::borrow_raw(program.pidfd) };
    pidfd_getfd(pidfd, libc::STDERR_FILENO, PidfdGetfdFlags::empty()).ok().or_else(|| {
        let path = format!("/proc/{}/fd/{}", program.in_proc, libc::STDERR_FILENO);
        std::fs::OpenOptions::new().append(true).open(path).ok().map(OwnedFd::from)
    })
}
