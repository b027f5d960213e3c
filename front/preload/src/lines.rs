//! Functions of the C library that return blocks of malloc to the program: getline, getdelim,
//! vasprintf.
//!
//! ```text
//! getdelim -- the C library's, into a buffer of this thread's ──copied──> the program's block,
//!                                                                  grown by our realloc
//! ```
//! The C library's versions would allocate such blocks for the C library, unpaged (caller.rs).
//! asprintf stays the C library's: its variable arguments cannot be passed on.

use crate::caller;
use crate::errno::set_errno;
use crate::malloc::{self, with_caller};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};
use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::CStr;
use std::mem;
use std::ptr;
use std::sync::OnceLock;

type GetDelim = unsafe extern "C" fn(*mut *mut c_char, *mut size_t, c_int, *mut FILE) -> ssize_t;
/// A `va_list` is passed by its address, on x86-64 and on aarch64.
type VasPrintf = unsafe extern "C" fn(*mut *mut c_char, *const c_char, *mut c_void) -> c_int;
type VasPrintfChk =
    unsafe extern "C" fn(*mut *mut c_char, c_int, *const c_char, *mut c_void) -> c_int;

/// Length of a new line's block in glibc.
const FIRST_BYTES: usize = 120;

/// Maximum size of a buffer that a thread keeps.
const KEPT_BYTES: usize = 64 << 10;

/// A buffer that the C library allocates and grows.
struct Buffer {
    bytes: *mut c_char,
    len: size_t,
}

impl Buffer {
    const NONE: Buffer = Buffer { bytes: ptr::null_mut(), len: 0 };
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: a block that nothing else refers to, or null.
        unsafe { malloc::release(self.bytes.cast()) };
    }
}

thread_local! {
    /// Empty while in use: a stream's own functions may read lines, too.
    static BUFFER: Cell<Buffer> = const { Cell::new(Buffer::NONE) };
}

/// The next function of a name, the C library's.
fn next(name: &CStr, found: &OnceLock<usize>) -> usize {
    // SAFETY: looks a name up, as the program's calls do.
    *found.get_or_init(|| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize)
}

fn next_getdelim() -> GetDelim {
    static FOUND: OnceLock<usize> = OnceLock::new();
    // SAFETY: every supported C library has a function of that name and type.
    unsafe { mem::transmute::<usize, GetDelim>(next(c"getdelim", &FOUND)) }
}

/// Whether a caller's block comes from this library's malloc.
fn is_ours(caller: usize) -> bool {
    caller::are_known() && !caller::is_inside(caller) && malloc::other().is_none()
}

with_caller!(
    /// getdelim(3).
    getdelim(*mut *mut c_char, *mut size_t, c_int, *mut FILE) -> ssize_t,
    getdelim_for, "r8", "x4"
);

with_caller!(
    /// __getdelim, which glibc's stdio.h calls for getline.
    __getdelim(*mut *mut c_char, *mut size_t, c_int, *mut FILE) -> ssize_t,
    getdelim_for, "r8", "x4"
);

