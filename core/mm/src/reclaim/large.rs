//! Large pages on their way out: asked whether they are used, then unmapped, written and freed
//! whole, or split where only parts of them are in use, or are more than zeros.
//!
//! ```text
//! head of 512 frames --> lock the block --> most pages used: back to the active list
//!                                       \-> some: split, the others are candidates of their own
//!                                       \-> unmap --> a page is busy or gone: split
//!                                                \--> many are zeros: split, and these dropped
//!                                                \--> no free cluster: split, small pages next
//!                                                 \-> one cluster, one write --> 512 frames free
//! ```
//! Which pages are used is known where accesses pass through the entries, and where each is mapped
//! by a fault of its own. A block that a fault mapped whole counts as used whole.
//! A page that is wanted while its block is written is claimed from the swap cache by the fault,
//! and is a page of its own from then on.

use super::balance::Reclaimer;
use super::evict::{Unwritten, restore};
use crate::frame::{Owner, Place, Writeback};
use crate::large::{Tails, block_frames};
use crate::lru::List;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::run::{Unmapped, unmap_stretches};
use crate::space::{Entry, HeldBlock, Page, Pinned, block_of};
use crate::stats::Counter;
use crate::swap::Cached;
use highwater_platform::{Io, Platform, Recency};
use highwater_units::{FrameBatch, LARGE_PAGES, Order, Pfn, Slot};

/// The pages of a batch that are small, and the first frames of large ones, as far as one can tell
/// without their locks.
pub(super) fn take_large<P: Platform>(
    m: &Machine<P>,
    batch: FrameBatch,
) -> (FrameBatch, FrameBatch) {
    let [mut small, mut large] = [FrameBatch::default(); 2];
    if !m.config.large_pages {
        return (batch, large);
    }
    for pfn in batch.iter() {
        let is_large = |owner: Owner| m.space(owner.space).entry(owner.vpn).is_large_resident();
        match m.frames.owner(*pfn).is_some_and(is_large) {
            true => large.push(*pfn),
            false => small.push(*pfn),
        }
    }
    (small, large)
}

/// A large page whose entries are held, and its frames.
struct Block<'a, P: Platform> {
    held: HeldBlock<'a, P>,
    frames: [Pfn; LARGE_PAGES],
}

impl<'a, P: Platform> Block<'a, P> {
    /// Locks the large page whose first frame is `head`, if nobody is at one of its pages.
    fn lock(m: &'a Machine<P>, head: Pfn) -> Option<Block<'a, P>> {
        let owner = m.frames.owner(head).filter(|owner| owner.vpn == block_of(owner.vpn))?;
        let frames = block_frames(head);
        let whole = |index: usize, entry: Entry| {
            entry.is_large() && entry.page() == Page::Resident(frames[index])
        };
        let held = HeldBlock::lock(m.space(owner.space), owner.vpn, Pinned::Refuse, whole)?;
        Some(Block { held, frames })
    }

    /// Takes all its pages from the program; what came of each.
    fn unmap(&self, m: &Machine<P>) -> [Unmapped; LARGE_PAGES] {
        let mut outcome = [Unmapped::Yes; LARGE_PAGES];
        let mapped = |index: usize| self.held.entry(index).is_mapped();
        unmap_stretches(m, self.held.owner(0), &self.frames, mapped, &mut outcome);
        outcome
    }

    /// Makes its pages pages of their own, each on the list that `list_of` says by its place, but
    /// for the first, which is the caller's.
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
                debug_assert_eq!(orphaned, Ok(()), "{pfn:?} is in the hands of this thread");
            }
        }
        tails.iter_mut().for_each(|tails| tails.list(m));
        self.held.release(|index, was| match outcome[index] {
            Unmapped::Yes => was.unmapped().small(),
            Unmapped::Busy => was.small(),
            Unmapped::Vanished => Entry::ABSENT,
        });
        m.count(Counter::ThpSplitPage, 1);
    }
}

/// What comes of asking a large page whether it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aged {
    /// It shows from now on.
    Asked,
    /// Its first frame goes back where it was.
    Rotated,
}

/// Asks a large page, whose first frame the caller has isolated, whether it is used.
pub(super) fn age<P: Platform>(m: &Machine<P>, head: Pfn) -> Aged {
    let Some(block) = Block::lock(m, head) else { return Aged::Rotated };
    if m.platform.recency() == Recency::AccessedBit {
        block.held.release(|_, was| was.idle());
        return Aged::Asked;
    }
    let outcome = block.unmap(m);
    match outcome.iter().all(|page| *page == Unmapped::Yes) {
        true => block.held.release(|_, was| was.unmapped()),
        false => block.split(m, &outcome, |_| List::ActiveAnon),
    }
    Aged::Asked
}

