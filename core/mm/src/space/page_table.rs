//! The page table of a space: its entries, its pins, and the state of its file.

use super::entry::{ACCESSED, AHEAD, Entry, LOCKED, PIN, PINS, Page, REFERENCED, WAITERS};
use super::table::Table;
use crate::frame::Kind;
use highwater_platform::{Atomic, Event, FileAccess, Platform};
use highwater_units::{Order, Pfn, SpaceId, Vpn};
use std::sync::atomic::Ordering::*;

/// Events for waiters; a page number maps to one.
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

/// An access of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
}

/// Where a space keeps the pages that are in no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In swap slots; pages that were never written read as zeros.
    Anonymous,
    /// On a device of role File, each in the slot of its number.
    File {
        /// The device.
        device: u8,
    },
}

/// Whether a pin is the first seen use of a page that was read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstUse {
    /// The page was used before, or was not read ahead.
    No,
    /// The first use of a page that was read ahead.
    OfAhead,
}

impl Backing {
    /// The LRU lists of its pages.
    pub fn kind(self) -> Kind {
        match self {
            Backing::Anonymous => Kind::Anon,
            Backing::File { .. } => Kind::File,
        }
    }
}

/// A page table.
pub struct Space<P: Platform> {
    pub(super) id: SpaceId,
    pub(super) pages: u64,
    order: Order,
    backing: Backing,
    pub(super) table: Table<P>,
    events: Vec<P::Event>,
    /// Pages of a file that are dirty; 0 of anonymous memory.
    dirty: P::Atomic<u64>,
    /// The first page behind the end of the file.
    end: P::Atomic<u64>,
    /// 1: the file is open for reading only.
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

    /// Its id in the owners of frames.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The order of its pages: each has 2^order adjacent frames. Not 0 in a space of folios.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The first 4 KiB of a page, in the platform's numbering.
    pub fn mapping(&self, vpn: Vpn) -> Vpn {
        Vpn(vpn.0 << self.order.0)
    }

    /// Its size, in pages of its own.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Where the space keeps the pages that are in no frame.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The first page behind the end of the file. A reader checks it while it holds the entries of
    /// its pages: either it sees the new end, or the truncation waits for it.
    pub fn end(&self) -> Vpn {
        Vpn(self.end.load(SeqCst))
    }

    /// Moves the end of the file down to `end`. Returns the old end. The caller then drops the
    /// pages behind the new one.
    pub fn cut(&self, end: Vpn) -> Vpn {
        let shorter = |now: u64| (end.0 < now).then_some(end.0);
        Vpn(self.end.fetch_update(SeqCst, SeqCst, shorter).unwrap_or(end.0))
    }

    /// Gives a vacant space, whose end is 0, to a file.
    pub fn begin(&self, end: Vpn, access: FileAccess) {
        debug_assert!(self.end() == Vpn(0) && end.0 <= self.pages, "{:?} is vacant", self.id);
        self.read_only.store(u8::from(access == FileAccess::Read), SeqCst);
        self.end.store(end.0, SeqCst);
    }

    /// The access that the file was opened for.
    pub fn access(&self) -> FileAccess {
        match self.read_only.load(SeqCst) {
            0 => FileAccess::ReadWrite,
            _ => FileAccess::Read,
        }
    }

    /// Dirty pages of the file; 0 of anonymous memory.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(SeqCst)
    }

    /// Counts a change of a locked entry.
    pub(super) fn note_dirty(&self, before: Entry, now: Entry) {
        match (self.backing, before.is_dirty(), now.is_dirty()) {
            (Backing::File { .. }, false, true) => self.dirty.fetch_add(1, SeqCst),
            (Backing::File { .. }, true, false) => self.dirty.fetch_sub(1, SeqCst),
            _ => return,
        };
    }

    /// The present entry of a page inside the space. Makes no leaf, because readahead asks for
    /// pages all over the space that words of the program only seem to name.
    pub fn entry(&self, vpn: Vpn) -> Entry {
        self.table.made(vpn).map_or(Entry::ABSENT, |cell| Entry(cell.load(Acquire)))
    }

    pub(super) fn event(&self, vpn: Vpn) -> &P::Event {
        &self.events[vpn.0 as usize % EVENTS]
    }

    pub(super) fn notify(&self, vpn: Vpn) {
        self.event(vpn).notify_all();
    }

    /// Pins a mapped page for a guard, until [`Space::unpin`]. `None` if the access needs a fault
    /// first. One compare-and-swap.
    pub fn pin(&self, vpn: Vpn, access: Access) -> Option<(Pfn, FirstUse)> {
        let cell = self.table.entry(vpn);
        let mut seen = Entry(cell.load(Acquire));
        loop {
            let allowed = access == Access::Read || seen.is_dirty();
            if seen.is_locked() || !seen.is_mapped() || !allowed || seen.pins() == PINS / PIN {
                return None;
            }
            // A page that was accessed becomes REFERENCED.
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
            _ => unreachable!("only resident pages are mapped"),
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

    /// Whether a page is mapped now; a page beyond the end is not.
    pub fn is_mapped(&self, vpn: Vpn) -> bool {
        vpn.0 < self.pages() && self.entry(vpn).is_mapped()
    }

    /// Clears the accessed bits of a page that is still in `pfn`.
    pub fn clear_accessed(&self, vpn: Vpn, pfn: Pfn) {
        let clear = |now: u64| {
            let ours = Entry(now).page() == Page::Resident(pfn) && now & LOCKED == 0;
            ours.then_some(now & !(ACCESSED | REFERENCED))
        };
        // A page that moved keeps its bit.
        let _ = self.table.entry(vpn).fetch_update(AcqRel, Acquire, clear);
    }

    /// The first page from `vpn` to before `end` that may have contents: leaves of the table that
    /// were never made are skipped.
    pub fn next_made(&self, vpn: Vpn, end: Vpn) -> Option<Vpn> {
        self.table.next_made(vpn, end)
    }
}
