//! Blocks of the file system, allocated before they are written, chunk by chunk.
//!
//! ```text
//! Room   [ taken | taken | not yet | ... ]   a chunk of 16 MiB each
//! ```
//! A write to a hole must allocate blocks: such writes are serialised, and a ring gives each of
//! them to a worker thread. On ext4 that took three times as long as writes to allocated blocks. So
//! the first write to a chunk allocates it (fallocate); concurrent writes do not wait for that. If
//! the allocation fails, each write allocates its own blocks, or fails.
//!
//! Locks: none, one atomic word per chunk.

use crate::sys;
use highwater_platform::Io;
use highwater_units::{Bytes, PAGE_SIZE};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Slots in a chunk.
const CHUNK: u32 = (16 << 20) / PAGE_SIZE as u32;

/// The chunks of a file that have blocks.
pub(crate) struct Room {
    taken: Box<[AtomicBool]>,
    pages: u32,
}

impl Room {
    /// A file of `pages` pages without blocks.
    pub(crate) fn none(pages: u32) -> Room {
        let chunks = pages.div_ceil(CHUNK);
        Room { taken: (0..chunks).map(|_| AtomicBool::new(false)).collect(), pages }
    }

    /// Records that no chunk has blocks any more.
    pub(crate) fn give_up(&self) {
        self.taken.iter().for_each(|taken| taken.store(false, Relaxed));
    }

    /// Allocates the chunks of transfers, which lie within the file.
    pub(crate) fn take<'a>(&self, file: BorrowedFd<'_>, ios: impl Iterator<Item = &'a Io>) {
        for io in ios {
            let last = io.slot + (io.frames.len() as u32).saturating_sub(1);
            for chunk in io.slot / CHUNK..=last / CHUNK {
                let taken = &self.taken[chunk as usize];
                if !taken.load(Relaxed) && !taken.swap(true, Relaxed) {
                    let first = chunk * CHUNK;
                    let pages = CHUNK.min(self.pages - first);
                    // This is only an optimisation: the write itself reports errors.
                    let _ = sys::take_room(file, offset(first), offset(pages));
                }
            }
        }
    }
}

fn offset(pages: u32) -> u64 {
    Bytes::of_pages(u64::from(pages)).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::{FrameList, Pfn};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn chunks_that_are_written_have_room_and_no_others() {
        let file = tempfile::tempfile().expect("a file");
        let pages = 3 * CHUNK + 7;
        file.set_len(offset(pages)).expect("a sparse file");
        let room = Room::none(pages);
        let io = |slot, count: u32| Io::new(slot, (0..count).map(Pfn).collect::<FrameList>());
        let taken = || file.metadata().expect("an open file").blocks() * 512;
        assert_eq!(taken(), 0);
        room.take(file.as_fd(), [io(5, 16)].iter());
        if taken() == 0 {
            return highwater_platform::testing::skip_or_fail(
                "this file system preallocates nothing",
            );
        }
        assert_eq!(taken(), offset(CHUNK));
        room.take(file.as_fd(), [io(9, 1), io(2 * CHUNK - 8, 16)].iter());
        assert_eq!(taken(), offset(3 * CHUNK));
        room.take(file.as_fd(), [io(pages - 1, 1)].iter());
        assert_eq!(taken(), offset(pages));
        assert_eq!(file.metadata().expect("an open file").len(), offset(pages));
        file.set_len(0).and_then(|()| file.set_len(offset(pages))).expect("a sparse file");
        room.give_up();
        assert_eq!(taken(), 0);
        room.take(file.as_fd(), [io(5, 16)].iter());
        assert_eq!(taken(), offset(CHUNK));
    }
}
