//! Who maps what: the page table of one space.
//!
//! ```text
//! Space -- Table: leaves of 512 entries, one atomic word each
//!      \-- Event x 64: where threads wait for a locked entry, by page number
//! ```
//! Of a file's space, `dirty` is the number of its dirty entries.
//! Locking: an entry is its page's lock ([`Held`]); it comes first in the lock order. Frames of
//! resident pages are found back through [`crate::frame::Owner`] (the reverse map). Guards pin:
//! while a page has pins its frame stays.

mod block;
mod entry;
mod held;
#[cfg(test)]
mod space_fuzz;
mod table;

pub use crate::frame::{Kind, Owner};
pub use block::{HeldBlock, block_of};
pub use entry::{Entry, Page};
pub use held::{Held, Left, Pinned};

use entry::{ACCESSED, AHEAD, LOCKED, PIN, PINS, REFERENCED, WAITERS};
use highwater_platform::{Atomic, Event, FileAccess, Platform, Ticket};
use highwater_units::{Nanos, Order, Pfn, SpaceId, Vpn};
use std::sync::atomic::Ordering::*;
use table::Table;

/// Events for waiters; a page hashes to one.
const EVENTS: usize = 64;

/// Pages from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first page.
    pub first: Vpn,
    /// The page after the last.
    pub end: Vpn,
}

impl Range {
    /// All pages of a space.
    pub fn whole<P: Platform>(space: &Space<P>) -> Range {
        Range { first: Vpn(0), end: Vpn(space.pages()) }
    }
}

/// What a program wants of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
}

/// Where pages of a space are that are in no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nowhere at first: they read as zeros. Then in slots that reclaim gives them.
    Anonymous,
    /// On a device of role File, each at the slot of its number: an absent page is there.
    File {
        /// The device.
        device: u8,
    },
}

/// Whether a pin is the first use that is seen of a page read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstUse {
    /// It was used before, or was asked for itself.
    No,
    /// It is.
    OfAhead,
}

impl Backing {
    /// Which pages of memory its pages are aged with.
    pub fn kind(self) -> Kind {
        match self {
            Backing::Anonymous => Kind::Anon,
            Backing::File { .. } => Kind::File,
        }
    }
}

/// What came of asking for a page.
pub enum Claim<'a, P: Platform> {
    /// It is mapped, and may be accessed so.
    Mapped,
    /// Another thread works on it: wait with this ticket, then ask again.
    Busy(Ticket),
    /// It is ours to make present.
    Held(Held<'a, P>),
}

/// A page table.
pub struct Space<P: Platform> {
    id: SpaceId,
    pages: u64,
    order: Order,
    backing: Backing,
    table: Table<P>,
    events: Vec<P::Event>,
    /// Pages of a file that are dirty; 0 of anonymous memory.
    dirty: P::Atomic<u64>,
    /// Pages of a file that it still has.
    end: P::Atomic<u64>,
    /// 1: pages of the file cannot be changed.
    read_only: P::Atomic<u8>,
}

impl<P: Platform> Space<P> {
    /// A space of `pages` absent pages of 2^order frames each.
    pub fn new(platform: &P, id: SpaceId, pages: u64, order: Order, backing: Backing) -> Space<P> {
        let events = (0..EVENTS).map(|_| platform.new_event()).collect();
        let (table, dirty, end) = (Table::new(pages), Atomic::new(0), Atomic::new(pages));
        let read_only = Atomic::new(0);
        Space { id, pages, order, backing, table, events, dirty, end, read_only }
    }

    /// Its name in frames' owners.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Each of its pages takes 2^order adjacent frames, always: of 0, or a folio's.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The first of a page's mappings of 4 KiB, as the platform counts them.
    pub fn mapping(&self, vpn: Vpn) -> Vpn {
        Vpn(vpn.0 << self.order.0)
    }

    /// Its size, in pages of its own.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Where its pages are that are in no frame.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The first page that the file does not have. Who reads pages in asks when it holds their
    /// entries: after a truncation it sees the new end, or is waited for.
    pub fn end(&self) -> Vpn {
        Vpn(self.end.load(SeqCst))
    }

    /// The file ends here from now on, unless it ended before. The caller then drops what is
    /// beyond. Returns where it ended.
    pub fn cut(&self, end: Vpn) -> Vpn {
        let shorter = |now: u64| (end.0 < now).then_some(end.0);
        Vpn(self.end.fetch_update(SeqCst, SeqCst, shorter).unwrap_or(end.0))
    }

    /// A file begins, in a space that had ended at 0.
    pub fn begin(&self, end: Vpn, access: FileAccess) {
        debug_assert!(self.end() == Vpn(0) && end.0 <= self.pages, "{:?} is vacant", self.id);
        self.read_only.store(u8::from(access == FileAccess::Read), SeqCst);
        self.end.store(end.0, SeqCst);
    }

    /// What may be done to the pages, unless their device says otherwise.
    pub fn access(&self) -> FileAccess {
        match self.read_only.load(SeqCst) {
            0 => FileAccess::ReadWrite,
            _ => FileAccess::Read,
        }
    }

