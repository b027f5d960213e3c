//! Records by number, and which slab a page is of.
//!
//! ```text
//! Table: number ──> Slab             grows by a block; a record never moves nor goes
//! PageMap: page ──> number of its slab, or none       likewise
//! ```
//! No locks: blocks are set once. A page's word changes only while its slab has no objects, so who
//! has an object may believe it; who has none learns at worst of a slab in which it is not.

use super::record::{NO_SLAB, Slab};
use super::source::page_count;
use highwater_platform::{Atomic, Atomics, Platform};
use highwater_units::Order;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Records of a block.
const BLOCK: usize = 1 << 10;
/// Blocks: 16 Mi slabs, of 4 KiB at least.
const BLOCKS: usize = 1 << 14;
/// Pages of a block of the map.
const MAP_BLOCK: usize = 1 << 12;

/// Things that are set once, in order.
type Block<T> = OnceLock<Box<[OnceLock<T>]>>;
/// Shared words that are there from their first use on.
type Words<P> = OnceLock<Box<[<P as Atomics>::Atomic<u32>]>>;

/// All records.
pub(super) struct Table<P: Platform> {
    blocks: Box<[Block<Slab<P>>]>,
    /// How many there are. Each CPU asks for some at a time: no line to be charged for.
    len: AtomicU32,
}

impl<P: Platform> Table<P> {
    pub(super) fn new() -> Table<P> {
        Table { blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(), len: AtomicU32::new(0) }
    }

    /// Adds a record; `None`: there are 16 Mi.
    pub(super) fn add(&self, record: Slab<P>) -> Option<u32> {
        let room = |len: u32| ((len as usize) < BLOCK * BLOCKS).then_some(len + 1);
        let id = self.len.fetch_update(Relaxed, Relaxed, room).ok()?;
        let block = self.blocks[id as usize / BLOCK]
            .get_or_init(|| (0..BLOCK).map(|_| OnceLock::new()).collect());
        let _ = block[id as usize % BLOCK].set(record);
        Some(id)
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Slab<P> {
        let block = self.blocks[id as usize / BLOCK].get().expect("numbers are of records");
        block[id as usize % BLOCK].get().expect("numbers are of records")
    }

    /// A record, unless it is just being added.
    pub(super) fn find(&self, id: u32) -> Option<&Slab<P>> {
        self.blocks[id as usize / BLOCK].get()?[id as usize % BLOCK].get()
    }

    /// All numbers, as of now.
    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        0..self.len.load(Acquire)
    }
}

/// Which slab each page is of.
pub(super) struct PageMap<P: Platform> {
    blocks: Box<[Words<P>]>,
    pages: u64,
}

impl<P: Platform> PageMap<P> {
    /// Of `pages` pages, from 0.
    pub(super) fn new(pages: u64) -> PageMap<P> {
        let blocks = pages.div_ceil(MAP_BLOCK as u64);
        PageMap { blocks: (0..blocks).map(|_| OnceLock::new()).collect(), pages }
    }

    /// Says of all pages of a run whose they are.
    pub(super) fn set(&self, first: u64, order: Order, slab: Option<u32>) {
        let word = slab.unwrap_or(NO_SLAB);
        for page in first..first + page_count(order) {
            let block = self.blocks[page as usize / MAP_BLOCK]
                .get_or_init(|| (0..MAP_BLOCK).map(|_| Atomic::new(NO_SLAB)).collect());
            block[page as usize % MAP_BLOCK].store(word, Release);
        }
    }

    /// The slab of a page.
    #[inline]
    pub(super) fn get(&self, page: u64) -> Option<u32> {
        if page >= self.pages {
            return None;
        }
        let block = self.blocks[page as usize / MAP_BLOCK].get()?;
        Some(block[page as usize % MAP_BLOCK].load(Acquire)).filter(|id| *id != NO_SLAB)
    }
}
