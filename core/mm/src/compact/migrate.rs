//! Moves pages from their frames to others, while everything else goes on.
//!
//! ```text
//! isolated by the caller -> runs, entries held -> unmapped -> copied, record moved -> mapped again
//!                              |                     |
//!                              |                     |- pinned by the system: put back
//!                              |                     \- dropped by the program: vacated
//!                              \- locked, or pinned by a guard, or another page: put back
//! ```
//! The entry is what makes this safe: who holds it is alone with the page. A page under write, in
//! the swap cache or on its way in has a locked entry, or none that names the frame, or its frame
//! is not listed; reclaim has what it isolated to itself. So nobody else knows the old frame once
//! the entry names the new one. Neighbours are unmapped with one call, and mapped with one.
//!
//! What is known of a page moves along: its slot, its history, and all bits of its entry. Pages of
//! large ones stay: these move whole, or not at all.
//! Conservation: as many frames are vacated as new ones are listed, but for pages that vanished.
//! Locking: the pages' entries, then the LRU's.

use crate::frame::{Owner, Place, Writeback};
use crate::lru::List;
use crate::machine::Machine;
use crate::run::{Run, Unmapped, each_run};
use crate::space::{Entry, Held, Page, Pinned};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{FrameBatch, FrameList, Nanos, Order, Pfn, RUN_PAGES_MAX};

pub use crate::lru::Mode;

/// How long [`Mode::Sync`] waits for a page in use. Guards are held for the time of an access, as a
/// rule; and who waits may hold other pages' entries.
const PATIENCE: Nanos = Nanos(1_000_000);

/// What came of moving a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrated {
    /// It is in the new frame, and listed. The old one is nobody's.
    Moved,
    /// It is in use, or part of a large page: it was put back on its list, where it was.
    Busy,
    /// It is gone: the program dropped it. Both frames are nobody's.
    Vanished,
}

/// What came of moving a batch.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Frames of the batch that are nobody's now, and on no list. The others were put back.
    pub vacated: FrameBatch,
    /// So many of the new frames, from the first on, hold pages and are listed.
    pub filled: usize,
}

/// Moves the pages in `from`, which the caller has isolated from `list` of one node, to `to`, as
/// many populated frames that the caller has taken. Frames of dropped pages are the caller's
/// afterwards, and on no list. The caller may hold entries of other pages.
pub fn migrate_batch<P: Platform>(
    m: &Machine<P>,
    from: FrameBatch,
    list: List,
    to: &[Pfn],
    mode: Mode,
) -> Moves {
    let Some(first) = from.first() else {
        return Moves { vacated: from, filled: 0 };
    };
    assert!(to.len() >= from.len(), "every page may find a frame");
    let node = m.node_of(*first);
    let [vacated, kept] = [FrameBatch::default(); 2];
    let mut mover = Mover { list, to, filled: 0, vacated, kept };
    let in_use = each_run(m, from, |run| mover.move_run(m, run));
    for pfn in in_use.iter() {
        let held = match mode {
            Mode::Async => None,
            Mode::Sync => hold(m, *pfn, Order(0), mode),
        };
        match held {
            Some(held) => mover.move_run(m, Run { held, frames: FrameList::one(*pfn) }),
            None => mover.kept.push(*pfn),
        }
    }
    let Mover { filled, mut vacated, kept, .. } = mover;
    let orphans = node.lru.putback(&m.frames, &kept, list);
    orphans.iter().for_each(|pfn| vacated.push(*pfn));
    m.count(Counter::PgMigrateSuccess, filled as u64);
    m.count(Counter::PgMigrateFail, (from.len() - vacated.len()) as u64);
    Moves { vacated, filled }
}

