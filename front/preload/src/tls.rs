//! Thread-local variables of this library, found without the thread's vector.
//!
//! The dynamic linker finds them through a vector that it allocates for each thread, with the
//! program's malloc. Where the program brings one, that vector is in paged memory, and a thread
//! inside the manager would fault on it with locks held. But a library that is loaded when a
//! program starts has its variables at the same distance from the thread pointer in every thread:
//! here the calls that the compiler generates end, and only the first asks the dynamic linker.
//!
//! On aarch64 the dynamic linker's own way needs no vector for such libraries.

#[cfg(all(target_arch = "x86_64", not(test)))]
mod x86_64 {
    use crate::report;
    use libc::c_void;
    use std::arch::{asm, global_asm};
    use std::mem;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// From the thread pointer to the variables, modulo 2^64; 0: not known yet.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);

    /// What the compiler passes: the number of a library, and the byte of its variables.
    #[repr(C)]
    struct Index {
        library: usize,
        byte: usize,
    }

    // Hidden: other libraries, which have other variables, call the dynamic linker's.
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
            report::end("the dynamic linker's __tls_get_addr is not found");
        }
        let thread: usize;
        // SAFETY: what has that name is this function; the thread pointer points to itself.
        let address = unsafe {
            let next = mem::transmute::<*mut c_void, extern "C" fn(&Index) -> usize>(next);
            asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly));
            next(index)
        };
        DISTANCE.store(address.wrapping_sub(thread).wrapping_sub(index.byte), Relaxed);
        address
    }
}
