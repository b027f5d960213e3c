//! Accesses and copies that end at a lost page, without a signal for the program.
//!
//! ```text
//! load, store -- access --> true
//!                  \- SIGBUS: bus.rs --> refuse: continue at `refused` --> false
//! copy ----------- rep movsb --> all bytes
//!                  \- SIGBUS: bus.rs --> refuse: continue at `copy_refused` --> those before
//! ```
//! A missing page is brought in by the access. It may be evicted again, and be lost, before its
//! bytes are copied: so copies end there, too.

use std::mem::transmute;

/// Loads a byte; returns whether its page could be read.
pub(super) fn load(address: usize) -> bool {
    // SAFETY: the function that the assembler code is.
    let load = unsafe { transmute::<*const (), Access>(load_byte as *const ()) };
    load(address) != 0
}

/// Stores a byte as it is; returns whether its page could be read.
pub(super) fn store(address: usize) -> bool {
    // SAFETY: as above.
    let store = unsafe { transmute::<*const (), Access>(store_byte as *const ()) };
    store(address) != 0
}

/// Copies bytes; returns how many were copied: those before the first lost page, or all.
///
/// # Safety
/// Both have `len` bytes, in pages that are accessible or missing. They do not overlap.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the function that the assembler code is.
    let copy = unsafe { transmute::<*const (), Copy>(copy_bytes as *const ()) };
    len - copy(to, from, 0, len)
}

/// Takes the address of an accessible byte; returns 0 if its page is lost.
type Access = extern "C" fn(usize) -> usize;

/// Takes the addresses of two areas, a number that is not used, and a length, in the registers that
/// the processor copies by; returns how many bytes are left.
type Copy = extern "C" fn(*mut u8, *const u8, usize, usize) -> usize;

/// Has an interrupted [`load`] or [`store`] return false, and an interrupted [`copy`] end; `false`
/// if other code was interrupted.
pub(super) fn refuse(context: &mut libc::ucontext_t) -> bool {
    let next = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let refused = refused as *const ();
    let accesses = [
        (load_byte as *const (), refused),
        (store_byte as *const (), refused),
        (copy_bytes as *const (), copy_refused as *const ()),
    ];
    let found = accesses.iter().find(|(access, _)| access.addr() == *next as usize);
    *next = found.map_or(*next, |(_, then)| then.addr() as i64);
    found.is_some()
}

/// # Safety
/// The byte is accessible, or its page missing. The access is the first instruction.
#[unsafe(naked)]
unsafe extern "C" fn load_byte() {
    std::arch::naked_asm!("movzx eax, byte ptr [rdi]", "mov eax, 1", "ret");
}

/// # Safety
/// As of [`load_byte`].
#[unsafe(naked)]
unsafe extern "C" fn store_byte() {
    std::arch::naked_asm!("lock or byte ptr [rdi], 0", "mov eax, 1", "ret");
}

/// Where a refused access continues.
///
/// # Safety
/// Not to be called.
#[unsafe(naked)]
unsafe extern "C" fn refused() {
    std::arch::naked_asm!("xor eax, eax", "ret");
}

/// # Safety
/// As of [`copy`]. The copying is the first instruction.
#[unsafe(naked)]
unsafe extern "C" fn copy_bytes() {
    std::arch::naked_asm!("rep movsb", "mov rax, rcx", "ret");
}

/// Where a refused copy continues: `rcx` counts the bytes that are left.
///
/// # Safety
/// Not to be called.
#[unsafe(naked)]
unsafe extern "C" fn copy_refused() {
    std::arch::naked_asm!("mov rax, rcx", "ret");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_leave_the_byte_as_it_is() {
        let bytes = [7u8, 9];
        let address = (&raw const bytes).addr() + 1;
        assert!(load(address) && store(address));
        assert_eq!(std::hint::black_box(bytes), [7, 9]);
    }

    #[test]
    fn copies_are_whole() {
        let (from, mut to) = ([1u8, 2, 3], [0u8; 4]);
        // SAFETY: arrays of that length, and more.
        assert_eq!(unsafe { copy(to.as_mut_ptr(), from.as_ptr(), 3) }, 3);
        assert_eq!(to, [1, 2, 3, 0]);
        // SAFETY: no bytes.
        assert_eq!(unsafe { copy(to.as_mut_ptr(), from.as_ptr(), 0) }, 0);
    }

    #[test]
    fn only_an_interrupted_access_is_refused() {
        // SAFETY: zeros are a valid context.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        let at = |function: *const ()| function.addr() as i64;
        for (next, then) in [
            (at(load_byte as *const ()), at(refused as *const ())),
            (at(store_byte as *const ()), at(refused as *const ())),
            (at(copy_bytes as *const ()), at(copy_refused as *const ())),
            (at(load_byte as *const ()) + 1, at(load_byte as *const ()) + 1),
            (0, 0),
        ] {
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = next;
            assert_eq!(refuse(&mut context), then != next);
            assert_eq!(context.uc_mcontext.gregs[libc::REG_RIP as usize], then);
        }
    }
}
