//! Access to this library's thread-local variables without the thread's vector.
//!
//! The dynamic linker finds thread-local variables through a vector that it allocates per thread,
//! with the program's malloc. If the program has a malloc of its own, that vector is in paged
//! memory, and a thread inside the manager would fault on it with locks held. But the variables of
//! a library that is loaded at program start have the same distance from the thread pointer in
//! every thread. This function replaces the one that compiled code calls, and asks the dynamic
//! linker only once.
//!
//! On aarch64 the dynamic linker needs no vector for such libraries.

#[cfg(all(target_arch = "x86_64", not(test)))]
mod x86_64 {
    use crate::end::end;
    use libc::c_void;
    use std::arch::{asm, global_asm};
    use std::mem;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Distance from the thread pointer to the variables, modulo 2^64; 0: unknown.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);

    /// The argument that the compiler passes: number of a library, and offset of a variable.
    #[repr(C)]
    struct Index {
        library: usize,
        byte: usize,
    }

    // Hidden, because other libraries have other variables and need the dynamic linker's function.
    global_asm!(
        ".globl __tls_get_addr",
        ".hidden __tls_get_addr",
        ".type __tls_get_addr, @function",
        "__tls_get_addr:",
        "mov rax, [rip + {distance}]",
        "test rax, rax",
        "jz {find}",
        "add rax, fs:[0]",
        "add rax, [rdi + 8]",
        "ret",
        ".size __tls_get_addr, . - __tls_get_addr",
        distance = sym DISTANCE,
        find = sym find,
    );

    extern "C" fn find(index: &Index) -> usize {
        // SAFETY: looks a name up.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__tls_get_addr".as_ptr()) };
        if next.is_null() {
            end("the dynamic linker's __tls_get_addr is not found");
        }
        let thread: usize;
        // SAFETY: the function of that name has this type; the thread pointer points to itself.
        let address = unsafe {
            let next = mem::transmute::<*mut c_void, extern "C" fn(&Index) -> usize>(next);
            asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly));
            next(index)
        };
        DISTANCE.store(address.wrapping_sub(thread).wrapping_sub(index.byte), Relaxed);
        address
    }
}
