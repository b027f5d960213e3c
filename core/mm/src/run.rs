//! Runs of isolated pages: neighbours in their space, locked and unmapped together. For reclaim and
//! for page migration.
//!
//! ```text
//! batch of isolated frames -> by owner -> Run: held entries, and their frames -> unmapped, each
//! ```
//! Locking: a thread only tries to lock entries. Only the thread that isolated a run's frames uses
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

/// The result of unmapping a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmapped {
    /// It is not mapped, and the frame has its contents.
    Done,
    /// It is still mapped: the system has pinned it, or it is shared.
    Busy,
    /// The program dropped it: the frame's contents belong to no page.
    Vanished,
}

/// Groups a batch into runs and locks their entries. Calls `act` with one run at a time; returns
/// the pages that could not be locked or have no owner any more.
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

/// Sorts neighbours together. Reads each owner once: owners change meanwhile, and a sort panics if
/// its order changes.
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
    // Folios are evicted and moved one by one: `crate::folio`.
    let space = Some(m.space(owner.space)).filter(|space| space.order() == Order(0))?;
    let held = Held::lock(space, owner.vpn, Pinned::Refuse)?;
    // Before the entry was locked, the page may have been dropped, or swapped out and in again.
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

/// Unmaps the `mapped` pages from `first` on, whose entries are held, each stretch with one call.
/// Writes the results of those that stay mapped or vanished to `outcome`.
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
    /// Unmaps the `wanted` pages of the run that are mapped, each stretch with one call.
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

    /// Makes the frame of a vanished page an orphan, which putback frees.
    pub(crate) fn disown(&self, m: &Machine<P>, index: usize) {
        orphan(m, self.frames[index]);
    }
}

/// Makes the isolated frame of a vanished page an orphan, which putback frees. The caller holds the
/// page's entry.
pub(crate) fn orphan<P: Platform>(m: &Machine<P>, pfn: Pfn) {
    m.frames.set_owner(pfn, None);
    m.forget_slot(pfn);
    let orphaned = m.frames.place(pfn).change(Place::Isolated, Place::Orphan);
    debug_assert_eq!(orphaned, Ok(()), "an isolated frame changes place under its entry only");
}
