//! Blocks of the library's own memory that are mappings of their own: the manager's tables, sized
//! for the highest budget, and mostly unused.
//!
//! Locking: none. A block is recorded in a free place, found by compare-and-swap. A block that
//! finds no free place counts as resident.

use highwater_units::PAGE_SIZE;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Most blocks that are recorded; a manager has some dozens.
const BLOCKS_MAX: usize = 128;
/// Pages that are looked up at once.
const PAGES_MAX: usize = 4096;

/// A place for a block.
struct Block {
    /// 0: free.
    address: AtomicUsize,
    /// Bytes, whole pages.
    len: AtomicUsize,
}

/// Blocks of one owner.
pub(crate) struct Blocks([Block; BLOCKS_MAX]);

/// Those of this library.
pub(crate) static BLOCKS: Blocks = Blocks::new();

impl Blocks {
    const fn new() -> Blocks {
        Blocks(
            [const { Block { address: AtomicUsize::new(0), len: AtomicUsize::new(0) } };
                BLOCKS_MAX],
        )
    }

    /// Records a block.
    pub(crate) fn add(&self, address: *mut u8, len: usize) {
        let address = address.addr();
        let takes =
            |block: &&Block| block.address.compare_exchange(0, address, AcqRel, Relaxed).is_ok();
        if let Some(block) = self.0.iter().find(takes) {
            block.len.store(len, Release);
        }
    }

    /// Forgets a block, before it is unmapped.
    pub(crate) fn remove(&self, address: *mut u8) {
        let is_it = |block: &&Block| block.address.load(Acquire) == address.addr();
        if let Some(block) = self.0.iter().find(is_it) {
            block.len.store(0, Release);
            block.address.store(0, Release);
        }
    }

    /// Bytes of the recorded blocks that have no memory.
    pub(crate) fn unused(&self) -> usize {
        let unused = |block: &Block| {
            let (address, len) = (block.address.load(Acquire), block.len.load(Acquire));
            let chunks = (0..len).step_by(PAGES_MAX * PAGE_SIZE);
            chunks.map(|at| missing(address + at, len - at)).sum::<usize>() * PAGE_SIZE
        };
        self.0.iter().map(unused).sum()
    }
}

/// Pages without memory among the first [`PAGES_MAX`]; none if the block was unmapped meanwhile.
fn missing(address: usize, len: usize) -> usize {
    let mut pages = [0u8; PAGES_MAX];
    let count = (len / PAGE_SIZE).min(PAGES_MAX);
    // SAFETY: writes a byte for each page; the addresses are only looked up.
    let found =
        unsafe { libc::syscall(libc::SYS_mincore, address, count * PAGE_SIZE, pages.as_mut_ptr()) };
    let is_missing = |page: &&u8| **page & 1 == 0;
    if found == 0 { pages[..count].iter().filter(is_missing).count() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_written_are_in_use() {
        let len = 3 * PAGES_MAX * PAGE_SIZE / 2;
        let block = highwater_os::sys::map_anonymous(len).unwrap();
        let blocks = Blocks::new();
        blocks.add(block, len);
        assert_eq!(blocks.unused(), len);
        for page in [0, 5, PAGES_MAX + 7] {
            // SAFETY: within the block.
            unsafe { block.add(page * PAGE_SIZE).write_volatile(1) };
        }
        assert_eq!(blocks.unused(), len - 3 * PAGE_SIZE);
        blocks.remove(block);
        assert_eq!(blocks.unused(), 0);
        // SAFETY: the mapping made above.
        unsafe { highwater_os::sys::unmap(block, len) };
    }
}
