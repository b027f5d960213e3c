//! Collapses 512 small pages into one large page, or leaves them as they are.
//!
//! ```text
//! a block of frames -- none ----------------------------------------------> NoBlock
//!   -> all entries held, judged again -- pinned, changed, swapped still ---> Changed
//!   -> swapped pages read into it ------ a read fails ---------------------> Changed
//!   -> mapped pages unmapped ----------- one is in use by the system ------> mapped again: Changed
//!   -> the others copied into it, absent ones zeroed: nothing fails from here on
//!   -> old frames abandoned, as of pages that are dropped; old slots free
//!   -> one large page, listed as active, mapped with one call --------------> Done
//! ```
//! The entries are held throughout, so no thread reaches a page or its frame meanwhile. An old
//! frame that a thread has isolated becomes an orphan, as after a discard. Nothing is freed before
//! all copies are made, so a failed collapse changes nothing. Locking: entries, which are only
//! tried. The thread holds them while it waits for device reads, as in a fault.

use super::scan::{Limits, Survey, Verdict, judge};
use crate::alloc;
use crate::large::{block_frames, install, map_all, release};
use crate::machine::{Machine, Node};
use crate::phase;
use crate::run::{Unmapped, unmap_stretches};
use crate::space::{Entry, HeldBlock, Page, Pinned, Space};
use crate::stats::Counter;
use crate::zone::Mobility;
use highwater_platform::{Io, Platform, Protection};
use highwater_units::{
    BATCH_PAGES_MAX, FrameList, LARGE_PAGES, Order, Pfn, RUN_PAGES_MAX, Slot, Vpn,
};

/// Attempts to lock the entries: guards usually pin a page for one access only.
const TRIES: u32 = 8;

/// The result of a collapse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collapsed {
    /// The block is a large page.
    Done,
    /// No block of 512 adjacent frames is free above the low watermark.
    NoBlock,
    /// A page is in use, changed since the scan, or cannot be read now.
    Changed,
}

/// Collapses the block that starts at `first`, inside an anonymous space of order 0.
pub(super) fn collapse<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    first: Vpn,
    limits: &Limits,
) -> Collapsed {
    let Some(head) = alloc::block_on(m, home(m, space, first)) else {
        m.count(Counter::ThpCollapseAllocFailed, 1);
        return Collapsed::NoBlock;
    };
    m.count(Counter::ThpCollapseAlloc, 1);
    match lock(m, space, first, limits).and_then(|held| gather(m, held, head)) {
        Some(held) => {
            replace(m, held, head);
            m.count(Counter::KhugepagedCollapsed, 1);
            Collapsed::Done
        }
        None => {
            m.free_run(head, Order::LARGE, Mobility::Movable);
            Collapsed::Changed
        }
    }
}

/// The node that has most of the pages.
fn home<'a, P: Platform>(m: &'a Machine<P>, space: &Space<P>, first: Vpn) -> &'a Node<P> {
    let mut pages = vec![0; m.nodes.len()];
    for index in 0..LARGE_PAGES as u64 {
        if let Page::Resident(pfn) = space.entry(first.offset(index)).page() {
            pages[usize::from(m.node_of(pfn).zone.range().node.0)] += 1;
        }
    }
    let most = (0..pages.len()).max_by_key(|node| pages[*node]).expect("a machine has nodes");
    &m.nodes[most]
}

/// Holds all entries, if the block is still to be collapsed.
fn lock<'a, P: Platform>(
    m: &Machine<P>,
    space: &'a Space<P>,
    first: Vpn,
    limits: &Limits,
) -> Option<HeldBlock<'a, P>> {
    let small = |_: usize, entry: Entry| !entry.is_large_resident();
    for attempt in 0..TRIES {
        if let Some(held) = HeldBlock::lock(space, first, Pinned::Refuse, small) {
            let mut survey = Survey::default();
            held.entries().for_each(|entry| survey.note(entry, m.platform.recency()));
            return (judge(&survey, limits) == Verdict::Collapse).then_some(held);
        }
        m.platform.relax(attempt);
    }
    None
}

/// Fills the block of frames; `None`, with nothing changed, if that fails.
fn gather<'a, P: Platform>(
    m: &Machine<P>,
    held: HeldBlock<'a, P>,
    head: Pfn,
) -> Option<HeldBlock<'a, P>> {
    if !read(m, &held, head) {
        return None;
    }
    let from = contents(&held, head);
    let mut outcome = [Unmapped::Done; LARGE_PAGES];
    let mapped = |index: usize| held.entry(index).is_mapped();
    unmap_stretches(m, held.owner(0), &from, mapped, &mut outcome);
    if outcome.iter().any(|page| *page != Unmapped::Done) {
        give_up(m, held, &from, &outcome);
        return None;
    }
    for (index, to) in block_frames(head).into_iter().enumerate() {
        match held.entry(index).page() {
            Page::Resident(from) => m.platform.copy_frame(from, to),
            Page::Absent => m.platform.zero(&[to]),
            Page::Swapped(_) => {}
            Page::Poisoned => unreachable!("a block with such a page is not collapsed"),
        }
    }
    Some(held)
}

