//! Large pages: aligned blocks of 512 pages in 512 adjacent frames, which come and go whole.
//!
//! ```text
//! first touch (fault/large.rs) --> resident: every entry LARGE, the first frame listed for all,
//!                                  the others Tail
//!    ^                               |              \-- split --> 512 pages of their own
//! 512 hot pages (khugepaged) ------> |
//!    | one read                      | unmapped, one cluster, one write (reclaim/large.rs)
//!    \------------------------- swapped: entries say that they went together
//! ```
//! Each page keeps its entry, so that faults, guards and look-ups of single pages know nothing of
//! blocks. Who changes a block holds all its entries ([`HeldBlock`]); who wants a part of it splits
//! it first. Conservation: a resident LARGE entry but the first of its block has a Tail frame.
//! Locking: entries; then the LRU's as everywhere.

use crate::frame::{Place, Writeback};
use crate::lru::List;
use crate::machine::Machine;
use crate::space::{Entry, HeldBlock, Owner, Page, Pinned, Space, block_of};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{FrameBatch, LARGE_PAGES, Pfn, Vpn};

/// The frames of a large block that starts with `first`.
pub fn block_frames(first: Pfn) -> [Pfn; LARGE_PAGES] {
    std::array::from_fn(|index| first.offset(index as u32))
}

/// Gives a block of frames, which hold their contents, to the pages of a block, and lists the first
/// one for all.
pub fn install<P: Platform>(m: &Machine<P>, block: &HeldBlock<'_, P>, head: Pfn) {
    for (index, pfn) in block_frames(head).into_iter().enumerate() {
        m.frames.set_writeback(pfn, Writeback::Idle);
        m.adopt(pfn, block.owner(index));
        if index > 0 {
            let tail = m.frames.place(pfn).change(Place::Off, Place::Tail);
            debug_assert_eq!(tail, Ok(()), "{pfn:?} was free");
        }
    }
    m.add_to_lru(&[head], List::ActiveAnon);
}

/// Maps a block to its frames, writable; returns how many of its pages, from the first on, are.
/// The others cannot be just now, and stay in memory.
pub fn map_all<P: Platform>(
    m: &Machine<P>,
    block: &HeldBlock<'_, P>,
    frames: &[Pfn; LARGE_PAGES],
) -> usize {
    let owner = block.owner(0);
    let progress = m.platform.map(owner.space, owner.vpn, frames, Protection::ReadWrite);
    if progress.stop.is_some() {
        m.count(Counter::MapRefused, 1);
    }
    progress.done
}

/// Lets go of a block whose entries become a large page's. Who splits it just then passes by those
/// that are still held, and takes them for others: what he left is split here.
pub fn release<P: Platform>(
    m: &Machine<P>,
    block: HeldBlock<'_, P>,
    value: impl Fn(usize, Entry) -> Entry,
) {
    let Owner { space, vpn } = block.owner(0);
    block.release(value);
    let space = m.space(space);
    let large = |index: u64| space.entry(vpn.offset(index)).is_large_resident();
    if !(0..LARGE_PAGES as u64).all(large) {
        split(m, space, vpn);
    }
}

/// Makes the pages of a large page pages of their own. The caller holds no entry of the block that
/// is part of it. Goes round until none is left: one may have been made large behind it.
pub fn split<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) {
    let first = block_of(vpn);
    if split_once(m, space, first) > 0 {
        while split_once(m, space, first) > 0 {}
        m.count(Counter::ThpSplitPage, 1);
    }
}

/// Splits what is seen of a large page, from its first page on; returns how many pages that were.
fn split_once<P: Platform>(m: &Machine<P>, space: &Space<P>, first: Vpn) -> usize {
    let (mut tails, mut pages) = (Tails::new(List::ActiveAnon), 0);
    for index in 0..LARGE_PAGES {
        let page = first.offset(index as u64);
        if !space.entry(page).is_large_resident() {
            continue;
        }
        // Guards keep the frame where it is, and it stays there.
        let held = space.hold_as(page, Pinned::Accept);
        let entry = held.entries()[0];
        if let (true, Page::Resident(pfn)) = (entry.is_large(), entry.page()) {
            tails.isolate(m, index, pfn);
            held.release(|_, was| was.small());
            pages += 1;
        }
        tails.list_full(m);
    }
    tails.list(m);
    pages
}

/// Frames of a large page that get places of their own.
pub struct Tails {
    list: List,
    isolated: FrameBatch,
}

impl Tails {
    /// None yet; they go to `list`.
    pub fn new(list: List) -> Tails {
        Tails { list, isolated: FrameBatch::default() }
    }

    /// Takes a frame, by its place in the block, while its entry is held. The first one is listed
    /// already, or in the hands of the caller.
    pub fn isolate<P: Platform>(&mut self, m: &Machine<P>, index: usize, pfn: Pfn) {
        if index > 0 {
            let changed = m.frames.place(pfn).change(Place::Tail, Place::Isolated);
            debug_assert_eq!(changed, Ok(()), "{pfn:?} is part of a large page");
            self.isolated.push(pfn);
        }
    }

    /// Lists what was taken, if another might not fit.
    pub fn list_full<P: Platform>(&mut self, m: &Machine<P>) {
        if self.isolated.is_full() {
            self.list(m);
        }
    }

    /// Lists what was taken. Entries of the frames may be held.
    pub fn list<P: Platform>(&mut self, m: &Machine<P>) {
        let Some(first) = self.isolated.first() else { return };
        // A block lies in one node.
        let node = m.node_of(*first);
        m.free(&node.lru.putback(&m.frames, &self.isolated, self.list));
        self.isolated = FrameBatch::default();
    }
}
