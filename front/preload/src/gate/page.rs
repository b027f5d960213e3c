//! The instruction whose system calls the filter lets through.
//!
//! The filter knows it by its address, which is the same in all processes of a run, because they
//! inherit the filter.

use super::range::RANGE;
use highwater_units::PAGE_SIZE;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::io;
use std::mem::transmute;

/// Where the page is: before the range.
pub(super) const PAGE: usize = RANGE.start - 16 * PAGE_SIZE;

/// A function in the C calling convention: the number and six arguments to a system call.
const CODE: [u8; 30] = [
    0x48, 0x89, 0xf8, // mov rax, rdi
    0x48, 0x89, 0xf7, // mov rdi, rsi
    0x48, 0x89, 0xd6, // mov rsi, rdx
    0x48, 0x89, 0xca, // mov rdx, rcx
    0x4d, 0x89, 0xc2, // mov r10, r8
    0x4d, 0x89, 0xc8, // mov r8, r9
    0x4c, 0x8b, 0x4c, 0x24, 0x08, // mov r9, [rsp + 8]
    0x0f, 0x05, // syscall
    0xc3, // ret
    0xcc, 0xcc, 0xcc, 0xcc, // int3
];

type Gate = extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;

/// Maps the page.
///
/// # Errors
/// The system's refusal: something else lies there, or executable memory is not permitted.
pub(super) fn map() -> io::Result<()> {
    let at = std::ptr::with_exposed_provenance_mut(PAGE);
    let (access, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: replaces nothing; the code is written before anything calls it.
    unsafe {
        let page = mmap_anonymous(at, PAGE_SIZE, access, flags)?;
        page.cast::<[u8; 30]>().write(CODE);
        Ok(mprotect(page, PAGE_SIZE, MprotectFlags::READ | MprotectFlags::EXEC)?)
    }
}

/// Makes a system call past the filter; returns minus the error number if it fails.
///
/// # Safety
/// As for the system call. The page is mapped.
pub(super) unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the code above has this type.
    let gate = unsafe { transmute::<usize, Gate>(PAGE) };
    let [a, b, c, d, e, f] = arguments;
    gate(number, a, b, c, d, e, f)
}