/// The frame with each page's contents: its old frame, or the frame in the block that a swapped
/// page is read into.
fn contents<P: Platform>(held: &HeldBlock<'_, P>, head: Pfn) -> [Pfn; LARGE_PAGES] {
    let mut from = block_frames(head);
    for (index, entry) in held.entries().enumerate() {
        if let Page::Resident(pfn) = entry.page() {
            from[index] = pfn;
        }
    }
    from
}

/// Swapped pages in adjacent slots, and their new frames.
struct Read {
    slot: Slot,
    to: FrameList,
}

impl Read {
    /// Adds a page, if its slot is the next one.
    fn extend(&mut self, slot: Slot, to: Pfn) -> bool {
        let next = Slot { index: self.slot.index + self.to.len() as u32, ..self.slot };
        let fits = slot == next && self.to.len() < RUN_PAGES_MAX;
        if fits {
            self.to.push(to);
        }
        fits
    }
}

/// Reads the swapped pages into the block. They keep their slots until the collapse is done.
fn read<P: Platform>(m: &Machine<P>, held: &HeldBlock<'_, P>, head: Pfn) -> bool {
    let mut reads: Vec<Read> = Vec::new();
    for (index, entry) in held.entries().enumerate() {
        let Page::Swapped(slot) = entry.page() else { continue };
        // Still being written; that cannot begin while the entry is held.
        if m.swap.is_cached(slot) {
            return false;
        }
        let to = head.offset(index as u32);
        if !reads.last_mut().is_some_and(|last| last.extend(slot, to)) {
            reads.push(Read { slot, to: FrameList::one(to) });
        }
    }
    let _phase = m.enter(phase::SWAP_IN);
    reads.sort_unstable_by_key(|read| (read.slot.device, read.slot.index));
    let same = |a: &Read, b: &Read| a.slot.device == b.slot.device;
    reads.chunk_by(same).flat_map(|reads| reads.chunks(BATCH_PAGES_MAX)).all(|batch| {
        let mut ios: Vec<Io> = batch.iter().map(|read| Io::new(read.slot.index, read.to)).collect();
        m.swap.read(&m.platform, &m.stats, batch[0].slot.device, &mut ios);
        ios.iter().all(|io| io.result.is_ok())
    })
}

/// Undoes a partial unmapping: maps pages again; pages that the program had dropped are absent.
fn give_up<P: Platform>(
    m: &Machine<P>,
    held: HeldBlock<'_, P>,
    from: &[Pfn; LARGE_PAGES],
    outcome: &[Unmapped; LARGE_PAGES],
) {
    let mut now: [Entry; LARGE_PAGES] = std::array::from_fn(|index| held.entry(index));
    for (index, entry) in now.iter_mut().enumerate() {
        if outcome[index] == Unmapped::Vanished {
            m.abandon(from[index]);
            *entry = Entry::ABSENT;
        }
    }
    let ours = |index: usize, now: &[Entry]| now[index].is_mapped() && is_unmapped(outcome[index]);
    let mut at = 0;
    while at < LARGE_PAGES {
        let dirty = now[at].is_dirty();
        let goes = |index: &usize| ours(*index, &now) && now[*index].is_dirty() == dirty;
        let len = (at..LARGE_PAGES).take_while(goes).count();
        if len == 0 {
            at += 1;
            continue;
        }
        let protection = if dirty { Protection::ReadWrite } else { Protection::ReadOnly };
        let owner = held.owner(at);
        let frames = &from[at..at + len];
        let progress = m.platform.map(owner.space, owner.vpn, frames, protection);
        at += progress.done;
        if progress.stop.is_some() {
            m.count(Counter::MapRefused, 1);
            now[at] = now[at].revoked();
            at += 1;
        }
    }
    held.release(|index, _| now[index]);
}

/// Whether a page was unmapped and has its contents.
fn is_unmapped(outcome: Unmapped) -> bool {
    outcome == Unmapped::Done
}

/// Gives the pages the filled block, and frees their old frames and slots.
fn replace<P: Platform>(m: &Machine<P>, held: HeldBlock<'_, P>, head: Pfn) {
    for entry in held.entries() {
        match entry.page() {
            Page::Absent => {}
            Page::Resident(pfn) => m.abandon(pfn),
            Page::Swapped(slot) => m.release_slot(slot),
            Page::Poisoned => unreachable!("a block with such a page is not collapsed"),
        }
    }
    install(m, &held, head);
    let frames = block_frames(head);
    let mapped = map_all(m, &held, &frames);
    release(m, held, |index, was| {
        // Large pages are mapped writable and have no slot: always dirty.
        let entry = Entry::resident(frames[index]).dirty().large();
        let entry = if index < mapped { entry.mapped() } else { entry };
        if was.is_accessed() { entry.accessed() } else { entry }
    });
}
