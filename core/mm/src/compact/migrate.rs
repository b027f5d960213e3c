//! Moves pages to other frames while programs use them (migrate_pages).
//!
//! ```text
//! isolated by the caller -> runs, entries locked -> unmapped -> copied, record moved -> mapped
//!                              |                       |
//!                              |                       |- pinned by the system: put back
//!                              |                       \- dropped by the program: vacated
//!                              \- entry locked, pinned by a guard, or another page: put back
//! ```
//! The lock of the entry gives exclusive access to the page. While a page is written, read or in
//! the swap cache, its entry is locked or does not refer to the frame, or the frame is not listed;
//! pages that reclaim has isolated are not listed either. So no other thread refers to the old
//! frame once the entry refers to the new one. Neighbours are unmapped, and mapped, with one call.
//!
//! The slot, the history and all bits of the entry move along. Large pages, and parts of them,
//! stay. Conservation: as many frames are vacated as new ones are listed, except for pages that
//! vanished. Locking: the pages' entries, then the LRU's locks.

use crate::frame::{Owner, Place, Writeback};
use crate::lru::List;
use crate::machine::Machine;
use crate::run::{Run, Unmapped, each_run};
use crate::space::{Entry, Held, Page, Pinned};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{FrameBatch, FrameList, Nanos, Order, Pfn, RUN_PAGES_MAX};

pub use crate::lru::Mode;

/// How long [`Mode::Sync`] waits for a busy page. A guard is normally held for one access only, and
/// the waiter may hold entries of other pages.
const BUSY_WAIT_MAX: Nanos = Nanos(1_000_000);

/// The result of moving a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrated {
    /// The page is in the new frame, and listed. No page owns the old frame.
    Moved,
    /// The page is busy, or part of a large page: it is back on its list, in the old frame.
    Busy,
    /// The program has dropped the page. No page owns either frame.
    Vanished,
}

/// The result of moving a batch.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Frames of the batch that no page owns any more. They are on no list; the others are back on
    /// theirs.
    pub vacated: FrameBatch,
    /// Number of new frames, from the first on, that hold pages now and are listed.
    pub filled: usize,
}

/// Moves the pages in `from`, isolated from one list of a node, to `to`: as many populated frames,
/// of any node, that the caller owns. The caller may hold entries of other pages.
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
    assert!(to.len() >= from.len(), "there is a frame for every page");
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

/// Locks the entry of the page of `order` whose first frame is `head`, unless it is part of a large
/// page. [`Mode::Sync`] waits for a busy page, at most [`BUSY_WAIT_MAX`].
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
            let deadline = Nanos(m.platform.now().0 + BUSY_WAIT_MAX.0);
            space.hold_until(&m.platform, owner.vpn, deadline)?
        }
    };
    // The page may have been dropped or moved before the entry was locked.
    there(held.entries()[0]).then_some(held)
}

/// A batch that is being moved.
struct Mover<'a> {
    list: List,
    to: &'a [Pfn],
    filled: usize,
    vacated: FrameBatch,
    /// Pages to put back on the list.
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
        // Before the entries are unlocked: a thread that drops a page then finds its frame listed.
        m.add_to_lru(&fresh, self.list);
        map_again(m, &run.held, &outcome, &mut now);
        run.held.release(|index, _| now[index]);
    }
}

/// Moves the record of a page from the old frame to the new one.
pub(super) fn move_record<P: Platform>(m: &Machine<P>, owner: Owner, from: Pfn, to: Pfn) {
    let idle = [from, to].map(|pfn| m.frames.writeback(pfn)) == [Writeback::Idle; 2];
    debug_assert!(idle, "neither {from:?}, just listed, nor {to:?}, just free, is under write");
    m.frames.set_slot(to, m.frames.take_slot(from));
    m.frames.copy_history(from, to);
    m.adopt(to, owner);
    m.frames.set_owner(from, None);
    let off = m.frames.place(from).change(Place::Isolated, Place::Off);
    debug_assert_eq!(
        off,
        Ok(()),
        "the place of an isolated frame changes under its entry's lock only"
    );
}

/// Maps the pages that were unmapped, each contiguous range with one call. A page that cannot be
/// mapped, because the program is changing the range, stays in memory unmapped.
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
        Page::Absent | Page::Swapped(_) | Page::Poisoned => None,
    }
}
