//! Large pages: aligned blocks of 512 pages in 512 adjacent frames, swapped out and in whole.
//!
//! ```text
//! first touch (fault/large.rs) --> resident: every entry LARGE, the first frame on the LRU for
//!                                  all, the others Tail
//!    ^                               |              \-- split --> 512 small pages
//! 512 hot pages (khugepaged) ------> |
//!    | one read                      | unmapped, one cluster, one write (reclaim/large.rs)
//!    \------------------------- swapped: every entry LARGE
//! ```
//! Each page keeps its entry, so faults, guards and lookups of single pages need not know of
//! blocks. A thread that changes a whole block holds all its entries ([`HeldBlock`]); a thread that
//! needs only a part of the block splits it first. Conservation: a resident LARGE entry, except the
//! first of its block, has a Tail frame. Locking: entries, then the LRU's locks.

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

/// Gives filled frames to the pages of a block, and puts the first frame on the LRU for all of
/// them.
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

/// Maps a block to its frames, writable; returns how many of its first pages were mapped. The
/// others are refused for now, and stay resident.
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

/// Unlocks a block whose entries become those of a large page. A concurrent split skips entries
/// that are still locked, since these are not marked LARGE yet: then this function splits the rest.
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

/// Splits a large page into small ones. The caller holds no entry of it. Repeats until no large
/// entry is left: the pages before the scan's position may become large again.
pub fn split<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) {
    let first = block_of(vpn);
    if split_once(m, space, first) > 0 {
        while split_once(m, space, first) > 0 {}
        m.count(Counter::ThpSplitPage, 1);
    }
}

/// Splits the large entries of a block in one scan; returns how many there were.
fn split_once<P: Platform>(m: &Machine<P>, space: &Space<P>, first: Vpn) -> usize {
    let (mut tails, mut pages) = (Tails::new(List::ActiveAnon), 0);
    for index in 0..LARGE_PAGES {
        let page = first.offset(index as u64);
        if !space.entry(page).is_large_resident() {
            continue;
        }
        // Pinned pages may be split: they keep their frames.
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

/// Frames of a split large page on their way to an LRU list.
pub struct Tails {
    list: List,
    isolated: FrameBatch,
}

impl Tails {
    /// No frames yet; they go to `list`.
    pub fn new(list: List) -> Tails {
        Tails { list, isolated: FrameBatch::default() }
    }

    /// Adds frame `index` of the block, whose entry is held. The first frame is on a list already,
    /// or isolated by the caller.
    pub fn isolate<P: Platform>(&mut self, m: &Machine<P>, index: usize, pfn: Pfn) {
        if index > 0 {
            let changed = m.frames.place(pfn).change(Place::Tail, Place::Isolated);
            debug_assert_eq!(changed, Ok(()), "{pfn:?} is part of a large page");
            self.isolated.push(pfn);
        }
    }

    /// Lists the frames if no further one fits.
    pub fn list_full<P: Platform>(&mut self, m: &Machine<P>) {
        if self.isolated.is_full() {
            self.list(m);
        }
    }

    /// Puts the frames on their list. Their entries may be held.
    pub fn list<P: Platform>(&mut self, m: &Machine<P>) {
        let Some(first) = self.isolated.first() else { return };
        // A block lies in one node.
        let node = m.node_of(*first);
        m.free(&node.lru.putback(&m.frames, &self.isolated, self.list));
        self.isolated = FrameBatch::default();
    }
}
