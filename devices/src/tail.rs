//! The partial last page of an existing file.

use crate::arena::Arena;
use crate::sys::transfer;
use crate::transfer::{Outcome, offset, outcome, plain};
use highwater_platform::{Direction, Io, IoError};
use highwater_units::{PAGE_SIZE, RUN_PAGES_MAX};
use libc::iovec;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The partial last page of a file. It is transferred through the page cache, byte by byte.
#[derive(Clone)]
pub(crate) struct Tail {
    pub(crate) file: Arc<File>,
    pub(crate) page: u32,
    /// Bytes of the page that lie in the file.
    pub(crate) bytes: usize,
}

impl Tail {
    /// Whether a transfer includes this page.
    pub(crate) fn is_in(&self, io: &Io) -> bool {
        u64::from(io.slot) + io.frames.len() as u64 > u64::from(self.page)
    }

    /// Makes an admitted transfer that includes this page; its other pages go through `file`.
    ///
    /// # Safety
    /// As for [`Device::read`].
    pub(crate) unsafe fn transfer(
        &self,
        direction: Direction,
        file: BorrowedFd<'_>,
        arena: Arena,
        io: &Io,
    ) -> Result<(), IoError> {
        let last = io.frames.len() - 1;
        debug_assert!(last < RUN_PAGES_MAX, "files have no large pages");
        if last > 0 {
            let front = Io::new(io.slot, (0..last).map(|index| io.frames.at(index)).collect());
            // SAFETY: by contract of this function.
            unsafe { plain(direction, file, arena, &front) }?;
        }
        let address = arena.address(io.frames.at(last));
        // SAFETY: a frame of the transfer, one page long.
        unsafe { self.move_bytes(direction, address, offset(io, last * PAGE_SIZE)) }?;
        if direction == Direction::Read {
            // SAFETY: the rest of that frame.
            unsafe { address.add(self.bytes).write_bytes(0, PAGE_SIZE - self.bytes) };
        }
        Ok(())
    }

    /// # Safety
    /// `address` is a page that no other thread touches meanwhile.
    unsafe fn move_bytes(
        &self,
        direction: Direction,
        address: *mut u8,
        at: u64,
    ) -> Result<(), IoError> {
        let mut done = 0;
        loop {
            let base = address.wrapping_add(done).cast();
            let vector = iovec { iov_base: base, iov_len: self.bytes - done };
            // SAFETY: the vector names a part of the page.
            let moved =
                unsafe { transfer(direction, self.file.as_fd(), &mut [vector], at + done as u64) };
            match outcome(direction, done, self.bytes, moved) {
                Outcome::Finished(result) => return result,
                Outcome::Again(bytes) => done = bytes,
            }
        }
    }
}
