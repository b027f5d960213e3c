//! Faults that bring a whole large page: at first touch, from its cluster, or mapped again.
//!
//! Where that is not possible the fault is served as any other, for its page and a window. Large
//! pages are mapped writable and keep no slot, so they are always dirty.

use super::{Fault, Served};
use crate::alloc;
use crate::large::{block_frames, install, map_all, release};
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, HeldBlock, Page, Pinned, Space, block_of};
use crate::stats::Counter;
use crate::swap::Source;
use highwater_platform::{Io, Platform};
use highwater_units::{LARGE_PAGES, Order, Pfn, Slot, Vpn};

/// Blocks that a budget must have for one page to take a whole one.
const BLOCKS_MIN: usize = 4;

/// What a fault on a page could bring.
enum Want {
    /// The page, as ever.
    Small,
    /// A block of zeros.
    Zeros,
    /// The block that went to the cluster which begins with this slot.
    Cluster(Slot),
    /// The block is in memory, unmapped.
    Remap,
}

/// Serves a fault for the whole block, if that can be.
pub(super) fn resolve<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    fault: Fault,
) -> Option<Served> {
    match want(m, space, fault) {
        Want::Small => None,
        Want::Zeros => zero(m, space, fault.vpn),
        Want::Cluster(slot) => fetch(m, space, fault.vpn, slot),
        Want::Remap => remap(m, space, fault.vpn),
    }
}

fn want<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault) -> Want {
    let first = block_of(fault.vpn);
    let within =
        fault.within.first <= first && first.offset(LARGE_PAGES as u64) <= fault.within.end;
    let anonymous = space.backing() == Backing::Anonymous && space.order() == Order(0);
    let enough = m.frames.len() >= BLOCKS_MIN * LARGE_PAGES;
    if !m.config.large_pages || !anonymous || !within || !enough {
        return Want::Small;
    }
    let entry = space.entry(fault.vpn);
    match entry.page() {
        Page::Absent => Want::Zeros,
        Page::Resident(_) if entry.is_large() && !entry.is_mapped() => Want::Remap,
        Page::Swapped(slot) if entry.is_large() => {
            match slot.index.checked_sub((fault.vpn.0 - first.0) as u32) {
                Some(index) => Want::Cluster(Slot { index, ..slot }),
                None => Want::Small,
            }
        }
        Page::Resident(_) | Page::Swapped(_) => Want::Small,
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

/// From its cluster. The slots are free afterwards: the next write is as long, and as adjacent.
fn fetch<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn, slot: Slot) -> Option<Served> {
    let at = |index: usize| Slot { index: slot.index + index as u32, ..slot };
    let there = |index, entry: Entry| entry.is_large() && entry.page() == Page::Swapped(at(index));
    let fallback = || m.count(Counter::ThpSwpInFallback, 1);
    let Some(block) = HeldBlock::lock(space, block_of(vpn), Pinned::Refuse, there) else {
        fallback();
        return None;
    };
    // Asked while the entries are held: it stays so.
    let head = match (0..LARGE_PAGES).any(|index| m.swap.is_cached(at(index))) {
        true => None,
        false => alloc::block(m),
    };
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

/// Fills a block of frames; frees it if that fails, for the fault to find out which page it was.
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

/// Unmapped to see whether it is used: it is.
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

/// Maps the block; pages that cannot be mapped now stay in memory. Says so if the page that is
/// wanted is one of these.
fn map<P: Platform>(
    m: &Machine<P>,
    block: HeldBlock<'_, P>,
    head: Pfn,
    wanted: Vpn,
) -> Option<Served> {
    let (owner, frames) = (block.owner(0), block_frames(head));
    let mapped = map_all(m, &block, &frames);
    let next = owner.vpn.offset(LARGE_PAGES as u64);
    m.swap.streams.expect(owner.space, next, 1, Source::Memory);
    release(m, block, |index, _| {
        let entry = Entry::resident(frames[index]).dirty().large();
        match index < mapped {
            true => entry.mapped().accessed(),
            false => entry,
        }
    });
    let there = (wanted.0 - owner.vpn.0) < mapped as u64;
    (!there).then_some(Served::Again)
}
