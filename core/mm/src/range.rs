//! Operations on ranges of pages: discard (madvise, munmap) and relocate (mremap); and poison, for
//! a page that is lost.
//!
//! The first two walk the range in runs of up to 16 pages, hold their entries, and wait for locked
//! entries. A part of the range that was never touched costs one lookup per 16 MiB.

use crate::folio::{self, Folio};
use crate::frame::Owner;
use crate::large::split;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, Held, Page, Pinned, Range, Space};
use crate::stats::Counter;
use crate::write_completion::settled;
use highwater_platform::{Platform, Stop};
use highwater_units::{Order, Pfn, Vpn};

/// Drops the contents of a range and frees its frames and slots. The range then reads as zeros, or
/// as its file.
pub fn discard<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) {
    let _phase = m.enter(phase::RANGE);
    if space.order() > Order(0) {
        return each_present(space, range, Large::Leave, |held| drop_folios(m, held));
    }
    each_present(space, range, Large::Split(m), |held| {
        drop_pages(m, &held);
        m.count(Counter::PgDiscard, held.len() as u64);
        held.release(|_, _| Entry::ABSENT);
    });
}

/// Drops the contents of the swapped and lost pages of a range, which then read as zeros; pages in
/// memory stay. For a range that will be overwritten: its frames are kept, and no page is swapped
/// in only to be overwritten. Returns how many pages were dropped.
pub fn discard_swapped<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) -> u64 {
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages have no slots");
    assert_eq!(space.order(), Order(0), "pages of several frames are dropped whole");
    let swapped = |entry: Entry| matches!(entry.page(), Page::Swapped(_) | Page::Poisoned);
    let mut at = range.first;
    let all = std::iter::from_fn(|| {
        let vpn = space.next_made(at, range.end)?;
        at = vpn.offset(1);
        Some(space.entry(vpn))
    });
    if !all.into_iter().any(swapped) {
        return 0;
    }
    let _phase = m.enter(phase::RANGE);
    let mut dropped = 0;
    each_held(space, range, Large::Split(m), swapped, |held| {
        drop_pages(m, &held);
        dropped += held.len() as u64;
        held.release(|_, _| Entry::ABSENT);
    });
    m.count(Counter::PgDiscard, dropped);
    dropped
}

/// The outcome of [`poison`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poisoned {
    /// Accesses to the page fail from now on.
    Done,
    /// The page is not in a slot any more, so an access may succeed.
    Changed,
    /// The platform cannot do it. The page is as it was, but its loss may have been reported.
    Refused,
}

/// Poisons a page that cannot be read (memory_failure). Its slot is freed: another read would at
/// best return what the program has been told is lost. Calls `report` before any thread learns of
/// the loss; not if the page was lost before.
pub fn poison<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    vpn: Vpn,
    report: impl FnOnce(),
) -> Poisoned {
    let _phase = m.enter(phase::RANGE);
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages are read again");
    assert_eq!(space.order(), Order(0), "pages of several frames are not poisoned");
    let held = space.hold(vpn);
    let slot = match held.page() {
        Page::Swapped(slot) if !m.swap.is_cached(slot) => Some(slot),
        // A fork or mremap has moved only the entry here.
        Page::Poisoned => None,
        Page::Absent | Page::Resident(_) | Page::Swapped(_) => return Poisoned::Changed,
    };
    if slot.is_some() {
        report();
    }
    if !m.platform.poison(space.id(), vpn) {
        return Poisoned::Refused;
    }
    if let Some(slot) = slot {
        m.release_slot(slot);
        m.count(Counter::PgPoisoned, 1);
    }
    held.release(|_, _| Entry::POISONED);
    Poisoned::Done
}

/// Frees the frames and slots of held pages, which the caller makes absent.
pub(crate) fn drop_pages<P: Platform>(m: &Machine<P>, held: &Held<'_, P>) {
    unmap_all(m, held, Busy::Drop);
    for (index, entry) in held.entries().iter().enumerate() {
        match entry.page() {
            Page::Absent => {}
            Page::Resident(pfn) => m.abandon(pfn),
            // If the slot is being written, reclaim frees frame and slot when that ends.
            Page::Swapped(slot) => m.release_slot(slot),
            Page::Poisoned => unpoison(m, held.owner(index)),
        }
    }
}

/// Lets accesses to a poisoned page fault again.
fn unpoison<P: Platform>(m: &Machine<P>, owner: Owner) {
    m.platform.unpoison(owner.space, owner.vpn);
}

/// Drops held pages of several frames, and releases them.
fn drop_folios<P: Platform>(m: &Machine<P>, held: Held<'_, P>) {
    let space = held.space();
    for (index, entry) in held.entries().iter().enumerate() {
        match entry.page() {
            Page::Absent => {}
            Page::Resident(head) => {
                let folio = Folio::new(head, space.order());
                if entry.is_mapped() {
                    folio::drop_mapped(m, space, held.owner(index), &folio);
                }
                folio::abandon(m, &folio);
            }
            Page::Swapped(slot) => folio::release_slots(m, slot, space.order()),
            Page::Poisoned => unreachable!("pages of several frames are not poisoned"),
        }
    }
    m.count(Counter::PgDiscard, (held.len() << space.order().0) as u64);
    held.release(|_, _| Entry::ABSENT);
}

