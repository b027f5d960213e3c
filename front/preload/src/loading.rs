//! dlopen without RTLD_DEEPBIND.
//!
//! A library opened with that flag resolves functions in the libraries it was linked with before
//! the program's: its malloc and free would be the C library's, and it would free blocks of this
//! library's malloc (PHP opens its extensions this way). Two mallocs cannot share blocks, so the
//! flag is dropped; sanitizers require programs to do the same.
//!
//! The code jumps to the next dlopen instead of calling it, because the return address decides
//! about $ORIGIN, search path and namespace. dlmopen stays the C library's: a new namespace has a C
//! library and a malloc of its own.

use crate::end::end;
use libc::{c_char, c_int, c_void};
use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Address of the next dlopen; 0: not looked up yet.
static NEXT: AtomicUsize = AtomicUsize::new(0);

const _: () = assert!(libc::RTLD_DEEPBIND == 8, "as the instructions below have it");

/// dlopen(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dlopen(_: *const c_char, _: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "and esi, -9",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "2:",
        "jmp rax",
        next = sym NEXT,
        find = sym find,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "and w1, w1, #0xfffffff7",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "cbnz x16, 2f",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "2:",
        "br x16",
        next = sym NEXT,
        find = sym find,
    );
}

/// Looks up the next dlopen.
extern "C" fn find() -> usize {
    // SAFETY: looks a name up.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) } as usize;
    if next == 0 {
        end("the C library's dlopen is not found");
    }
    NEXT.store(next, Relaxed);
    next
}
