//! The last page of a file that existed, where the file ends within it.

use crate::arena::Arena;
use crate::sys::transfer;
use crate::transfer::{Outcome, offset, outcome, plain};
use highwater_platform::{Direction, Io, IoError};
use highwater_units::{PAGE_SIZE, RUN_PAGES_MAX};
use libc::iovec;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The last page of a file that ends within it.
#[derive(Clone)]
pub(crate) struct Tail {
    pub(crate) file: Arc<File>,
    pub(crate) page: u32,
    /// The file's.
    pub(crate) bytes: usize,
}

impl Tail {
    /// Whether a transfer has it.
    pub(crate) fn is_in(&self, io: &Io) -> bool {
        u64::from(io.slot) + io.frames.len() as u64 > u64::from(self.page)
    }

    /// Makes an admitted transfer that has it, of a run; its other pages go by `file`.
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
            // SAFETY: as the caller promises.
            unsafe { plain(direction, file, arena, &front) }?;
        }
        let address = arena.address(io.frames.at(last));
        // SAFETY: likewise; it is one page.
        unsafe { self.move_bytes(direction, address, offset(io, last * PAGE_SIZE)) }?;
        if direction == Direction::Read {
            // SAFETY: likewise: what is left of the page.
            unsafe { address.add(self.bytes).write_bytes(0, PAGE_SIZE - self.bytes) };
        }
        Ok(())
    }

    /// # Safety
    /// A page at `address` that nobody else touches meanwhile.
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
                unsafe { transfer(direction, self.file.as_fd(), &[vector], at + done as u64) };
            match outcome(direction, done, self.bytes, moved) {
                Outcome::Finished(result) => return result,
                Outcome::Again(bytes) => done = bytes,
            }
        }
    }
}
