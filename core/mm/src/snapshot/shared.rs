//! The part of a snapshot that a forked child gets from the kernel's fork: pages in memory, shared
//! until one of the two processes writes to them.
//!
//! ```text
//! plan     finds stretches of pages without swapped ones among them, by a scan of the entries
//! freeze   their entries are locked, until after the fork; every page in memory is mapped
//! thaw     in the parent, after the fork: unlocked as they were
//! reserve  in the child: the entries are locked again
//! adopt    while the child runs: each page in memory gets a frame of its budget
//! unshare  in either, before devices may write to its pages: UFFDIO_MOVE refuses shared ones
//! ```
//! A page that is missing from a stretch reads as zeros, so the child's memory is correct at every
//! moment, even before it is registered. While the entries are locked, no thread makes a page of a
//! stretch present, evicts it or drops it.
//!
//! Locking: freezing holds many entries and waits for more, for a bounded time: when it ends, all
//! entries are unlocked, and the stretches are frozen again, or written to slots.

use super::contents::Snapshot;
use super::save::save;
use crate::alloc::{self, OutOfMemory};
use crate::error::FaultError;
use crate::lru::List;
use crate::machine::Machine;
use crate::phase;
use crate::range::{Large, each_present};
use crate::space::{Entry, Held, Left, Page, Pinned, Range, Space};
use crate::stats::Counter;
use crate::write_completion::settled;
use highwater_platform::{Platform, Protection, Stop};
use highwater_units::{FrameList, Nanos, RUN_PAGES_MAX};

/// The most stretches of a fork: each costs the kernel two mappings.
const STRETCHES_MAX: usize = 2048;

/// Absent pages in a row that end a stretch: locking their entries would cost more than a mapping.
const HOLE: u64 = 512;

/// How long a freeze waits for entries that other threads hold.
const FREEZE_TIME: Nanos = Nanos(50_000_000);

/// Stretches whose entries are locked, until [`thaw`].
#[must_use]
#[derive(Default)]
pub struct Frozen {
    held: Vec<Left>,
    stretches: Vec<Range>,
}

impl Frozen {
    /// The pages that the child is to inherit, in ascending order.
    pub fn stretches(&self) -> &[Range] {
        &self.stretches
    }
}

/// Why stretches were not frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another thread held an entry for too long.
    Busy,
    Failed(FaultError),
}

/// A stretch that may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    range: Range,
    /// Pages in memory.
    resident: u64,
}

/// The stretches of `parts` that are worth sharing.
pub(super) fn plan<P: Platform>(space: &Space<P>, parts: &[Range]) -> Vec<Range> {
    let mut found = Vec::new();
    for part in parts {
        let mut open: Option<Candidate> = None;
        let mut at = part.first;
        while let Some(vpn) = space.next_made(at, part.end) {
            at = vpn.offset(1);
            let is_far = |open: &Candidate| vpn.0 - open.range.end.0 >= HOLE;
            found.extend(open.take_if(|open| is_far(open)));
            let entry = space.entry(vpn);
            match entry.page() {
                Page::Resident(_) if !entry.is_large() => {
                    let new = Candidate { range: Range { first: vpn, end: vpn }, resident: 0 };
                    let open = open.get_or_insert(new);
                    open.range.end = at;
                    open.resident += 1;
                }
                Page::Absent => {}
                Page::Resident(_) | Page::Swapped(_) | Page::Poisoned => found.extend(open.take()),
            }
        }
        found.extend(open);
    }
    largest(found).into_iter().map(|candidate| candidate.range).collect()
}

/// At most [`STRETCHES_MAX`] candidates, in ascending order, without the smallest.
fn largest(mut found: Vec<Candidate>) -> Vec<Candidate> {
    let mut least = 1;
    while found.len() > STRETCHES_MAX {
        least *= 2;
        found.retain(|candidate| candidate.resident >= least);
    }
    found
}

/// Locks the entries of the stretches, and maps their pages in memory. Pages evicted since the scan
/// of [`plan`] are added to the snapshot as slots, and their stretch is divided. Adds the pages in
/// memory to the snapshot.
pub(super) fn freeze<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    stretches: &[Range],
    snapshot: &mut Snapshot,
) -> Result<Frozen, Refusal> {
    let mut frozen = Frozen::default();
    let deadline = Nanos(m.platform.now().0 + FREEZE_TIME.0);
    for stretch in stretches {
        if let Err(refusal) = freeze_one(m, space, *stretch, deadline, &mut frozen, snapshot) {
            thaw(space, frozen);
            return Err(refusal);
        }
    }
    Ok(frozen)
}

fn freeze_one<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    stretch: Range,
    deadline: Nanos,
    frozen: &mut Frozen,
    snapshot: &mut Snapshot,
) -> Result<(), Refusal> {
    let (mut from, mut at) = (stretch.first, stretch.first);
    while at < stretch.end {
        let mut held = space.hold_until(&m.platform, at, deadline).ok_or(Refusal::Busy)?;
        let room = RUN_PAGES_MAX.min((stretch.end.0 - at.0) as usize);
        while held.len() < room && held.extend(Pinned::Refuse, |_| true) {}
        let after = at.offset(held.len() as u64);
        match bring_in(m, &mut held) {
            Brought::All => {
                snapshot.push_resident(&held);
                frozen.held.push(held.leave());
            }
            Brought::Some => {
                frozen.push(Range { first: from, end: at });
                save(m, held, snapshot).map_err(Refusal::Failed)?;
                from = after;
            }
        }
        at = after;
    }
    frozen.push(Range { first: from, end: stretch.end });
    Ok(())
}

