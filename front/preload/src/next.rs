//! Functions of the C library that this library defines, too, and their next definitions.
//!
//! ```text
//! caller --- name --> looks!: `look` with the arguments ---> jump to the address that it returns
//! ```

use crate::errno::set_errno;
use libc::c_int;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The next function of a name.
pub(crate) struct Next {
    name: &'static CStr,
    /// 0: not found yet.
    address: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static [u8]) -> Next {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { panic!("a name of letters") };
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Looks the function up in the libraries that are loaded now.
    pub(crate) fn learn(&self) {
        // SAFETY: looks a name up.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(next as usize, Relaxed);
    }

    pub(crate) fn get(&self) -> usize {
        match self.address.load(Relaxed) {
            0 => self.find(),
            found => found,
        }
    }

    /// A function of a library that was loaded later; or, where none has it because the caller
    /// asked by a weak reference or by dlsym, one that fails.
    #[cold]
    fn find(&self) -> usize {
        self.learn();
        match self.address.load(Relaxed) {
            0 if !self.name.to_bytes().starts_with(b"io_uring") => address_of(no_system_call),
            0 => in_liburing(self.name).unwrap_or_else(|| address_of(no_ring)),
            found => found,
        }
    }
}

/// A library that belongs to a plugin of the program is not among the next ones.
fn in_liburing(name: &CStr) -> Option<usize> {
    const NAMES: [&CStr; 3] = [c"liburing.so.2", c"liburing-ffi.so.2", c"liburing.so.1"];
    let found = NAMES.iter().map(|library| {
        // SAFETY: finds a library that is loaded already, and looks a name up.
        unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
        }
    });
    found.map(|address| address as usize).find(|address| *address != 0)
}

fn address_of(function: extern "C" fn() -> c_int) -> usize {
    function as *const () as usize
}

extern "C" fn no_system_call() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// Functions of liburing return error numbers.
extern "C" fn no_ring() -> c_int {
    -libc::ENOSYS
}

/// Defines a function that jumps to the next one of its name, after `look` had the arguments in
/// registers and has returned the address to jump to.
macro_rules! looks {
    ($name:ident, $look:ident) => {
        /// # Safety
        /// As for the C library's function.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {look}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                look = sym $look,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {look}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                look = sym $look,
            );
        }
    };
}

pub(crate) use looks;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::transmute;

    #[test]
    fn next_functions_are_found_or_replaced() {
        let open = Next::new(b"open64\0");
        // SAFETY: looks a name up.
        let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, c"open64".as_ptr()) } as usize;
        assert_eq!((open.get(), open.get()), (expected, expected));
        let none = Next::new(b"io_uring_nothing\0");
        // Not compared by address: a function may have several.
        // SAFETY: a replacement, which has this type.
        let replacement = unsafe { transmute::<usize, extern "C" fn() -> c_int>(none.get()) };
        assert_eq!((replacement(), no_system_call()), (-libc::ENOSYS, -1));
    }
}