with_caller!(
    /// getline(3).
    getline(*mut *mut c_char, *mut size_t, *mut FILE) -> ssize_t, getline_for, "rcx", "x3"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn getline_for(
    line: *mut *mut c_char,
    len: *mut size_t,
    stream: *mut FILE,
    caller: usize,
) -> ssize_t {
    // SAFETY: as the caller says.
    unsafe { getdelim_for(line, len, c_int::from(b'\n'), stream, caller) }
}

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn getdelim_for(
    line: *mut *mut c_char,
    len: *mut size_t,
    delimiter: c_int,
    stream: *mut FILE,
    caller: usize,
) -> ssize_t {
    let take = || BUFFER.try_with(|buffer| buffer.replace(Buffer::NONE)).ok();
    let Some(mut buffer) = is_ours(caller).then(take).flatten() else {
        // SAFETY: as the caller says.
        return unsafe { next_getdelim()(line, len, delimiter, stream) };
    };
    if line.is_null() || len.is_null() {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: `line` and `len` are the caller's variables; the buffer has at least the length it
    // records.
    unsafe {
        // Allocated before anything is read, as in glibc: the program frees it in any case. With a
        // length of 0 the pointer may be anything.
        if (*line).is_null() || *len == 0 {
            *line = malloc::malloc_for(FIRST_BYTES, caller).cast();
            *len = if (*line).is_null() { 0 } else { FIRST_BYTES };
        }
        if (*line).is_null() {
            return -1;
        }
        let read = next_getdelim()(&mut buffer.bytes, &mut buffer.len, delimiter, stream);
        let given = if read < 0 { read } else { give(line, len, buffer.bytes, read, caller) };
        if buffer.len <= KEPT_BYTES {
            // A thread that is ending has no variable for it: it is freed.
            let _ = BUFFER.try_with(|kept| kept.replace(buffer));
        }
        given
    }
}

/// Copies a line of `read` bytes and its terminating zero to the program's block, which grows as in
/// glibc to at least twice its size. -1: out of memory.
///
/// # Safety
/// `line` and `len` describe a block of malloc; `from` holds the line.
unsafe fn give(
    line: *mut *mut c_char,
    len: *mut size_t,
    from: *const c_char,
    read: ssize_t,
    caller: usize,
) -> ssize_t {
    let needed = read as usize + 1;
    // SAFETY: as the caller says; the block has `needed` bytes when they are copied.
    unsafe {
        if needed > *len {
            let wanted = needed.max(len.read().saturating_mul(2));
            let grown: *mut c_char = malloc::realloc_for((*line).cast(), wanted, caller).cast();
            if grown.is_null() {
                return -1;
            }
            (*line, *len) = (grown, wanted);
        }
        ptr::copy_nonoverlapping(from, *line, needed);
    }
    read
}

with_caller!(
    /// vasprintf(3).
    vasprintf(*mut *mut c_char, *const c_char, *mut c_void) -> c_int, vasprintf_for, "rcx", "x3"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn vasprintf_for(
    text: *mut *mut c_char,
    format: *const c_char,
    arguments: *mut c_void,
    caller: usize,
) -> c_int {
    static FOUND: OnceLock<usize> = OnceLock::new();
    let found = next(c"vasprintf", &FOUND);
    // SAFETY: as for getdelim; the arguments are used once.
    unsafe {
        let make = mem::transmute::<usize, VasPrintf>(found);
        made(text, caller, |text| make(text, format, arguments))
    }
}

with_caller!(
    /// __vasprintf_chk, which glibc's stdio.h calls with _FORTIFY_SOURCE.
    __vasprintf_chk(*mut *mut c_char, c_int, *const c_char, *mut c_void) -> c_int,
    vasprintf_chk_for, "r8", "x4"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn vasprintf_chk_for(
    text: *mut *mut c_char,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
    caller: usize,
) -> c_int {
    static FOUND: OnceLock<usize> = OnceLock::new();
    let found = next(c"__vasprintf_chk", &FOUND);
    // SAFETY: as for vasprintf.
    unsafe {
        let make = mem::transmute::<usize, VasPrintfChk>(found);
        made(text, caller, |text| make(text, flag, format, arguments))
    }
}

/// Lets the C library make a text, and moves it to a block of this library's malloc.
///
/// # Safety
/// `make` sets `text` to a block of malloc, unless it returns -1.
unsafe fn made(
    text: *mut *mut c_char,
    caller: usize,
    make: impl FnOnce(*mut *mut c_char) -> c_int,
) -> c_int {
    let len = make(text);
    if len < 0 || !is_ours(caller) {
        return len;
    }
    // SAFETY: the text and its terminating zero, in a block of malloc.
    unsafe {
        let theirs = *text;
        let ours: *mut c_char = malloc::malloc_for(len as usize + 1, caller).cast();
        if ours.is_null() {
            *text = ptr::null_mut();
            malloc::release(theirs.cast());
            return -1;
        }
        ptr::copy_nonoverlapping(theirs, ours, len as usize + 1);
        *text = ours;
        malloc::release(theirs.cast());
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of malloc, as a program passes one to getline.
    struct Line {
        bytes: *mut c_char,
        len: size_t,
    }

    impl Line {
        fn give(&mut self, text: &[u8]) -> ssize_t {
            let mut ended = text.to_vec();
            ended.push(0);
            let from = ended.as_ptr().cast();
            // SAFETY: a block of malloc and its length, and a text with a zero behind it.
            unsafe { give(&mut self.bytes, &mut self.len, from, text.len() as ssize_t, 0) }
        }
    }

    #[test]
    fn blocks_grow_to_twice_their_size_at_least_and_never_shrink() {
        // SAFETY: a new block.
        let bytes = unsafe { libc::malloc(FIRST_BYTES) }.cast();
        let mut line = Line { bytes, len: FIRST_BYTES };
        let mut expected = FIRST_BYTES;
        for bytes in [0, 1, 119, 120, 5, 239, 240, 1000, 100_000, 3, 199_999, 200_000] {
            let text: Vec<u8> = (0..bytes).map(|at: usize| (at % 251) as u8 + 1).collect();
            assert_eq!(line.give(&text), bytes as ssize_t);
            if bytes + 1 > expected {
                expected = (bytes + 1).max(2 * expected);
            }
            assert_eq!(line.len, expected, "after {bytes} bytes");
            // SAFETY: what was just copied there, with its zero.
            let found = unsafe { CStr::from_ptr(line.bytes) };
            assert_eq!(found.to_bytes(), text);
        }
        // SAFETY: the block, which is not used again.
        unsafe { libc::free(line.bytes.cast()) };
    }
}
