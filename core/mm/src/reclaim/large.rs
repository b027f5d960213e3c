//! Evicts large pages: probed, then unmapped, written and freed whole; split where only parts of
//! them are in use, or where many of their pages are zeros.
//!
//! ```text
//! head of 512 frames --> lock the block --> half of its pages used: back to the active list
//!                                       \-> some used: split, each page goes by its own use
//!                                       \-> unmap --> a page is busy or gone: split
//!                                                \--> many are zeros: split, and these dropped
//!                                                \--> no free cluster: split, small pages next
//!                                                 \-> one cluster, one write --> 512 frames free
//! ```
//! The use of single pages is known where accesses pass through the entries, and where each page
//! was mapped by a fault of its own. A block that one fault mapped whole counts as used whole.
//! A fault on a page of a block during its write claims that frame from the swap cache; the page is
//! small from then on.

use super::reclaimer::Reclaimer;
use crate::frame::{Owner, Place, Writeback};
use crate::large::{Tails, block_frames};
use crate::lru::List;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::run::{Unmapped, unmap_stretches};
use crate::space::{Entry, HeldBlock, Page, Pinned, block_of};
use crate::stats::Counter;
use crate::write_completion::{Outcome, complete_cached, restore_cached};
use highwater_platform::{Io, Platform, Recency};
use highwater_units::{FrameBatch, LARGE_PAGES, Order, Pfn, Slot};

/// Divides a batch: small pages, and the first frames of large ones. The result is a hint, since
/// the entries are not locked.
pub(super) fn split_batch<P: Platform>(
    m: &Machine<P>,
    batch: FrameBatch,
) -> (FrameBatch, FrameBatch) {
    let [mut small, mut large] = [FrameBatch::default(); 2];
    if !m.config.large_pages {
        return (batch, large);
    }
    for pfn in batch.iter() {
        let is_large = |owner: Owner| m.space(owner.space).entry(owner.vpn).is_large_resident();
        if m.frames.owner(*pfn).is_some_and(is_large) {
            large.push(*pfn);
        } else {
            small.push(*pfn);
        }
    }
    (small, large)
}

/// A locked large page: its entries, and its frames.
struct Block<'a, P: Platform> {
    held: HeldBlock<'a, P>,
    frames: [Pfn; LARGE_PAGES],
}

impl<'a, P: Platform> Block<'a, P> {
    /// Locks the large page whose first frame is `head`, if none of its entries is locked or
    /// pinned.
    fn lock(m: &'a Machine<P>, head: Pfn) -> Option<Block<'a, P>> {
        let owner = m.frames.owner(head).filter(|owner| owner.vpn == block_of(owner.vpn))?;
        let frames = block_frames(head);
        let whole = |index: usize, entry: Entry| {
            entry.is_large() && entry.page() == Page::Resident(frames[index])
        };
        let held = HeldBlock::lock(m.space(owner.space), owner.vpn, Pinned::Refuse, whole)?;
        Some(Block { held, frames })
    }

    /// Unmaps all its pages; returns the result of each.
    fn unmap(&self, m: &Machine<P>) -> [Unmapped; LARGE_PAGES] {
        let mut outcome = [Unmapped::Done; LARGE_PAGES];
        let mapped = |index: usize| self.held.entry(index).is_mapped();
        unmap_stretches(m, self.held.owner(0), &self.frames, mapped, &mut outcome);
        outcome
    }

    /// Makes its pages small ones, each on the list that `list_of` gives for its index, except the
    /// first, which stays isolated.
    fn split(
        self,
        m: &Machine<P>,
        outcome: &[Unmapped; LARGE_PAGES],
        list_of: impl Fn(usize) -> List,
    ) {
        let mut tails = [List::InactiveAnon, List::ActiveAnon].map(Tails::new);
        for (index, pfn) in self.frames.iter().enumerate() {
            let tails = &mut tails[list_of(index) as usize];
            tails.list_full(m);
            tails.isolate(m, index, *pfn);
            if outcome[index] == Unmapped::Vanished {
                m.frames.set_owner(*pfn, None);
                let orphaned = m.frames.place(*pfn).change(Place::Isolated, Place::Orphan);
                debug_assert_eq!(orphaned, Ok(()), "{pfn:?} is isolated by this thread");
            }
        }
        tails.iter_mut().for_each(|tails| tails.list(m));
        self.held.release(|index, was| match outcome[index] {
            Unmapped::Done => was.unmapped().small(),
            Unmapped::Busy => was.small(),
            Unmapped::Vanished => Entry::ABSENT,
        });
        m.count(Counter::ThpSplitPage, 1);
    }
}

/// The result of probing a large page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Its entries show from now on whether it is used.
    Done,
    /// It is locked or pinned.
    Busy,
}

