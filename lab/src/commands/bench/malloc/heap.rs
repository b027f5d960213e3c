//! malloc and free of one allocator, and objects that know what must be in them.
//!
//! ```text
//! Heap::make: malloc, pattern ──> Object ──> Heap::release: pattern looked at or not, free
//! ```
//! A peer's library is opened by the load program, not preloaded. If it were preloaded under
//! `highwater run`, its first mmap during its own initialization would start the manager, whose
//! threads would call a malloc that is not ready. A library that is opened finds the manager
//! running, and its mmap calls go where those of the program go. Locks: none; objects may be
//! released by other threads than made them.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

/// Words of a cache line: one of each is written, and looked at.
const LINE_WORDS: usize = 8;
/// What `highwater run` serves of mmap, whatever else it does.
const PAGED: usize = 1 << 20;

/// malloc and free of an allocator.
#[derive(Clone, Copy)]
pub(super) struct Heap {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

/// A block, and what is in it.
pub(super) struct Object {
    at: NonNull<u64>,
    bytes: u32,
    tag: u32,
}

// SAFETY: its block is its own, and may be read and freed by any thread.
unsafe impl Send for Object {}

/// Whether an object's contents are checked before it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Its words are compared.
    Compare,
    /// It is only freed.
    Skip,
}

/// A failure of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// malloc gave nothing.
    NoMemory { bytes: u32 },
    /// Another word than was written.
    Contents { bytes: u32, word: usize },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::NoMemory { bytes } => write!(f, "malloc of {bytes} bytes gave nothing"),
            Wrong::Contents { bytes, word } => {
                write!(f, "WRONG CONTENTS: word {word} of an object of {bytes} bytes")
            }
        }
    }
}

impl Heap {
    /// The allocator of this program: the C library's, or that of a preloaded library.
    pub(super) fn own() -> Heap {
        Heap { malloc: libc::malloc, free: libc::free }
    }

    /// That of a library.
    ///
    /// # Errors
    /// Why it is not available, in one line.
    pub(super) fn of(library: &str) -> Result<Heap, String> {
        let name = CString::new(library).map_err(|error| error.to_string())?;
        begin_paging();
        // SAFETY: an allocator's library may be set up at any time.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(loader_error)?;
        let function = |name: &CStr| {
            // SAFETY: an open library, and a name that ends.
            let found = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            NonNull::new(found).ok_or_else(loader_error)
        };
        let (malloc, free) = (function(c"malloc")?, function(c"free")?);
        // SAFETY: under these names a library has the C library's functions.
        Ok(unsafe {
            Heap {
                malloc: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(usize) -> *mut c_void,
                >(malloc.as_ptr()),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(
                    free.as_ptr(),
                ),
            }
        })
    }

    /// An object with the pattern of `tag` in it.
    pub(super) fn make(&self, bytes: u32, tag: u32) -> Result<Object, Wrong> {
        // SAFETY: any size may be asked for.
        let block = unsafe { (self.malloc)(bytes as usize) };
        let at = NonNull::new(block.cast::<u64>()).ok_or(Wrong::NoMemory { bytes })?;
        let object = Object { at, bytes, tag };
        for index in object.words() {
            // SAFETY: whole words of a block that is ours, aligned as malloc does.
            unsafe { object.at.add(index).write(pattern(tag, index)) };
        }
        Ok(object)
    }

    /// Frees an object. The number of words looked at.
    pub(super) fn release(&self, object: Object, look: Look) -> Result<u64, Wrong> {
        let mut words = 0;
        if look == Look::Compare {
            for index in object.words() {
                // SAFETY: as in `make`.
                let found = unsafe { object.at.add(index).read() };
                if found != pattern(object.tag, index) {
                    return Err(Wrong::Contents { bytes: object.bytes, word: index });
                }
                words += 1;
            }
        }
        // SAFETY: a block of this allocator, freed once, since the object ends here.
        unsafe { (self.free)(object.at.as_ptr().cast()) };
        Ok(words)
    }
}

impl Object {
    /// The words that carry the pattern: one of each line, and the last.
    fn words(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.bytes as usize / size_of::<u64>();
        (0..words).step_by(LINE_WORDS).chain(words.checked_sub(1))
    }
}

fn pattern(tag: u32, index: usize) -> u64 {
    (u64::from(tag) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index as u64
}

/// Has the manager start now, where this program runs under one.
fn begin_paging() {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, unknown to other code, and its end.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), PAGED, access, flags, -1, 0);
        if at != libc::MAP_FAILED {
            libc::munmap(at, PAGED);
        }
    }
}

/// What the loader has to say.
fn loader_error() -> String {
    // SAFETY: the text lasts until this thread calls the loader again.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "the loader gives no reason".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_looked_at_when_asked() {
        let heap = Heap::own();
        for (bytes, words) in [(16, 2), (64, 2), (7, 0), (200, 5)] {
            for (look, looked_at) in [(Look::Compare, words), (Look::Skip, 0)] {
                let object = heap.make(bytes, 5).unwrap();
                assert_eq!(heap.release(object, look), Ok(looked_at), "{bytes} bytes");
            }
        }
    }

    #[test]
    fn a_wrong_word_is_found() {
        let heap = Heap::own();
        for word in [0, 8, 24] {
            let object = heap.make(200, 7).unwrap();
            // SAFETY: a word of the object, which has 25.
            unsafe { object.at.add(word).write(1) };
            let found = heap.release(object, Look::Compare);
            assert_eq!(found, Err(Wrong::Contents { bytes: 200, word }));
        }
    }

    #[test]
    fn a_library_has_functions_of_its_own_or_is_not_found() {
        let heap = Heap::of("libc.so.6").unwrap();
        let object = heap.make(100, 1).unwrap();
        assert_eq!(heap.release(object, Look::Compare), Ok(3));
        let missing = Heap::of("libhighwater_none.so").err().unwrap();
        assert!(missing.contains("libhighwater_none.so"), "{missing}");
    }
}
