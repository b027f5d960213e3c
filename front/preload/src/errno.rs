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