/// Probes a large page, whose first frame the caller has isolated.
pub(super) fn probe<P: Platform>(m: &Machine<P>, head: Pfn) -> Probe {
    let Some(block) = Block::lock(m, head) else { return Probe::Busy };
    if m.platform.recency() == Recency::AccessedBit {
        block.held.release(|_, was| was.idle());
        return Probe::Done;
    }
    let outcome = block.unmap(m);
    if outcome.iter().all(|page| *page == Unmapped::Done) {
        block.held.release(|_, was| was.unmapped());
    } else {
        block.split(m, &outcome, |_| List::ActiveAnon);
    }
    Probe::Done
}

/// Evicts a large page, whose first frame the caller has isolated from the inactive list; returns
/// the frames freed.
pub(super) fn evict<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    head: Pfn,
    reclaimer: &mut Reclaimer<'_, P>,
) -> u32 {
    let back = |list| m.free(&node.lru.putback(&m.frames, &[head], list));
    let Some(block) = Block::lock(m, head) else {
        m.count(Counter::PgRotated, 1);
        back(List::ActiveAnon);
        return 0;
    };
    let used = used(&block, m.platform.recency());
    match warmth(used.iter().filter(|used| **used).count()) {
        Warmth::Hot => {
            drop(block);
            m.count(Counter::PgActivate, LARGE_PAGES as u64);
            back(List::ActiveAnon);
            return 0;
        }
        Warmth::Mixed => {
            let list_of =
                |index: usize| if used[index] { List::ActiveAnon } else { List::InactiveAnon };
            // No page was unmapped.
            block.split(m, &[Unmapped::Busy; LARGE_PAGES], list_of);
            m.count(Counter::ThpColdSplit, 1);
            m.count(Counter::PgActivate, used.iter().filter(|used| **used).count() as u64);
            back(list_of(0));
            return 0;
        }
        Warmth::Cold => {}
    }
    let outcome = block.unmap(m);
    if outcome.iter().any(|page| *page != Unmapped::Done) {
        block.split(m, &outcome, |_| List::ActiveAnon);
        back(List::ActiveAnon);
        return 0;
    }
    let zeros = block.frames.map(|pfn| m.platform.is_zero(pfn));
    if zeros.iter().filter(|zero| **zero).count() > m.config.khugepaged.max_ptes_none as usize {
        return drop_zeros(m, node, block, &zeros);
    }
    let phase = m.enter(phase::SWAP_OUT);
    let Some(slot) = m.swap.alloc_block(m.cpu(), head, Order::LARGE) else {
        drop(phase);
        m.count(Counter::ThpSwpOutFallback, 1);
        // Its pages are evicted next, one by one.
        block.split(m, &outcome, |_| List::InactiveAnon);
        back(List::InactiveAnon);
        return 0;
    };
    write_out(m, node, block, head, slot, reclaimer)
}

/// Which pages are in use.
fn used<P: Platform>(block: &Block<'_, P>, recency: Recency) -> [bool; LARGE_PAGES] {
    std::array::from_fn(|index| match recency {
        Recency::AccessedBit => block.held.entry(index).is_accessed(),
        Recency::Unmapping => block.held.entry(index).is_mapped(),
    })
}

/// How much of a large page at the end of the inactive list is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warmth {
    /// At least half of its pages: it stays whole.
    Hot,
    /// Some pages: the used pages stay, as small ones.
    Mixed,
    /// None.
    Cold,
}

/// Decides by the number of pages in use. The kernel keeps a whole block for one used page; here
/// the unused ones would take a notable part of the budget. khugepaged's threshold is higher, so it
/// does not at once collapse a block that was split here.
fn warmth(used: usize) -> Warmth {
    match used {
        0 => Warmth::Cold,
        used if used < LARGE_PAGES / 2 => Warmth::Mixed,
        _ => Warmth::Hot,
    }
}

