//! The stack that a program starts with: argument count, arguments, environment and auxiliary
//! vector.

use super::image::Image;
use crate::environment::value_of;
use highwater_session::STATIC_PROGRAM;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char};
use std::iter;
use std::mem::size_of;
use std::ptr;

/// Words of the stack of a new program, from its lowest address on.
pub(super) struct FirstStack {
    words: Vec<usize>,
}

impl FirstStack {
    /// Makes the auxiliary vector of this process that of `image`, and takes its arguments and its
    /// environment without [`STATIC_PROGRAM`].
    ///
    /// # Safety
    /// `arguments` is the array that the kernel has laid out: the count before it, the environment
    /// and the auxiliary vector after it.
    pub(super) unsafe fn of(
        arguments: *mut *mut c_char,
        path: &'static CStr,
        image: &Image,
    ) -> FirstStack {
        // SAFETY: as the caller says.
        let mut of_kernel = Words(unsafe { arguments.cast::<usize>().sub(1) });
        // SAFETY: as the caller says, up to the end of the auxiliary vector.
        let mut next = || unsafe { of_kernel.next() };
        let mut words = vec![*next()];
        let count = words[0];
        words.extend((0..=count).map(|_| *next()));
        let variables = iter::repeat_with(|| *next()).take_while(|variable| *variable != 0);
        // SAFETY: as the caller says, a string.
        let text = |at: usize| unsafe { CStr::from_ptr(ptr::with_exposed_provenance(at)) };
        words.extend(
            variables.filter(|at| value_of(text(*at), STATIC_PROGRAM.as_bytes()).is_none()),
        );
        words.push(0);
        loop {
            let (kind, value) = (*next() as u64, next());
            *value = of_program(kind, path, image).unwrap_or(*value);
            words.extend([kind as usize, *value]);
            if kind == libc::AT_NULL {
                return FirstStack { words };
            }
        }
    }

    /// Jumps to the program's entry point.
    ///
    /// # Safety
    /// A program's code is at `entry`; nothing of this thread's stack is used any more.
    pub(super) unsafe fn enter(self, entry: usize) -> ! {
        let here = (&raw const self).expose_provenance();
        // Below the frames that are in use until the words are copied.
        let gap = 4096;
        let stack = (here - gap - self.words.len() * size_of::<usize>()) / 16 * 16;
        // SAFETY: as the caller says.
        unsafe { jump(stack, self.words.as_ptr(), self.words.len(), entry) }
    }
}

/// The rest of the words on a stack.
struct Words(*mut usize);

impl Words {
    /// # Safety
    /// There is a next word, which nothing else accesses.
    unsafe fn next(&mut self) -> &'static mut usize {
        // SAFETY: as the caller says.
        unsafe {
            let word = &mut *self.0;
            self.0 = self.0.add(1);
            word
        }
    }
}

/// An entry of the auxiliary vector, where it depends on the program.
fn of_program(kind: u64, path: &'static CStr, image: &Image) -> Option<usize> {
    match kind {
        libc::AT_PHDR => Some(image.headers),
        libc::AT_PHNUM => Some(image.segments.len()),
        libc::AT_ENTRY => Some(image.entry),
        libc::AT_BASE => Some(0),
        libc::AT_EXECFN => Some(path.as_ptr().expose_provenance()),
        _ => None,
    }
}

/// Copies `count` words to `stack`, makes it this thread's stack, and jumps to `entry` with the
/// registers of a new program.
///
/// # Safety
/// As for [`FirstStack::enter`]; `stack` is a multiple of 16, below all that is in use.
#[unsafe(naked)]
unsafe extern "C" fn jump(stack: usize, words: *const usize, count: usize, entry: usize) -> ! {
    naked_asm!(
        "mov rax, rcx",
        "mov rcx, rdx",
        "mov rsp, rdi",
        "cld",
        "rep movsq",
        "xor edx, edx",
        "xor ebp, ebp",
        "jmp rax",
    )
}
