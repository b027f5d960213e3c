//! Runs a statically linked Go program, into which the dynamic linker loads no library.
//!
//! ```text
//! highwater run --- exec ---> highwater, with this library; __libc_start_main (begin.rs):
//!     image.rs     maps the program's segments
//!     sites.rs     replaces its mmap and munmap system calls by calls of requests.rs
//!     identity.rs  /proc/self/exe and the thread's name become the program's
//!     first_stack.rs  argc, argv, environment, auxiliary vector; jump to the entry point
//! program --- mmap, munmap ---> requests.rs ---> mapping.rs
//! ```
//! Go's runtime makes its system calls itself and sets handlers for all signals. So faults are
//! served by handler threads, and each call site of mmap and munmap in the program's code becomes a
//! call of this library. There is one of each in Go's runtime; mappings that a program makes with
//! the package syscall stay the kernel's.
//!
//! The process keeps the C library of this library and of the dynamic linker. Threads of Go's use
//! the register FS for themselves; requests.rs lends them the first thread's block of the C
//! library, which that thread no longer uses.

mod first_stack;
mod identity;
mod image;
mod requests;
mod sites;

use crate::end::{end, say};
use crate::{exec, start};
use first_stack::FirstStack;
use highwater_session::STATIC_PROGRAM;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// Runs the program at `path` in place of the one that the kernel has started; without this
/// library if it cannot be loaded.
///
/// # Safety
/// `arguments` is the array that the kernel has laid out on the first thread's stack. No other
/// thread runs, and the program that the kernel has started never runs again.
pub(crate) unsafe fn run(path: &'static CStr, arguments: *mut *mut c_char) -> ! {
    // SAFETY: as the caller says.
    match unsafe { prepare(path, arguments) } {
        Ok((stack, entry)) => {
            start::get();
            // SAFETY: the stack is that of a new program, whose code is mapped.
            unsafe { stack.enter(entry) }
        }
        Err(error) => {
            let name = path.to_string_lossy();
            say(&format!("'{name}' is not paged: {error}"));
            // SAFETY: as the caller says.
            let error = unsafe { run_unserved(path, arguments) };
            end(&format!("'{name}' cannot be started: {error}"))
        }
    }
}

/// Executes the program as if there were no Highwater. Returns only if that fails.
///
/// # Safety
/// As for [`run`].
unsafe fn run_unserved(path: &CStr, arguments: *mut *mut c_char) -> io::Error {
    let variable = CString::new(STATIC_PROGRAM).unwrap_or_default();
    // SAFETY: no other thread runs; arguments and environment of a program, past this library's
    // function.
    unsafe {
        libc::unsetenv(variable.as_ptr());
        libc::syscall(libc::SYS_execve, path.as_ptr(), arguments, exec::own());
    }
    io::Error::last_os_error()
}

/// Loads the program; returns its first stack and its entry point.
///
/// # Safety
/// As for [`run`].
unsafe fn prepare(
    path: &'static CStr,
    arguments: *mut *mut c_char,
) -> Result<(FirstStack, usize), String> {
    let file = File::open(OsStr::from_bytes(path.to_bytes())).map_err(|error| error.to_string())?;
    let image = image::map(&file)?;
    sites::replace(&file, &image, requests::entry()?)?;
    // SAFETY: the code of the program that the kernel has started does not run again.
    unsafe { identity::take(&file, path)? };
    // SAFETY: as the caller says.
    let stack = unsafe { FirstStack::of(arguments, path, &image) };
    Ok((stack, image.entry))
}
