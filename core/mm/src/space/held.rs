//! Entries that this thread has locked: a run of up to 16 consecutive pages.
//!
//! A thread that waits for a device holds entries meanwhile; others wait for the space's event, or
//! leave the page alone. Who holds entries only *tries* for more, or waits for a bounded time
//! ([`Space::hold_until`]): there is no deadlock.

use super::entry::{Entry, LOCKED, PIN, PINS, WAITERS};
use super::{Owner, Page, Space};
use highwater_platform::{Atomic, Platform};
use highwater_units::{RUN_PAGES_MAX, SpaceId, Vpn};
use std::sync::atomic::Ordering::*;

/// Whether pages that guards hold may be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// Only pages nobody has pinned: their frames may be taken away.
    Refuse,
    /// Any: the frame stays where it is.
    Accept,
}

/// Locked entries that nobody has in hand, until [`Held::back`].
#[must_use]
pub struct Left {
    space: SpaceId,
    first: Vpn,
    was: [Entry; RUN_PAGES_MAX],
    len: usize,
}

impl Left {
    /// Whose they are.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Whether a page's is one of them.
    pub fn has(&self, space: SpaceId, vpn: Vpn) -> bool {
        let after = self.first.offset(self.len as u64);
        self.space == space && (self.first..after).contains(&vpn)
    }

    /// Lets those who wait for one of them look again.
    pub fn wake_waiters<P: Platform>(&self, space: &Space<P>) {
        let pages = (0..self.len).map(|index| self.first.offset(index as u64));
        let awaited = |vpn: &Vpn| space.table.entry(*vpn).load(SeqCst) & WAITERS != 0;
        pages.filter(awaited).for_each(|vpn| space.notify(vpn));
    }
}

/// Locked entries. Dropping it unlocks them as they were.
pub struct Held<'a, P: Platform> {
    space: &'a Space<P>,
    first: Vpn,
    was: [Entry; RUN_PAGES_MAX],
    len: usize,
}

impl<'a, P: Platform> Held<'a, P> {
    /// Locks one entry. `None` if it is locked, or pinned and `pinned` refuses that.
    pub fn lock(space: &'a Space<P>, vpn: Vpn, pinned: Pinned) -> Option<Held<'a, P>> {
        let mut held = Held { space, first: vpn, was: [Entry::ABSENT; RUN_PAGES_MAX], len: 0 };
        held.extend(pinned, |_| true).then_some(held)
    }

    /// Locks the entry after the last, if it is free and `wanted`.
    pub fn extend(&mut self, pinned: Pinned, wanted: impl Fn(Entry) -> bool) -> bool {
        let vpn = self.first.offset(self.len as u64);
        if self.len == RUN_PAGES_MAX || vpn.0 >= self.space.pages {
            return false;
        }
        let cell = self.space.table.entry(vpn);
        let seen = Entry(cell.load(Acquire));
        let barred = match pinned {
            Pinned::Refuse => LOCKED | PINS,
            Pinned::Accept => LOCKED,
        };
        let free = seen.0 & barred == 0 && wanted(seen);
        let locks = || cell.compare_exchange(seen.0, seen.0 | LOCKED, AcqRel, Relaxed).is_ok();
        if free && locks() {
            self.was[self.len] = seen.settled();
            self.len += 1;
            return true;
        }
        false
    }

    /// Leaves them locked.
    pub fn leave(mut self) -> Left {
        let Held { space, first, was, len } = self;
        self.len = 0;
        Left { space: space.id, first, was, len }
    }

    /// Takes them in hand again. `space` is the one they are of.
    pub fn back(space: &'a Space<P>, left: Left) -> Held<'a, P> {
        let Left { space: id, first, was, len } = left;
        debug_assert_eq!(space.id, id, "entries of another space");
        Held { space, first, was, len }
    }

    /// The space.
    pub fn space(&self) -> &'a Space<P> {
        self.space
    }

    /// The first page.
    pub fn first(&self) -> Vpn {
        self.first
    }

    /// The page `index` pages after the first.
    pub fn owner(&self, index: usize) -> Owner {
        Owner { space: self.space.id, vpn: self.first.offset(index as u64) }
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a run has at least its first entry until it is unlocked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the entries were when they were locked, or are to be.
    pub fn entries(&self) -> &[Entry] {
        &self.was[..self.len]
    }

    /// What the first page is.
    pub fn page(&self) -> Page {
        self.was[0].page()
    }

    /// Says what an entry is to be once it is unlocked, instead of what it was.
    pub fn change(&mut self, index: usize, value: Entry) {
        debug_assert!(index < self.len, "only what is held is changed");
        self.was[index] = value.settled();
    }

    /// Whether a thread waits for the entry.
    pub fn is_awaited(&self, index: usize) -> bool {
        let vpn = self.first.offset(index as u64);
        self.space.table.entry(vpn).load(Acquire) & WAITERS != 0
    }

    /// Unlocks the entries from `len` on, as they were.
    pub fn truncate(&mut self, len: usize) {
        for index in len..self.len {
            self.set(index, self.was[index]);
        }
        self.len = self.len.min(len);
    }

    /// Unlocks all entries with new values, made from what they were.
    pub fn release(mut self, value: impl Fn(usize, Entry) -> Entry) {
        for index in 0..self.len {
            self.set(index, value(index, self.was[index]));
        }
        self.len = 0;
    }

    /// Unlocks one entry, keeping its pins, and wakes who waits for it.
    fn set(&self, index: usize, value: Entry) {
        let vpn = self.first.offset(index as u64);
        let cell = self.space.table.entry(vpn);
        // While it is locked: who cleans it next must find it counted.
        self.space.note_dirty(Entry(cell.load(Relaxed)), value);
        let unlock = |now: u64| Some(value.settled().0 | now & PINS);
        let before = cell.fetch_update(AcqRel, Acquire, unlock).expect("always some");
        debug_assert!(before & LOCKED != 0, "{vpn:?} was not locked");
        if before & WAITERS != 0 {
            self.space.notify(vpn);
        }
    }
}

impl<P: Platform> Drop for Held<'_, P> {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

const _: () = assert!(PINS / PIN == 0x7fff, "fifteen bits of pins");