/// Evicts a large page, whose first frame the caller has isolated from the inactive list; returns
/// the frames freed.
pub(super) fn evict<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    head: Pfn,
    who: &mut Reclaimer<'_, P>,
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
            let list_of = |index: usize| match used[index] {
                true => List::ActiveAnon,
                false => List::InactiveAnon,
            };
            // Nothing was unmapped.
            block.split(m, &[Unmapped::Busy; LARGE_PAGES], list_of);
            m.count(Counter::ThpColdSplit, 1);
            m.count(Counter::PgActivate, used.iter().filter(|used| **used).count() as u64);
            back(list_of(0));
            return 0;
        }
        Warmth::Cold => {}
    }
    let outcome = block.unmap(m);
    if outcome.iter().any(|page| *page != Unmapped::Yes) {
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
        // They go next, one by one.
        block.split(m, &outcome, |_| List::InactiveAnon);
        back(List::InactiveAnon);
        return 0;
    };
    write_out(m, node, block, head, slot, who)
}

/// Which pages are in use.
fn used<P: Platform>(block: &Block<'_, P>, recency: Recency) -> [bool; LARGE_PAGES] {
    std::array::from_fn(|index| match recency {
        Recency::AccessedBit => block.held.entry(index).is_accessed(),
        Recency::Unmapping => block.held.entry(index).is_mapped(),
    })
}

/// How a large page at the end of the inactive list is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warmth {
    /// Most of it is: it stays as it is.
    Hot,
    /// Parts are: these stay, by themselves.
    Mixed,
    /// Nothing is.
    Cold,
}

/// Decides, by how many pages are in use. The kernel keeps a block for one of them; here the others
/// would take the memory of who uses his. khugepaged collapses what it may again only with more.
fn warmth(used: usize) -> Warmth {
    match used {
        0 => Warmth::Cold,
        used if used < LARGE_PAGES / 2 => Warmth::Mixed,
        _ => Warmth::Hot,
    }
}

/// Splits an unmapped block, drops its pages of zeros, which need neither frames nor slots, and
/// leaves the others to go one by one (underused: the kernel's thp shrinker, 6.12); returns the
/// frames freed.
fn drop_zeros<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    block: Block<'_, P>,
    zeros: &[bool; LARGE_PAGES],
) -> u32 {
    let fates = zeros.map(|zero| if zero { Fate::Free } else { Fate::Listed });
    // While the entries are held: who drops a page next finds its frame where it belongs.
    let freed = settle(m, node, &block.frames, &fates, List::InactiveAnon);
    block.held.release(|index, was| match fates[index] {
        Fate::Free => Entry::ABSENT,
        Fate::Listed => was.unmapped().small(),
    });
    m.count(Counter::ThpSplitPage, 1);
    m.count(Counter::ThpUnderusedSplit, 1);
    freed
}

/// Writes an unmapped block to its slots and frees what nobody wanted meanwhile.
fn write_out<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    block: Block<'_, P>,
    head: Pfn,
    slot: Slot,
    who: &mut Reclaimer<'_, P>,
) -> u32 {
    let at = |index: usize| Slot { index: slot.index + index as u32, ..slot };
    let frames = block.frames;
    frames.iter().for_each(|pfn| m.frames.set_writeback(*pfn, Writeback::Running));
    block.held.release(|index, _| Entry::swapped(at(index)).large());
    let mut io = [Io::block(slot.index, head, Order::LARGE)];
    m.swap.write(&m.platform, &m.stats, slot.device, &mut io);
    let mut fates = [Fate::Listed; LARGE_PAGES];
    match io[0].result {
        Ok(()) => {
            m.count(Counter::ThpSwpOut, 1);
            for (first, list) in io[0].frames.lists() {
                m.swap.uncache(&m.platform, at(first), &list, |index, cached| {
                    fates[first + index] = match cached {
                        Cached::Removed => Fate::Free,
                        Cached::Claimed => Fate::Listed,
                    };
                });
            }
            m.set_written(frames.into_iter(), Writeback::Idle);
        }
        Err(_) => {
            m.set_written(frames.into_iter(), Writeback::Failed);
            // Who holds an entry of the block may be waiting for a page under way.
            who.finish_all(m, node);
            for (index, pfn) in frames.iter().enumerate() {
                fates[index] = match restore(m, at(index), *pfn) {
                    Unwritten::Dropped => Fate::Free,
                    Unwritten::Claimed | Unwritten::Restored => Fate::Listed,
                };
            }
        }
    }
    settle(m, node, &frames, &fates, List::ActiveAnon)
}

/// Where a frame of what was a large page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is free.
    Free,
    /// It holds a page of its own.
    Listed,
}

/// Frees or lists the frames of what was a large page; returns how many are free.
fn settle<P: Platform>(
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
                debug_assert_eq!(moved, Ok(()), "{pfn:?} is nobody else's");
                m.frames.set_owner(*pfn, None);
                let off = m.frames.place(*pfn).change(Place::Isolated, Place::Off);
                debug_assert_eq!(off, Ok(()), "{pfn:?} is in the hands of this thread");
                free.push(*pfn);
            }
            // Claimed by a fault, and dropped by its program since then: putting it back frees it.
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
    fn a_block_stays_whole_for_half_of_its_pages() {
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
