//! Calls that change mappings, by number: Firefox's malloc makes them by syscall(2), as do those
//! that define mmap themselves.

use crate::mapping::{mmap, munmap};
use crate::protect::mprotect;
use crate::remap::mremap;
use libc::{c_int, c_long, c_void, off_t};

/// The function for a number that is given to syscall(2), if it changes mappings.
pub(crate) fn function_for(number: c_long) -> Option<usize> {
    match number {
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mremap | libc::SYS_mprotect => {
            Some(change as *const () as usize)
        }
        _ => None,
    }
}

/// syscall(2), for these numbers.
///
/// # Safety
/// As for the system call.
unsafe extern "C" fn change(
    number: c_long,
    address: *mut c_void,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    offset: off_t,
) -> isize {
    // SAFETY: as the caller says.
    unsafe {
        match number {
            libc::SYS_mmap => mmap(address, a, b as c_int, c as c_int, d as c_int, offset) as isize,
            libc::SYS_munmap => munmap(address, a) as isize,
            libc::SYS_mprotect => mprotect(address, a, b as c_int) as isize,
            _ => mremap(address, a, b, c as c_int, d as *mut c_void) as isize,
        }
    }
}
