//! Isolated pages, sorted into runs of neighbours, locked, and unmapped together: for reclaim, and
//! for who moves them to other frames.
//!
//! ```text
//! batch of isolated frames -> by owner -> Run: held entries, and their frames -> unmapped, each
//! ```
//! Locking: entries are only tried for. A run's frames are in the hands of the thread that isolated
//! them; their records change under their entries.

use crate::frame::{Owner, Place};
use crate::machine::Machine;
use crate::space::{Entry, Held, Page, Pinned};
use highwater_platform::{Platform, Stop};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, FrameList, Order, Pfn, RUN_PAGES_MAX};

/// A run of neighbouring pages, locked, with their frames.
pub(crate) struct Run<'a, P: Platform> {
    /// Their entries.
    pub(crate) held: Held<'a, P>,
    /// Their frames, isolated by this thread.
    pub(crate) frames: FrameList,
}

/// What came of unmapping a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmapped {
    /// The program cannot reach it; the frame has its contents.
    Done,
    /// It is pinned by the system, or shared: still mapped.
    Busy,
    /// The program had dropped it: the frame's contents are nobody's.
    Vanished,
}

/// Groups a batch by owner and locks each group's entries. Calls `act` with every run, one at a
/// time, and returns the pages that could not be locked or are nobody's any more.
pub(crate) fn each_run<'a, P: Platform>(
    m: &'a Machine<P>,
    mut batch: FrameBatch,
    mut act: impl FnMut(Run<'a, P>),
) -> FrameBatch {
    sort_by_owner(m, &mut batch);
    let mut left = FrameBatch::default();
    let mut at = 0;
    while let Some(pfn) = batch.get(at) {
        at += 1;
        let Some(mut run) = lock_first(m, *pfn) else {
            left.push(*pfn);
            continue;
        };
        while let Some(next) = batch.get(at).filter(|next| lock_next(m, &mut run, **next)) {
            run.frames.push(*next);
            at += 1;
        }
        act(run);
    }
    left
}

/// Brings neighbours together. Owners change while this looks, and sorting panics at an order that
/// does: so each is read once.
fn sort_by_owner<P: Platform>(m: &Machine<P>, batch: &mut FrameBatch) {
    let mut pages = [(None, Pfn(0)); BATCH_PAGES_MAX];
    let pages = &mut pages[..batch.len()];
    for (page, pfn) in pages.iter_mut().zip(batch.iter()) {
        *page = (m.frames.owner(*pfn), *pfn);
    }
    pages.sort_unstable();
    for (pfn, (_, sorted)) in batch.iter_mut().zip(pages.iter()) {
        *pfn = *sorted;
    }
}

fn lock_first<P: Platform>(m: &Machine<P>, pfn: Pfn) -> Option<Run<'_, P>> {
    let owner = m.frames.owner(pfn)?;
    // Those of other orders are one by one: `crate::folio`.
    let space = Some(m.space(owner.space)).filter(|space| space.order() == Order(0))?;
    let held = Held::lock(space, owner.vpn, Pinned::Refuse)?;
    // The page may have been dropped, or swapped out and in again, before it was locked.
    let small = |entry: Entry| entry.page() == Page::Resident(pfn) && !entry.is_large();
    small(held.entries()[0]).then(|| Run { held, frames: FrameList::one(pfn) })
}

fn lock_next<P: Platform>(m: &Machine<P>, run: &mut Run<'_, P>, pfn: Pfn) -> bool {
    let next: Owner = run.held.owner(run.held.len());
    m.frames.owner(pfn) == Some(next)
        && run.held.extend(Pinned::Refuse, |entry| {
            entry.page() == Page::Resident(pfn) && !entry.is_large()
        })
}

/// Unmaps the `mapped` pages from `first` on, whose entries are held, each stretch of them with one
/// call; says of those what came of it.
pub(crate) fn unmap_stretches<P: Platform>(
    m: &Machine<P>,
    first: Owner,
    frames: &[Pfn],
    mapped: impl Fn(usize) -> bool,
    outcome: &mut [Unmapped],
) {
    let mut at = 0;
    while let Some(start) = (at..frames.len()).find(|i| mapped(*i)) {
        let len = (start..frames.len()).take_while(|i| mapped(*i)).count();
        let vpn = first.vpn.offset(start as u64);
        let progress = m.platform.unmap(first.space, vpn, &frames[start..start + len]);
        at = start + progress.done;
        if let Some(stop) = progress.stop {
            outcome[at] = match stop {
                Stop::Vanished => Unmapped::Vanished,
                Stop::Busy | Stop::Occupied | Stop::Failed(_) => Unmapped::Busy,
            };
            at += 1;
        }
    }
}

impl<P: Platform> Run<'_, P> {
    /// Unmaps the `wanted` pages of the run, each stretch of them with one call.
    pub(crate) fn unmap(
        &self,
        m: &Machine<P>,
        wanted: impl Fn(usize, Entry) -> bool,
    ) -> [Unmapped; RUN_PAGES_MAX] {
        let mut outcome = [Unmapped::Done; RUN_PAGES_MAX];
        let entries = self.held.entries();
        let mapped = |i: usize| entries[i].is_mapped() && wanted(i, entries[i]);
        unmap_stretches(m, self.held.owner(0), &self.frames, mapped, &mut outcome);
        outcome
    }

    /// Makes the frame of a vanished page an orphan: whoever puts it back on a list frees it.
    pub(crate) fn disown(&self, m: &Machine<P>, index: usize) {
        let pfn = self.frames[index];
        m.frames.set_owner(pfn, None);
        m.forget_slot(pfn);
        let orphaned = m.frames.place(pfn).change(Place::Isolated, Place::Orphan);
        debug_assert_eq!(orphaned, Ok(()), "an isolated frame changes hands under its entry only");
    }
}