    /// Pages of the file that differ from their places; 0 of anonymous memory.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(SeqCst)
    }

    /// An entry, which is locked, is about to be changed.
    fn note_dirty(&self, before: Entry, now: Entry) {
        match (self.backing, before.is_dirty(), now.is_dirty()) {
            (Backing::File { .. }, false, true) => self.dirty.fetch_add(1, SeqCst),
            (Backing::File { .. }, true, false) => self.dirty.fetch_sub(1, SeqCst),
            _ => return,
        };
    }

    /// The entry now. `vpn` is inside the space.
    pub fn entry(&self, vpn: Vpn) -> Entry {
        Entry(self.table.entry(vpn).load(Acquire))
    }

    /// Asks for a page on behalf of an access.
    pub fn claim(&self, vpn: Vpn, access: Access) -> Claim<'_, P> {
        loop {
            let seen = self.entry(vpn);
            if seen.is_locked() {
                return Claim::Busy(self.announce(vpn));
            }
            if seen.is_mapped() && (access == Access::Read || seen.is_dirty()) {
                return Claim::Mapped;
            }
            if let Some(held) = Held::lock(self, vpn, Pinned::Accept) {
                return Claim::Held(held);
            }
        }
    }

    /// Locks a page's entry, waiting for others and for pins to go.
    pub fn hold(&self, vpn: Vpn) -> Held<'_, P> {
        self.hold_as(vpn, Pinned::Refuse)
    }

    /// Locks a page's entry, waiting for others; for pins only if they are refused.
    pub fn hold_as(&self, vpn: Vpn, pinned: Pinned) -> Held<'_, P> {
        loop {
            if let Some(held) = Held::lock(self, vpn, pinned) {
                return held;
            }
            let ticket = self.announce(vpn);
            let seen = self.entry(vpn);
            if seen.is_locked() || (pinned == Pinned::Refuse && seen.pins() > 0) {
                self.wait(vpn, ticket);
            }
        }
    }

    /// Locks a page's entry, waiting until `deadline` at most for others and for pins to go: so
    /// who holds entries may wait for one more.
    pub fn hold_until(&self, clock: &P, vpn: Vpn, deadline: Nanos) -> Option<Held<'_, P>> {
        loop {
            let held = Held::lock(self, vpn, Pinned::Refuse);
            let left = deadline.since(clock.now());
            if held.is_some() || left == Nanos(0) {
                return held;
            }
            let ticket = self.announce(vpn);
            let seen = self.entry(vpn);
            if seen.is_locked() || seen.pins() > 0 {
                self.event(vpn).wait(ticket, Some(left));
            }
        }
    }

    /// Waits until the entry was unlocked after `ticket`.
    pub fn wait(&self, vpn: Vpn, ticket: Ticket) {
        let seen = Entry(self.table.entry(vpn).load(SeqCst));
        if seen.0 & WAITERS != 0 && seen.0 & (LOCKED | PINS) != 0 {
            self.event(vpn).wait(ticket, None);
        }
    }

    /// Says that somebody is going to wait for the page.
    fn announce(&self, vpn: Vpn) -> Ticket {
        let ticket = self.event(vpn).ticket();
        let cell = self.table.entry(vpn);
        let busy = |now: u64| (now & (LOCKED | PINS) != 0).then_some(now | WAITERS);
        // An entry that is free by now is not marked: `wait` then returns at once.
        let _ = cell.fetch_update(SeqCst, SeqCst, busy);
        ticket
    }

    fn event(&self, vpn: Vpn) -> &P::Event {
        &self.events[vpn.0 as usize % EVENTS]
    }

    fn notify(&self, vpn: Vpn) {
        self.event(vpn).notify_all();
    }

    /// Pins a mapped page for a guard: its frame, until [`Space::unpin`]. `None` if the access
    /// needs a fault first. One compare-and-swap.
    /// Says whether it is the first use of a page that was read ahead.
    pub fn pin(&self, vpn: Vpn, access: Access) -> Option<(Pfn, FirstUse)> {
        let cell = self.table.entry(vpn);
        let mut seen = Entry(cell.load(Acquire));
        loop {
            let allowed = access == Access::Read || seen.is_dirty();
            if seen.is_locked() || !seen.is_mapped() || !allowed || seen.pins() == PINS / PIN {
                return None;
            }
            // Of a page that was accessed already, REFERENCED, too.
            let again = (seen.0 & ACCESSED) * (REFERENCED / ACCESSED);
            let pinned = ((seen.0 & !AHEAD) + PIN) | ACCESSED | again;
            match cell.compare_exchange(seen.0, pinned, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => seen = Entry(now),
            }
        }
        let first_use = if seen.is_ahead() { FirstUse::OfAhead } else { FirstUse::No };
        match seen.page() {
            Page::Resident(pfn) => Some((pfn, first_use)),
            Page::Absent | Page::Swapped(_) => unreachable!("only resident pages are mapped"),
        }
    }

    /// Undoes one [`Space::pin`].
    pub fn unpin(&self, vpn: Vpn) {
        let cell = self.table.entry(vpn);
        let before = Entry(cell.fetch_sub(PIN, AcqRel));
        debug_assert!(before.pins() > 0, "{vpn:?} was not pinned");
        if before.pins() == 1 && before.0 & WAITERS != 0 {
            cell.fetch_and(!WAITERS, AcqRel);
            self.notify(vpn);
        }
    }

    /// Clears the accessed bits of a page that still is in `pfn`.
    pub fn clear_accessed(&self, vpn: Vpn, pfn: Pfn) {
        let clear = |now: u64| {
            let ours = Entry(now).page() == Page::Resident(pfn) && now & LOCKED == 0;
            ours.then_some(now & !(ACCESSED | REFERENCED))
        };
        // A page that moved meanwhile keeps its bit: nothing to do.
        let _ = self.table.entry(vpn).fetch_update(AcqRel, Acquire, clear);
    }

    /// The first page from `vpn` to before `end` that may have contents.
    pub fn next_made(&self, vpn: Vpn, end: Vpn) -> Option<Vpn> {
        self.table.next_made(vpn, end)
    }
}
