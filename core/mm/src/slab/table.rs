//! Slab records by id, and the slab of each page.
//!
//! ```text
//! Table:   id ──> group ──> Slab         grows by blocks; records are never moved or freed
//! PageMap: page ──> id of its slab       grows by blocks
//! ```
//! No locks: blocks are set once. A page's word changes only while its slab has no objects, so it
//! is stable for a caller that has an object of it. For any other address the lookup may return a
//! stale slab, in which the address is then not an object.

use super::record::{NO_SLAB, Slab};
use super::source::page_count;
use highwater_platform::{Atomic, Atomics, Platform};
use highwater_units::Order;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Records of a block.
const BLOCK: usize = 1 << 7;
/// Blocks of a group, and groups: 16 Mi slabs, of 4 KiB at least. A process with few slabs has one
/// group.
const GROUP: usize = 1 << 8;
const GROUPS: usize = 1 << 9;
/// Pages of a block of the map.
const MAP_BLOCK: usize = 1 << 12;

/// Items that are set once, in order.
type Block<T> = OnceLock<Box<[OnceLock<T>]>>;
/// Blocks that are made one by one.
type Group<T> = OnceLock<Box<[Block<T>]>>;
/// Shared words, allocated on first use.
type Words<P> = OnceLock<Box<[<P as Atomics>::Atomic<u32>]>>;

fn unset<T>(count: usize) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

/// The group of a record, its block in the group, and its place in the block.
fn place(id: u32) -> (usize, usize, usize) {
    let id = id as usize;
    (id / (BLOCK * GROUP), id / BLOCK % GROUP, id % BLOCK)
}

/// All records.
pub(super) struct Table<P: Platform> {
    groups: Box<[Group<Slab<P>>]>,
    /// The number of records. CPUs take several at a time, so its cache line is not contended.
    len: AtomicU32,
}

impl<P: Platform> Table<P> {
    pub(super) fn new() -> Table<P> {
        Table { groups: unset(GROUPS), len: AtomicU32::new(0) }
    }

    /// Adds a record; `None` if there are 16 Mi already.
    pub(super) fn add(&self, record: Slab<P>) -> Option<u32> {
        let room = |len: u32| ((len as usize) < BLOCK * GROUP * GROUPS).then_some(len + 1);
        let id = self.len.fetch_update(Relaxed, Relaxed, room).ok()?;
        let (group, block, at) = place(id);
        let blocks = self.groups[group].get_or_init(|| unset(GROUP));
        let _ = blocks[block].get_or_init(|| unset(BLOCK))[at].set(record);
        Some(id)
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Slab<P> {
        self.find(id).expect("an id names a record")
    }

    /// A record, or `None` while it is being added.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<&Slab<P>> {
        let (group, block, at) = place(id);
        self.groups[group].get()?[block].get()?[at].get()
    }

    /// The ids of all records.
    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        0..self.len.load(Acquire)
    }
}

/// The slab of each page.
pub(super) struct PageMap<P: Platform> {
    blocks: Box<[Words<P>]>,
    pages: u64,
}

impl<P: Platform> PageMap<P> {
    /// A map of `pages` pages from 0 on.
    pub(super) fn new(pages: u64) -> PageMap<P> {
        let blocks = pages.div_ceil(MAP_BLOCK as u64);
        PageMap { blocks: (0..blocks).map(|_| OnceLock::new()).collect(), pages }
    }

    /// Sets the slab of all pages of a run.
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
