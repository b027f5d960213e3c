//! errno, as the functions of this library set it.

use libc::{c_int, c_long};

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// The thread's.
pub(crate) fn errno() -> c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() }
}

/// The result of a C library function, for that of a system call: minus the error number if it
/// failed.
pub(crate) fn returned(result: isize) -> isize {
    match result {
        error @ -4095..=-1 => {
            set_errno(-error as c_int);
            -1
        }
        done => done,
    }
}

/// Makes a system call by the C library; returns minus the error number if it fails.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call_by_library(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: as the caller says.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => -(errno() as isize),
        done => done as isize,
    }
}