impl Frozen {
    fn push(&mut self, stretch: Range) {
        if stretch.first < stretch.end {
            self.stretches.push(stretch);
        }
    }
}

/// Whether all held pages with contents are mapped in the program now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    All,
    /// Some are in slots, or cannot be mapped.
    Some,
}

/// Maps those of the held pages that are in memory and not mapped.
fn bring_in<P: Platform>(m: &Machine<P>, held: &mut Held<'_, P>) -> Brought {
    for index in 0..held.len() {
        let entry = settled(m, held.entries()[index]);
        held.change(index, entry);
    }
    let waits = |entry: &Entry| matches!(entry.page(), Page::Resident(_)) && !entry.is_mapped();
    while let Some(first) = held.entries().iter().position(waits) {
        let dirty = held.entries()[first].is_dirty();
        let alike = |entry: &Entry| match entry.page() {
            Page::Resident(pfn) if waits(entry) && entry.is_dirty() == dirty => Some(pfn),
            _ => None,
        };
        let frames: FrameList = held.entries()[first..].iter().map_while(alike).collect();
        let protection = if dirty { Protection::ReadWrite } else { Protection::ReadOnly };
        let owner = held.owner(first);
        let progress = m.platform.map(owner.space, owner.vpn, &frames, protection);
        for index in first..first + progress.done {
            held.change(index, held.entries()[index].mapped());
        }
        if progress.stop.is_some() {
            return Brought::Some;
        }
    }
    let elsewhere = |entry: &Entry| match entry.page() {
        Page::Swapped(_) | Page::Poisoned => true,
        Page::Resident(_) => entry.is_large(),
        Page::Absent => false,
    };
    if held.entries().iter().any(elsewhere) { Brought::Some } else { Brought::All }
}

/// Unlocks frozen entries.
pub fn thaw<P: Platform>(space: &Space<P>, frozen: Frozen) {
    frozen.held.into_iter().for_each(|left| drop(Held::back(space, left)));
}

/// Unmaps all pages, so that each is mapped anew, as a page of this process alone. Pages that
/// cannot be unmapped stay.
pub fn unshare<P: Platform>(m: &Machine<P>, space: &Space<P>) {
    each_present(space, Range::whole(space), Large::Leave, |mut held| {
        for index in 0..held.len() {
            let (owner, entry) = (held.owner(index), held.entries()[index]);
            let Page::Resident(pfn) = entry.page() else { continue };
            if !entry.is_mapped() || entry.is_large() {
                continue;
            }
            match m.platform.unmap(owner.space, owner.vpn, &[pfn]).stop {
                None => held.change(index, entry.unmapped()),
                Some(Stop::Vanished) => {
                    m.abandon(pfn);
                    held.change(index, Entry::ABSENT);
                }
                Some(Stop::Busy | Stop::Occupied | Stop::Failed(_)) => {}
            }
        }
    });
}

/// Pages that are mapped and have no frames yet. Their entries are locked.
#[must_use]
#[derive(Default)]
pub struct Unadopted(Vec<Left>);

/// In the child, whose space is empty: locks the entries of pages that are mapped already. Until
/// [`adopt`] has given them frames, any thread that needs their entries waits; the program's
/// accesses do not wait.
pub(super) fn reserve<P: Platform>(space: &Space<P>, resident: &[Range]) -> Unadopted {
    let mut runs = Vec::new();
    for range in resident {
        let mut at = range.first;
        while at < range.end {
            let mut held = space.hold(at);
            let room = RUN_PAGES_MAX.min((range.end.0 - at.0) as usize);
            while held.len() < room && held.extend(Pinned::Refuse, |_| true) {}
            at = at.offset(held.len() as u64);
            runs.push(held.leave());
        }
    }
    Unadopted(runs)
}

/// Gives frames to pages that are mapped already.
///
/// # Errors
/// Memory cannot hold one page more, and swap is full. The rest stays locked.
pub fn adopt<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    pages: Unadopted,
) -> Result<(), OutOfMemory> {
    let _phase = m.enter(phase::RANGE);
    for left in pages.0 {
        let held = Held::back(space, left);
        let mut frames = FrameList::default();
        while frames.len() < held.len() {
            let more = alloc::bare_frames(m, held.len() - frames.len())?;
            more.iter().for_each(|pfn| frames.push(*pfn));
        }
        m.count(Counter::PgInherited, frames.len() as u64);
        m.platform.inherit(&frames);
        for (index, pfn) in frames.iter().enumerate() {
            m.adopt(*pfn, held.owner(index));
        }
        m.add_to_lru(&frames, List::ActiveAnon);
        held.release(|index, _| Entry::resident(frames[index]).dirty().mapped().accessed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Vpn;

    #[test]
    fn the_smallest_stretches_are_left_out() {
        let candidate = |n: usize| Candidate {
            range: Range { first: Vpn(n as u64 * 9), end: Vpn(n as u64 * 9 + 8) },
            resident: 1 + n as u64 % 4,
        };
        let few: Vec<_> = (0..STRETCHES_MAX).map(candidate).collect();
        assert_eq!(largest(few.clone()), few);
        let some = largest((0..STRETCHES_MAX + 1).map(candidate).collect());
        assert!(some.len() > STRETCHES_MAX / 2 && some.iter().all(|found| found.resident >= 2));
    }
}