/// Splits an unmapped block, drops its pages of zeros, which need neither frames nor slots, and
/// lists the others to be evicted one by one (the kernel's shrinker of underused THPs, 6.12).
/// Returns the frames freed.
fn drop_zeros<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    block: Block<'_, P>,
    zeros: &[bool; LARGE_PAGES],
) -> u32 {
    let fates = zeros.map(|zero| if zero { Fate::Free } else { Fate::Listed });
    // While the entries are held: a thread that drops one of the pages next finds its frame listed.
    let freed = free_or_list(m, node, &block.frames, &fates, List::InactiveAnon);
    block.held.release(|index, was| match fates[index] {
        Fate::Free => Entry::ABSENT,
        Fate::Listed => was.unmapped().small(),
    });
    m.count(Counter::ThpSplitPage, 1);
    m.count(Counter::ThpUnderusedSplit, 1);
    freed
}

/// Writes an unmapped block to its slots and completes the write; returns the frames freed.
fn write_out<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    block: Block<'_, P>,
    head: Pfn,
    slot: Slot,
    reclaimer: &mut Reclaimer<'_, P>,
) -> u32 {
    let at = |index: usize| Slot { index: slot.index + index as u32, ..slot };
    let frames = block.frames;
    frames.iter().for_each(|pfn| m.frames.set_writeback(*pfn, Writeback::Running));
    block.held.release(|index, _| Entry::swapped(at(index)).large());
    let mut io = [Io::block(slot.index, head, Order::LARGE)];
    m.swap.write(&m.platform, &m.stats, slot.device, &mut io);
    let mut fates = [Fate::Listed; LARGE_PAGES];
    let mut note = |pfn: Pfn, outcome| {
        fates[(pfn.0 - head.0) as usize] = match outcome {
            Outcome::Freed => Fate::Free,
            Outcome::Claimed | Outcome::Clean | Outcome::Dirty => Fate::Listed,
        };
    };
    if io[0].result.is_ok() {
        m.count(Counter::ThpSwpOut, 1);
    }
    complete_cached(m, slot.device, &io, &mut note);
    if io[0].result.is_err() {
        reclaimer.complete_all(m, node);
        restore_cached(m, slot.device, &io, &mut note);
    }
    free_or_list(m, node, &frames, &fates, List::ActiveAnon)
}

/// Where a frame of a former large page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is free.
    Free,
    /// It holds a small page.
    Listed,
}

/// Frees or lists the frames of a former large page; returns how many it freed.
fn free_or_list<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    frames: &[Pfn],
    fates: &[Fate],
    list: List,
) -> u32 {
    let (mut free, mut listed, mut freed) = (FrameBatch::default(), FrameBatch::default(), 0);
    for (index, (pfn, fate)) in frames.iter().zip(fates).enumerate() {
        let from = if index == 0 { Place::Isolated } else { Place::Tail };
        match (fate, m.frames.place(*pfn).change(from, Place::Isolated)) {
            (Fate::Free, moved) => {
                debug_assert_eq!(moved, Ok(()), "{pfn:?} is isolated by this thread");
                m.frames.set_owner(*pfn, None);
                let off = m.frames.place(*pfn).change(Place::Isolated, Place::Off);
                debug_assert_eq!(off, Ok(()), "{pfn:?} is isolated by this thread");
                free.push(*pfn);
            }
            // An orphan if a fault claimed it and the program dropped it since: putback frees it.
            (Fate::Listed, _) => listed.push(*pfn),
        }
        if free.is_full() || index + 1 == frames.len() {
            freed += free.len() as u32;
            m.free(&free);
            free = FrameBatch::default();
        }
        if listed.is_full() || index + 1 == frames.len() {
            m.free(&node.lru.putback(&m.frames, &listed, list));
            listed = FrameBatch::default();
        }
    }
    freed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_half_of_its_pages_in_use_stays_whole() {
        let table = [
            (0, Warmth::Cold),
            (1, Warmth::Mixed),
            (255, Warmth::Mixed),
            (256, Warmth::Hot),
            (512, Warmth::Hot),
        ];
        for (used, expected) in table {
            assert_eq!(warmth(used), expected, "{used}");
        }
    }
}
