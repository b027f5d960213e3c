//! Calls that change mappings, by number: Firefox's malloc makes them by syscall(2), and so do
//! programs that define mmap themselves, as with tcmalloc.

use crate::lock::{self, lock_memory};
use crate::mapping::{self, map_memory, unmap_memory};
use crate::protect::{protect_memory, protect_with_key};
use crate::remap::{self, remap_memory};
use libc::{c_int, c_long, off_t};

/// The function for a number that is given to syscall(2), if it changes mappings.
pub(crate) fn function_for(number: c_long) -> Option<usize> {
    match number {
        libc::SYS_mmap
        | libc::SYS_munmap
        | libc::SYS_mremap
        | libc::SYS_mprotect
        | libc::SYS_pkey_mprotect => Some(change as *const () as usize),
        libc::SYS_mlock | libc::SYS_mlock2 => Some(lock as *const () as usize),
        _ => None,
    }
}

/// syscall(2), for these numbers.
extern "C" fn change(
    number: c_long,
    address: usize,
    len: usize,
    b: usize,
    c: usize,
    d: usize,
    offset: off_t,
) -> isize {
    let [access, flags, fd] = [b, c, d].map(|value| value as c_int);
    match number {
        libc::SYS_mmap => {
            map_memory(mapping::Call { address, len, access, flags, fd, offset }) as isize
        }
        libc::SYS_munmap => unmap_memory(address, len) as isize,
        libc::SYS_mprotect => protect_memory(address, len, access) as isize,
        // Its key is where mmap has flags.
        libc::SYS_pkey_mprotect => protect_with_key(address, len, access, flags) as isize,
        _ => {
            let call = remap::Call { address, old_len: len, len: b, flags, target: d };
            remap_memory(call) as isize
        }
    }
}

/// syscall(2), for mlock and mlock2.
extern "C" fn lock(number: c_long, address: usize, len: usize, flags: usize) -> isize {
    lock_memory(lock::Call { number, flags }, address, len) as isize
}
