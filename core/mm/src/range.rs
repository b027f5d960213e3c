//! What a program does to ranges of its memory: dropping contents, moving them elsewhere.
//!
//! Both walk the range in runs of up to 16 pages, holding their entries, and wait for whoever works
//! on a page. Untouched parts of a range cost a look per 16 MiB.

use crate::folio::{self, Folio};
use crate::frame::Writeback;
use crate::large::split;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, Held, Page, Pinned, Range, Space};
use crate::stats::Counter;
use highwater_platform::{Platform, Stop};
use highwater_units::{Order, Pfn, Vpn};

/// Drops the contents of a range: it reads as zeros, or as its file; its frames and slots are free.
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

/// Drops the contents of those pages of a range that are on a device: they read as zeros, and what
/// is in memory stays as it is. For a range whose contents nobody needs any more, and which is to
/// be used again: memory is kept, and nothing is read for nothing. Returns how many there were.
pub fn discard_swapped<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) -> u64 {
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages have their places");
    assert_eq!(space.order(), Order(0), "pages of more than one frame are dropped whole");
    let swapped = |entry: Entry| matches!(entry.page(), Page::Swapped(_));
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

/// Gives up the frames and slots of held pages, which are to be absent.
pub(crate) fn drop_pages<P: Platform>(m: &Machine<P>, held: &Held<'_, P>) {
    take_in(m, held, Busy::Drop);
    for entry in held.entries() {
        match entry.page() {
            Page::Absent => {}
            Page::Resident(pfn) => m.abandon(pfn),
            // If it is being written, reclaim frees frame and slot afterwards.
            Page::Swapped(slot) => m.release_slot(slot),
        }
    }
}

/// Drops held pages of more than one frame, and lets go of them.
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
        }
    }
    m.count(Counter::PgDiscard, (held.len() << space.order().0) as u64);
    held.release(|_, _| Entry::ABSENT);
}

/// Moves the contents of a range to the pages from `to` on, which are absent and do not overlap it.
/// Nothing is copied: frames and slots change hands. A fault that began when the pages were
/// another's may end at any time and bring zeros: they are dropped.
pub fn relocate<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range, to: Vpn) {
    let _phase = m.enter(phase::RANGE);
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages have their places");
    assert_eq!(space.order(), Order(0), "pages of more than one frame stay where they are");
    each_present(space, range, Large::Split(m), |held| {
        take_in(m, &held, Busy::Wait);
        for index in 0..held.len() {
            let vpn = Vpn(held.owner(index).vpn.0 - range.first.0 + to.0);
            let target = Large::Split(m).hold(space, vpn);
            drop_pages(m, &target);
            let entry = match settled(m, held.entries()[index]) {
                Entry::ABSENT => Entry::ABSENT,
                entry => entry.unmapped(),
            };
            if let Page::Resident(pfn) = entry.page() {
                m.adopt(pfn, target.owner(0));
            }
            target.release(|_, _| entry);
        }
        held.release(|_, _| Entry::ABSENT);
    });
}

/// The entry of a held page, with a page that is being written made resident: nobody else knows
/// its owner then.
pub(crate) fn settled<P: Platform>(m: &Machine<P>, entry: Entry) -> Entry {
    let Page::Swapped(slot) = entry.page() else { return entry };
    let Some(pfn) = m.swap.claim(m.cpu(), slot) else { return entry };
    m.wait_written(pfn);
    m.frames.set_writeback(pfn, Writeback::Idle);
    m.release_slot(slot);
    Entry::resident(pfn).dirty()
}

/// What is to become of large pages in memory.
pub(crate) enum Large<'a, P: Platform> {
    /// They stay so.
    Leave,
    /// They are split first: their pages go different ways.
    Split(&'a Machine<P>),
}

impl<P: Platform> Large<'_, P> {
    /// Holds a page.
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

    /// Whether a page may be held together with the one before.
    fn admits(&self, entry: Entry) -> bool {
        match self {
            Large::Leave => true,
            Large::Split(_) => !entry.is_large_resident(),
        }
    }
}

/// Holds every page of a range that is in a frame or a slot, in runs, and calls `act` with each.
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

/// What to do with a page that the system has pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// Its contents do not matter.
    Drop,
    /// They do: until it is free.
    Wait,
}

/// Unmaps the mapped pages of a run, all of them.
fn take_in<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, busy: Busy) {
    let mapped = |index: &usize| held.entries()[*index].is_mapped();
    let (mut at, mut attempt) = (0, 0);
    while let Some(first) = (at..held.len()).find(mapped) {
        let frame = |entry: &Entry| match entry.page() {
            Page::Resident(pfn) => Some(pfn),
            Page::Absent | Page::Swapped(_) => None,
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