/// Moves the contents of a range to the pages from `to` on, which are absent and do not overlap the
/// range. Nothing is copied: frames and slots get new owners. A fault from an earlier use of the
/// target addresses may still complete and map pages of zeros there: such pages are dropped.
pub fn relocate<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range, to: Vpn) {
    let _phase = m.enter(phase::RANGE);
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages cannot be moved");
    assert_eq!(space.order(), Order(0), "pages of several frames cannot be moved");
    each_present(space, range, Large::Split(m), |held| {
        unmap_all(m, &held, Busy::Wait);
        for index in 0..held.len() {
            let vpn = Vpn(held.owner(index).vpn.0 - range.first.0 + to.0);
            let target = Large::Split(m).hold(space, vpn);
            drop_pages(m, &target);
            let entry = match settled(m, held.entries()[index]) {
                Entry::ABSENT => Entry::ABSENT,
                entry => entry.unmapped(),
            };
            match entry.page() {
                Page::Resident(pfn) => m.adopt(pfn, target.owner(0)),
                // The next access faults, and poisons the target.
                Page::Poisoned => unpoison(m, held.owner(index)),
                Page::Absent | Page::Swapped(_) => {}
            }
            target.release(|_, _| entry);
        }
        held.release(|_, _| Entry::ABSENT);
    });
}

/// How a walk treats large pages in memory.
pub(crate) enum Large<'a, P: Platform> {
    /// They stay whole.
    Leave,
    /// They are split first, because their pages are treated one by one.
    Split(&'a Machine<P>),
}

impl<P: Platform> Large<'_, P> {
    /// Holds a page; waits while its entry is locked.
    pub(crate) fn hold<'a>(&self, space: &'a Space<P>, vpn: Vpn) -> Held<'a, P> {
        loop {
            let held = space.hold(vpn);
            match self {
                Large::Split(m) if held.entries()[0].is_large_resident() => {
                    drop(held);
                    split(m, space, vpn);
                }
                Large::Leave | Large::Split(_) => return held,
            }
        }
    }

    /// Whether a page may be held in one run with the page before it.
    fn admits(&self, entry: Entry) -> bool {
        match self {
            Large::Leave => true,
            Large::Split(_) => !entry.is_large_resident(),
        }
    }
}

/// Holds every page of a range that is in a frame or a slot, in runs, and calls `act` with each
/// run.
pub(crate) fn each_present<'a, P: Platform>(
    space: &'a Space<P>,
    range: Range,
    large: Large<'_, P>,
    act: impl FnMut(Held<'a, P>),
) {
    each_held(space, range, large, |entry| entry.page() != Page::Absent, act);
}

/// Holds every page of a range that is `wanted`, in runs, and calls `act` with each run.
pub(crate) fn each_held<'a, P: Platform>(
    space: &'a Space<P>,
    range: Range,
    large: Large<'_, P>,
    wanted: impl Fn(Entry) -> bool,
    mut act: impl FnMut(Held<'a, P>),
) {
    let mut at = range.first;
    while let Some(vpn) = space.next_made(at, range.end) {
        at = vpn.offset(1);
        let seen = space.entry(vpn);
        if !wanted(seen) && !seen.is_locked() {
            continue;
        }
        let mut held = large.hold(space, vpn);
        if !wanted(held.entries()[0]) {
            continue;
        }
        let next = |entry| wanted(entry) && large.admits(entry);
        while at < range.end && held.extend(Pinned::Refuse, next) {
            at = at.offset(1);
        }
        act(held);
    }
}

/// How [`unmap_all`] treats a page that the kernel has pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// It is dropped with its contents.
    Drop,
    /// The unmap is retried until the page is unpinned.
    Wait,
}

/// Unmaps all mapped pages of a run.
fn unmap_all<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, busy: Busy) {
    let mapped = |index: &usize| held.entries()[*index].is_mapped();
    let (mut at, mut attempt) = (0, 0);
    while let Some(first) = (at..held.len()).find(mapped) {
        let frame = |entry: &Entry| match entry.page() {
            Page::Resident(pfn) => Some(pfn),
            Page::Absent | Page::Swapped(_) | Page::Poisoned => None,
        };
        let stretch = held.entries()[first..].iter().take_while(|entry| entry.is_mapped());
        let frames: highwater_units::FrameList = stretch.filter_map(frame).collect();
        let owner = held.owner(first);
        let progress = m.platform.unmap(owner.space, owner.vpn, &frames);
        at = first + progress.done;
        match (progress.stop, busy) {
            (None, _) => {}
            (Some(Stop::Vanished), _) => at += 1,
            (Some(_), Busy::Drop) => {
                drop_busy(m, held, at, frames[progress.done]);
                at += 1;
            }
            (Some(_), Busy::Wait) => {
                m.platform.relax(attempt);
                attempt += 1;
            }
        }
    }
}

fn drop_busy<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, index: usize, pfn: Pfn) {
    let owner = held.owner(index);
    m.platform.discard(owner.space, owner.vpn, pfn);
}
