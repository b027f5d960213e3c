//! Buffers outside the range, for what the arguments of a call point to.
//!
//! Each thread keeps one of [`KEPT`] bytes. A call that needs more, or that interrupts the use of
//! it, maps its own. So does a thread that has left a handler by longjmp while it used the buffer.

use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use std::cell::Cell;
use std::ptr;

/// Length of a thread's buffer. Its pages are taken when they are used.
const KEPT: usize = 256 << 10;

/// The alignment that direct I/O asks for.
const SECTOR: usize = 512;

thread_local! {
    /// This thread's buffer, if it has one.
    static BUFFER: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// Memory for the copies of one call.
pub(super) struct Bounce {
    base: *mut u8,
    len: usize,
    used: usize,
    /// The address after that of the last piece.
    adjacent: usize,
    kept: bool,
}

impl Bounce {
    /// A buffer with room for `len` bytes in `pieces` pieces. `None`: there is no memory.
    pub(super) fn new(len: usize, pieces: usize) -> Option<Bounce> {
        let len = len.checked_add(pieces * 2 * SECTOR)?.checked_next_multiple_of(PAGE_SIZE)?;
        if len > KEPT || IN_USE.replace(true) {
            let base = sys::map_anonymous(len).ok()?;
            return Some(Bounce { base, len, used: 0, adjacent: 0, kept: false });
        }
        if BUFFER.get().is_null() {
            let Ok(made) = sys::map_anonymous(KEPT) else {
                IN_USE.set(false);
                return None;
            };
            BUFFER.set(made);
        }
        Some(Bounce { base: BUFFER.get(), len: KEPT, used: 0, adjacent: 0, kept: true })
    }

    /// A piece for a copy of `len` bytes at `address`. The file may be open for direct I/O: pieces
    /// keep their place in a sector, and those of adjacent buffers are adjacent.
    pub(super) fn take(&mut self, address: usize, len: usize) -> *mut u8 {
        let at = if self.used > 0 && address == self.adjacent {
            self.used
        } else {
            self.used.next_multiple_of(SECTOR) + address % SECTOR
        };
        assert!(at + len <= self.len, "the pieces were counted");
        self.used = at + len;
        self.adjacent = address.wrapping_add(len);
        // SAFETY: inside the buffer.
        unsafe { self.base.add(at) }
    }

    /// A piece for `count` values of our own.
    pub(super) fn take_for<T>(&mut self, count: usize) -> *mut T {
        self.adjacent = 0;
        self.take(0, count * size_of::<T>()).cast()
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if self.kept {
            IN_USE.set(false);
        } else {
            // SAFETY: mapped by `new`, and no longer used.
            unsafe { sys::unmap(self.base, self.len) };
        }
    }
}

/// Frees the buffer of a thread that ends.
pub(super) fn forget() {
    let buffer = BUFFER.replace(ptr::null_mut());
    if !buffer.is_null() && !IN_USE.get() {
        // SAFETY: mapped by `new`, and not in use.
        unsafe { sys::unmap(buffer, KEPT) };
    }
}
