//! Faults that bring a whole large page: at first touch, from its cluster, or mapped again.
//!
//! If that is not possible the fault continues with its single page. Large pages are mapped
//! writable and keep no slot, so they are always dirty.

use super::access::{Fault, Served};
use crate::alloc;
use crate::large::{block_frames, install, map_all, release};
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, HeldBlock, Page, Pinned, Space, block_of};
use crate::stats::Counter;
use highwater_platform::{Io, Platform};
use highwater_units::{Direction, LARGE_PAGES, Order, Pfn, Slot, Vpn};

/// Blocks that a budget must have for large pages.
const BLOCKS_MIN: usize = 4;

/// How a fault is served for its block.
enum Outcome {
    /// Not for the block: for its page only.
    Small,
    /// First touch: zeroed frames.
    Zero,
    /// Read from the cluster that begins with this slot.
    Cluster(Slot),
    /// In memory, unmapped.
    Remap,
}

/// Serves a fault for its whole block; `None`: it must be served for its page.
pub(super) fn serve<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault) -> Option<Served> {
    match decide(m, space, fault) {
        Outcome::Small => None,
        Outcome::Zero => zero(m, space, fault.vpn),
        Outcome::Cluster(slot) => fetch(m, space, fault.vpn, slot),
        Outcome::Remap => remap(m, space, fault.vpn),
    }
}

fn decide<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault) -> Outcome {
    let first = block_of(fault.vpn);
    let within =
        fault.within.first <= first && first.offset(LARGE_PAGES as u64) <= fault.within.end;
    let anonymous = space.backing() == Backing::Anonymous && space.order() == Order(0);
    let enough = m.frames.len() >= BLOCKS_MIN * LARGE_PAGES;
    if !m.config.large_pages || !anonymous || !within || !enough {
        return Outcome::Small;
    }
    let entry = space.entry(fault.vpn);
    match entry.page() {
        Page::Absent => Outcome::Zero,
        Page::Resident(_) if entry.is_large() && !entry.is_mapped() => Outcome::Remap,
        Page::Swapped(slot) if entry.is_large() => {
            match slot.index.checked_sub((fault.vpn.0 - first.0) as u32) {
                Some(index) => Outcome::Cluster(Slot { index, ..slot }),
                None => Outcome::Small,
            }
        }
        Page::Resident(_) | Page::Swapped(_) | Page::Poisoned => Outcome::Small,
    }
}

/// First touch of a block: zeroed frames.
fn zero<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> Option<Served> {
    let absent = |_, entry: Entry| entry.page() == Page::Absent;
    let block = HeldBlock::lock(space, block_of(vpn), Pinned::Accept, absent)?;
    let Some(head) = alloc::block(m) else {
        m.count(Counter::ThpFaultFallback, 1);
        return None;
    };
    m.platform.zero(&block_frames(head));
    m.count(Counter::PgFault, 1);
    m.count(Counter::PgZero, LARGE_PAGES as u64);
    m.count(Counter::ThpFaultAlloc, 1);
    install(m, &block, head);
    Some(map(m, block, head, vpn).unwrap_or(Served::Minor))
}

/// Reads the block from its cluster and frees the slots: the next write needs a whole cluster too.
fn fetch<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn, slot: Slot) -> Option<Served> {
    let at = |index: usize| Slot { index: slot.index + index as u32, ..slot };
    let there = |index, entry: Entry| entry.is_large() && entry.page() == Page::Swapped(at(index));
    let fallback = || m.count(Counter::ThpSwpInFallback, 1);
    let Some(block) = HeldBlock::lock(space, block_of(vpn), Pinned::Refuse, there) else {
        fallback();
        return None;
    };
    // Checked while the entries are held, so that it stays true.
    let cached = (0..LARGE_PAGES).any(|index| m.swap.is_cached(at(index)));
    let head = if cached { None } else { alloc::block(m) };
    let Some(head) = head.filter(|head| read(m, *head, slot)) else {
        fallback();
        return None;
    };
    m.count(Counter::PgFault, 1);
    m.count(Counter::PgMajFault, 1);
    m.count(Counter::SwapRa, LARGE_PAGES as u64 - 1);
    m.count(Counter::ThpSwpIn, 1);
    (0..LARGE_PAGES).for_each(|index| m.release_slot(at(index)));
    install(m, &block, head);
    Some(map(m, block, head, vpn).unwrap_or(Served::Major))
}

/// Reads a block of frames; returns whether that succeeded. Frees them if it failed: the fault then
/// reads its page alone, and returns the error if that page cannot be read.
fn read<P: Platform>(m: &Machine<P>, head: Pfn, slot: Slot) -> bool {
    let _phase = m.enter(phase::SWAP_IN);
    let mut io = [Io::block(slot.index, head, Order::LARGE)];
    m.swap.read(&m.platform, &m.stats, slot.device, &mut io);
    let done = io[0].result.is_ok();
    if !done {
        m.free(&block_frames(head));
    }
    done
}

/// Maps a block that was unmapped to see whether it is used.
fn remap<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> Option<Served> {
    let Page::Resident(head) = space.entry(block_of(vpn)).page() else { return None };
    let unmapped = |index: usize, entry: Entry| {
        let there = entry.page() == Page::Resident(head.offset(index as u32));
        there && entry.is_large() && !entry.is_mapped()
    };
    let block = HeldBlock::lock(space, block_of(vpn), Pinned::Accept, unmapped)?;
    m.count(Counter::PgFault, 1);
    m.count(Counter::PgRefault, LARGE_PAGES as u64);
    Some(map(m, block, head, vpn).unwrap_or(Served::Minor))
}

/// Maps the block; pages that cannot be mapped now stay in memory. Returns [`Served::Again`] if the
/// wanted page is one of these.
fn map<P: Platform>(
    m: &Machine<P>,
    block: HeldBlock<'_, P>,
    head: Pfn,
    wanted: Vpn,
) -> Option<Served> {
    let (owner, frames) = (block.owner(0), block_frames(head));
    let mapped = map_all(m, &block, &frames);
    let next = owner.vpn.offset(LARGE_PAGES as u64);
    m.swap.streams.expect(owner.space, next, Direction::Up, 1, 0);
    release(m, block, |index, _| {
        let entry = Entry::resident(frames[index]).dirty().large();
        if index < mapped { entry.mapped().accessed() } else { entry }
    });
    let there = (wanted.0 - owner.vpn.0) < mapped as u64;
    (!there).then_some(Served::Again)
}
