//! Buffers outside the range, for copies of the memory that the arguments of a call point to.
//!
//! Each thread keeps a buffer of [`KEPT`] bytes. A call that needs more, or that interrupts another
//! call in the use of the buffer, maps its own. An inaccessible page follows each buffer: a call
//! that reads or writes more than was expected fails, and changes nothing else.

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
    /// A stack address of the call that uses it; 0: none does.
    static USER: Cell<usize> = const { Cell::new(0) };
}

/// The most stack between a call and the frames around it.
const NEAR: usize = 256 << 10;

/// Whether the frame at `user` was left when one at `here` runs: it was below or there, on the same
/// stack.
pub(super) fn is_left(user: usize, here: usize) -> bool {
    here >= user && here - user < NEAR
}

/// Takes this thread's buffer, if no call uses it. A call that was left by longjmp does not.
fn claim() -> bool {
    let here = 0u8;
    let (here, user) = ((&raw const here) as usize, USER.get());
    if user != 0 && !is_left(user, here) {
        return false;
    }
    USER.set(here);
    true
}

/// Whether a buffer stays mapped after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The thread uses it again.
    Used,
    /// It is unmapped: the kernel may still read the pages.
    Unmapped,
}

impl Keep {
    /// Of a system call: zero-copy transfers go on after it.
    pub(super) fn of(number: usize, arguments: &[usize; 6]) -> Keep {
        let flags = match number as libc::c_long {
            libc::SYS_vmsplice => return Keep::Unmapped,
            libc::SYS_sendto | libc::SYS_sendmmsg => arguments[3],
            libc::SYS_sendmsg => arguments[2],
            _ => 0,
        };
        if flags & libc::MSG_ZEROCOPY as usize != 0 { Keep::Unmapped } else { Keep::Used }
    }
}

/// Maps a buffer, and the page after it. `None`: the system refuses.
fn map(len: usize) -> Option<*mut u8> {
    let base = sys::map_anonymous(len + PAGE_SIZE).ok()?;
    // SAFETY: the last page of the new mapping.
    let closed = unsafe { sys::protect(base.add(len), PAGE_SIZE, libc::PROT_NONE) };
    if closed.is_err() {
        // SAFETY: mapped above, and not used.
        unsafe { unmap(base, len) };
        return None;
    }
    Some(base)
}

/// Unmaps a buffer.
///
/// # Safety
/// It was mapped by [`map`], and nothing uses it any more.
unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: as the caller says.
    unsafe { sys::unmap(base, len + PAGE_SIZE) };
}

/// Memory for the copies of one call.
pub(super) struct Bounce {
    base: *mut u8,
    /// Bytes without the page after them.
    mapped: usize,
    /// Bytes before the pieces at the end.
    len: usize,
    used: usize,
    /// The address after that of the last piece.
    adjacent: usize,
    kept: bool,
}

impl Bounce {
    /// A buffer with room for `len` bytes in `pieces` pieces; `last` of them are for
    /// [`Bounce::take_last`]. `None`: there is no memory.
    pub(super) fn new(len: usize, pieces: usize, last: usize, keep: Keep) -> Option<Bounce> {
        let len = len.checked_add(pieces * 2 * SECTOR + last * 3 * PAGE_SIZE)?;
        let len = len.checked_next_multiple_of(PAGE_SIZE)?;
        if len > KEPT || last > 0 || keep == Keep::Unmapped || !claim() {
            let base = map(len)?;
            return Some(Bounce { base, mapped: len, len, used: 0, adjacent: 0, kept: false });
        }
        if BUFFER.get().is_null() {
            let Some(made) = map(KEPT) else {
                USER.set(0);
                return None;
            };
            BUFFER.set(made);
        }
        Some(Bounce {
            base: BUFFER.get(),
            mapped: KEPT,
            len: KEPT,
            used: 0,
            adjacent: 0,
            kept: true,
        })
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

    /// A piece of `len` bytes after which memory ends, as it does within the program's buffer: the
    /// kernel gets as far with it as with that buffer, and then fails in the same way. `rest`:
    /// bytes that follow, which can be read but not written. `None`: the system refuses.
    pub(super) fn take_last(&mut self, len: usize, rest: &[u8]) -> Option<*mut u8> {
        let end = (self.used + len).next_multiple_of(PAGE_SIZE);
        let readable = rest.len().next_multiple_of(PAGE_SIZE);
        let all = end + readable + PAGE_SIZE;
        assert!(!self.kept && all <= self.len, "the pieces were counted");
        self.used = all;
        self.adjacent = 0;
        // SAFETY: pages of this buffer, which hold no piece yet.
        unsafe {
            let end = self.base.add(end);
            end.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
            if readable > 0 {
                sys::protect(end, readable, libc::PROT_READ).ok()?;
            }
            sys::protect(end.add(readable), PAGE_SIZE, libc::PROT_NONE).ok()?;
            Some(end.sub(len))
        }
    }

    /// A piece of `len` bytes at the end of the buffer: the kernel may access more than is known.
    pub(super) fn take_end(&mut self, len: usize) -> *mut u8 {
        assert!(self.used + len <= self.len, "the pieces were counted");
        self.len -= len;
        // SAFETY: inside the buffer.
        unsafe { self.base.add(self.len) }
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
            USER.set(0);
        } else {
            // SAFETY: mapped by `new`, and no longer used.
            unsafe { unmap(self.base, self.mapped) };
        }
    }
}

/// Frees the buffer of a thread that ends.
pub(super) fn forget() {
    let buffer = BUFFER.replace(ptr::null_mut());
    if !buffer.is_null() && USER.get() == 0 {
        // SAFETY: mapped by `new`, and not in use.
        unsafe { sys::unmap(buffer, KEPT) };
    }
}
