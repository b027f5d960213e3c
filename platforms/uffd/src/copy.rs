//! Copies a page of the program, which may vanish meanwhile.
//!
//! A program can drop a page by a system call that the manager does not see. Where faults are
//! served by SIGBUS, loading from that page raises the signal in a thread that holds the page's
//! entry, so that the fault could not be served. So the signal's handler ends the copy
//! ([`end_copy`]), as the kernel does with its exception table.

use highwater_units::PAGE_SIZE;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".hidden highwater_copy_page",
    ".globl highwater_copy_page",
    ".type highwater_copy_page, @function",
    "highwater_copy_page:",
    "mov rcx, rdx",
    "rep movsb",
    ".hidden highwater_copy_page_end",
    ".globl highwater_copy_page_end",
    "highwater_copy_page_end:",
    "mov rax, rcx",
    "ret",
    ".size highwater_copy_page, . - highwater_copy_page",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Returns how many bytes were not copied.
    fn highwater_copy_page(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn highwater_copy_page_end();
}

/// Length of `rep movsb`.
#[cfg(target_arch = "x86_64")]
const INSTRUCTION_LEN: usize = 2;

/// Copies a page; `false` if the source vanished.
///
/// # Safety
/// `to` has room for a page. `from` is a page of a space, or of readable memory.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_page(to: *mut u8, from: *const u8) -> bool {
    // SAFETY: by contract of this function.
    unsafe { highwater_copy_page(to, from, PAGE_SIZE) == 0 }
}

/// Copies a page.
///
/// # Safety
/// `to` has room for a page. `from` is a page of readable memory.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_page(to: *mut u8, from: *const u8) -> bool {
    // SAFETY: by contract of this function.
    unsafe { to.copy_from_nonoverlapping(from, PAGE_SIZE) };
    true
}

/// The address at which a thread continues after SIGBUS at `instruction`; `None`: the thread was
/// not copying.
#[cfg(target_arch = "x86_64")]
pub fn end_copy(instruction: usize) -> Option<usize> {
    let end = highwater_copy_page_end as *const () as usize;
    (instruction == end - INSTRUCTION_LEN).then_some(end)
}
