//! Calls that change mappings, by number: Firefox's malloc makes them by syscall(2), and so do
//! programs that define mmap themselves, as with tcmalloc.

use crate::mapping::{map_memory, unmap_memory};
use crate::protect::protect_memory;
use crate::remap::remap_memory;
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
            libc::SYS_mmap => {
                map_memory(address, a, b as c_int, c as c_int, d as c_int, offset) as isize
            }
            libc::SYS_munmap => unmap_memory(address, a) as isize,
            libc::SYS_mprotect => protect_memory(address, a, b as c_int) as isize,
            _ => remap_memory(address, a, b, c as c_int, d as *mut c_void) as isize,
        }
    }
}
