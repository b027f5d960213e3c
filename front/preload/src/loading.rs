//! dlopen without RTLD_DEEPBIND.
//!
//! A library that is opened with that flag looks for functions in what it was linked with before it
//! looks in the program: its malloc and free would be the C library's, and it frees what others had
//! from ours (PHP opens its extensions so). Two mallocs do not fit in one process, so the flag is
//! dropped, as sanitizers demand it of programs.
//!
//! The next dlopen is jumped to, not called: the address it returns to says whose $ORIGIN, search
//! path and namespace count. dlmopen stays the C library's: what is opened in a namespace of its
//! own has a C library and a malloc of its own, too.

use crate::report;
use libc::{c_char, c_int, c_void};
use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// The next dlopen behind this one; 0: not looked up yet.
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

/// Looks the next dlopen up.
extern "C" fn find() -> usize {
    // SAFETY: looks a name up.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) } as usize;
    if next == 0 {
        report::end("the C library's dlopen is not found");
    }
    NEXT.store(next, Relaxed);
    next
}
