//! Stacks in memory that is not paged.
//!
//! Code cannot run on a stack while one of its pages is locked, as pages that a fork shares are, or
//! missing, as in a child that is not registered yet.

use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use libc::c_int;
use std::arch::naked_asm;

/// Length of a stack, whose first page is inaccessible.
pub(crate) const LEN: usize = 1 << 20;

/// Memory for a stack. Its pages are taken when they are used.
pub(crate) fn map() -> Option<*mut u8> {
    let base = sys::map_anonymous(LEN).ok()?;
    // SAFETY: the mapping just made.
    let _ = unsafe { sys::protect(base, PAGE_SIZE, libc::PROT_NONE) };
    Some(base)
}

/// Calls a function on a stack of its own. `None`: there is no memory for one.
pub(crate) fn call_apart(act: unsafe extern "C" fn() -> c_int) -> Option<c_int> {
    let base = map()?;
    // SAFETY: the end of a stack; `act` returns to this one.
    let result = unsafe { call_on(base.wrapping_add(LEN), act) };
    // SAFETY: mapped above, also in a child that `act` has forked.
    unsafe { sys::unmap(base, LEN) };
    Some(result)
}

/// Calls a function on another stack.
///
/// # Safety
/// `end` is the end of a stack that nothing uses, a multiple of 16.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_on(
    end: *mut u8,
    act: unsafe extern "C" fn() -> c_int,
) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "call rsi",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "mov sp, x0",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "ret",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn address() -> c_int {
        let here = 0u8;
        ((&raw const here).addr() >> 20) as c_int
    }

    #[test]
    fn a_function_runs_on_the_other_stack_and_returns() {
        let here = address();
        assert_ne!(call_apart(address), Some(here));
        assert_eq!(here, address());
    }
}
