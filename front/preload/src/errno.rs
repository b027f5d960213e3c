//! errno, as the functions of this library set it.

use libc::c_int;

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