/// Holds the page of an order that begins with a frame, and is no part of another. [`Mode::Sync`]:
/// when who uses it is done with it, if that is soon.
pub(super) fn hold<P: Platform>(
    m: &Machine<P>,
    head: Pfn,
    order: Order,
    mode: Mode,
) -> Option<Held<'_, P>> {
    let owner = m.frames.owner(head)?;
    let space = Some(m.space(owner.space)).filter(|space| space.order() == order)?;
    let there = |entry: Entry| entry.page() == Page::Resident(head) && !entry.is_large();
    if !there(space.entry(owner.vpn)) {
        return None;
    }
    let held = match mode {
        Mode::Async => Held::lock(space, owner.vpn, Pinned::Refuse)?,
        Mode::Sync => {
            let deadline = Nanos(m.platform.now().0 + PATIENCE.0);
            space.hold_until(&m.platform, owner.vpn, deadline)?
        }
    };
    // It may have been dropped, or gone elsewhere, meanwhile.
    there(held.entries()[0]).then_some(held)
}

/// A batch on its way.
struct Mover<'a> {
    list: List,
    to: &'a [Pfn],
    filled: usize,
    vacated: FrameBatch,
    /// To be put back.
    kept: FrameBatch,
}

impl Mover<'_> {
    fn move_run<P: Platform>(&mut self, m: &Machine<P>, run: Run<'_, P>) {
        let outcome = run.unmap(m, |_, _| true);
        let mut now = [Entry::ABSENT; RUN_PAGES_MAX];
        let mut fresh = FrameList::default();
        for (index, pfn) in run.frames.iter().enumerate() {
            let was = run.held.entries()[index];
            match outcome[index] {
                Unmapped::Done => {
                    let to = self.to[self.filled];
                    m.platform.copy_frame(*pfn, to);
                    move_record(m, run.held.owner(index), *pfn, to);
                    now[index] = was.moved_to(to);
                    fresh.push(to);
                    self.vacated.push(*pfn);
                    self.filled += 1;
                }
                Unmapped::Busy => {
                    now[index] = was;
                    self.kept.push(*pfn);
                }
                Unmapped::Vanished => {
                    run.disown(m, index);
                    self.kept.push(*pfn);
                }
            }
        }
        // While the entries are held: who drops a page next finds its frame where it belongs.
        m.add_to_lru(&fresh, self.list);
        map_again(m, &run.held, &outcome, &mut now);
        run.held.release(|index, _| now[index]);
    }
}

/// What the old frame's record says of a page is the new one's.
pub(super) fn move_record<P: Platform>(m: &Machine<P>, owner: Owner, from: Pfn, to: Pfn) {
    let idle = [from, to].map(|pfn| m.frames.writeback(pfn)) == [Writeback::Idle; 2];
    debug_assert!(idle, "neither {from:?}, just listed, nor {to:?}, just free, is written");
    m.frames.set_slot(to, m.frames.take_slot(from));
    m.frames.set_history(to, m.frames.history(from));
    m.adopt(to, owner);
    m.frames.set_owner(from, None);
    let off = m.frames.place(from).change(Place::Isolated, Place::Off);
    debug_assert_eq!(off, Ok(()), "an isolated frame changes hands under its entry only");
}

/// Maps what was unmapped, each stretch of it with one call. What cannot be, because the program is
/// changing the range, stays in memory, unmapped.
fn map_again<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    outcome: &[Unmapped],
    now: &mut [Entry],
) {
    let mut at = 0;
    while at < held.len() {
        let dirty = now[at].is_dirty();
        let goes = |index: &usize| {
            let entry = now[*index];
            outcome[*index] == Unmapped::Done && entry.is_mapped() && entry.is_dirty() == dirty
        };
        let frames: FrameList =
            (at..held.len()).take_while(goes).map_while(|index| frame(now[index])).collect();
        if frames.is_empty() {
            at += 1;
            continue;
        }
        let protection = if dirty { Protection::ReadWrite } else { Protection::ReadOnly };
        let owner = held.owner(at);
        let progress = m.platform.map(owner.space, owner.vpn, &frames, protection);
        at += progress.done;
        if progress.stop.is_some() {
            m.count(Counter::MapRefused, 1);
            now[at] = now[at].revoked();
            at += 1;
        }
    }
}

fn frame(entry: Entry) -> Option<Pfn> {
    match entry.page() {
        Page::Resident(pfn) => Some(pfn),
        Page::Absent | Page::Swapped(_) => None,
    }
}
