//! Entries that a thread has locked: a run of up to 16 consecutive pages, or pages anywhere.
//!
//! A thread holds entries while it waits for a device; other threads wait for the space's event or
//! skip the page. A thread that holds entries only *tries* to lock more, or waits for a bounded
//! time ([`Space::hold_until`]), so entries cannot deadlock. It waits without a limit only for
//! pages that the program does not use yet (`range.rs`: `relocate`; `snapshot/shared.rs`:
//! `reserve`).

use super::entry::{Entry, LOCKED, PIN, PINS, Page, WAITERS};
use super::page_table::Space;
use crate::frame::Owner;
use highwater_platform::{Atomic, Platform, UNMAP_PAGES_MAX};
use highwater_units::{Direction, RUN_PAGES_MAX, SpaceId, Vpn};
use std::ops::Range;
use std::sync::atomic::Ordering::*;

/// Whether pinned pages may be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// Only unpinned pages: the holder may take their frames away.
    Refuse,
    /// Any page: the frame stays where it is.
    Accept,
}

/// Locked entries that no thread holds, until [`Held::back`].
#[must_use]
pub struct Left {
    space: SpaceId,
    first: Vpn,
    was: [Entry; RUN_PAGES_MAX],
    len: usize,
}

impl Left {
    /// The space of the entries.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Whether a page's entry is one of them.
    pub fn has(&self, space: SpaceId, vpn: Vpn) -> bool {
        let after = self.first.offset(self.len as u64);
        self.space == space && (self.first..after).contains(&vpn)
    }

    /// Wakes the threads that wait for one of them.
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
    /// The index of the page that was locked first.
    origin: usize,
}

impl<'a, P: Platform> Held<'a, P> {
    /// Tries to lock one entry. `None` if it is locked, or pinned and `pinned` refuses.
    pub fn lock(space: &'a Space<P>, vpn: Vpn, pinned: Pinned) -> Option<Held<'a, P>> {
        Held::lock_if(space, vpn, pinned, |_| true)
    }

    /// As [`Held::lock`], if `wanted` accepts the entry.
    pub fn lock_if(
        space: &'a Space<P>,
        vpn: Vpn,
        pinned: Pinned,
        wanted: impl Fn(Entry) -> bool,
    ) -> Option<Held<'a, P>> {
        let was = [Entry::ABSENT; RUN_PAGES_MAX];
        let mut held = Held { space, first: vpn, was, len: 0, origin: 0 };
        held.extend(pinned, wanted).then_some(held)
    }

    /// Tries to lock the entry after the last one, if `wanted` accepts it.
    pub fn extend(&mut self, pinned: Pinned, wanted: impl Fn(Entry) -> bool) -> bool {
        let vpn = self.first.offset(self.len as u64);
        if self.len == RUN_PAGES_MAX || vpn.0 >= self.space.pages {
            return false;
        }
        let locked = self.space.try_lock(vpn, pinned, wanted);
        if let Some(was) = locked {
            self.was[self.len] = was;
            self.len += 1;
        }
        locked.is_some()
    }

    /// Tries to lock the entry before the first one, if `wanted` accepts it.
    fn extend_down(&mut self, pinned: Pinned, wanted: impl Fn(Entry) -> bool) -> bool {
        let Some(vpn) = self.first.beside(Direction::Down) else { return false };
        if self.len == RUN_PAGES_MAX {
            return false;
        }
        let locked = self.space.try_lock(vpn, pinned, wanted);
        if let Some(was) = locked {
            self.was.copy_within(..self.len, 1);
            self.was[0] = was;
            (self.first, self.len, self.origin) = (vpn, self.len + 1, self.origin + 1);
        }
        locked.is_some()
    }

    /// Tries to lock the next entry in a direction, if `wanted` accepts it.
    pub fn extend_to(
        &mut self,
        direction: Direction,
        pinned: Pinned,
        wanted: impl Fn(Entry) -> bool,
    ) -> bool {
        match direction {
            Direction::Up => self.extend(pinned, wanted),
            Direction::Down => self.extend_down(pinned, wanted),
        }
    }

    /// Leaves the entries locked, without a holder.
    pub fn leave(mut self) -> Left {
        let Held { space, first, was, len, .. } = self;
        self.len = 0;
        Left { space: space.id, first, was, len }
    }

    /// Holds left entries again. `space` is theirs.
    pub fn back(space: &'a Space<P>, left: Left) -> Held<'a, P> {
        let Left { space: id, first, was, len } = left;
        debug_assert_eq!(space.id, id, "entries of another space");
        Held { space, first, was, len, origin: 0 }
    }

    /// The space.
    pub fn space(&self) -> &'a Space<P> {
        self.space
    }

    /// The first page.
    pub fn first(&self) -> Vpn {
        self.first
    }

    /// The index of the page that was locked first, which a fault wants.
    pub fn origin(&self) -> usize {
        self.origin
    }

    /// The page that was locked first.
    pub fn wanted(&self) -> Vpn {
        self.first.offset(self.origin as u64)
    }

    /// The page `index` pages after the first.
    pub fn owner(&self, index: usize) -> Owner {
        Owner { space: self.space.id, vpn: self.first.offset(index as u64) }
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a run has its first entry until it is unlocked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values with which the entries will be unlocked: those they had, or [`Held::change`]d.
    pub fn entries(&self) -> &[Entry] {
        &self.was[..self.len]
    }

    /// The state of the first page.
    pub fn page(&self) -> Page {
        self.was[0].page()
    }

    /// Sets the value with which an entry will be unlocked.
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

    /// Keeps the entries of a range of indices, with the one that was locked first; unlocks the
    /// others as they were.
    pub fn keep(&mut self, range: Range<usize>) {
        debug_assert!(range.contains(&self.origin), "the wanted page is kept");
        self.truncate(range.end);
        for index in 0..range.start {
            self.set(index, self.was[index]);
        }
        self.was.copy_within(range.clone(), 0);
        self.first = self.first.offset(range.start as u64);
        (self.len, self.origin) = (range.len(), self.origin - range.start);
    }

    /// Keeps `len` entries: those on the side of the one that was locked first.
    pub fn keep_nearest(&mut self, len: usize) {
        let start = if self.origin == 0 { 0 } else { self.len.saturating_sub(len) };
        self.keep(start..(start + len).min(self.len));
    }

    /// Unlocks all entries with new values, made from what they were.
    pub fn release(mut self, value: impl Fn(usize, Entry) -> Entry) {
        for index in 0..self.len {
            self.set(index, value(index, self.was[index]));
        }
        self.len = 0;
    }

    fn set(&self, index: usize, value: Entry) {
        self.space.unlock(self.first.offset(index as u64), value);
    }
}

impl<P: Platform> Drop for Held<'_, P> {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

impl<P: Platform> Space<P> {
    /// Tries to lock an entry that `wanted` accepts; returns its value.
    fn try_lock(
        &self,
        vpn: Vpn,
        pinned: Pinned,
        wanted: impl FnOnce(Entry) -> bool,
    ) -> Option<Entry> {
        let cell = self.table.entry(vpn);
        let seen = Entry(cell.load(Acquire));
        let barred = match pinned {
            Pinned::Refuse => LOCKED | PINS,
            Pinned::Accept => LOCKED,
        };
        let free = seen.0 & barred == 0 && wanted(seen);
        let locks = || cell.compare_exchange(seen.0, seen.0 | LOCKED, AcqRel, Relaxed).is_ok();
        (free && locks()).then(|| seen.settled())
    }

    /// Unlocks an entry with a new value, keeps its pins, and wakes its waiters.
    fn unlock(&self, vpn: Vpn, value: Entry) {
        let cell = self.table.entry(vpn);
        // Still locked: the next thread that cleans the page must find it counted.
        self.note_dirty(Entry(cell.load(Relaxed)), value);
        let unlock = |now: u64| Some(value.settled().0 | now & PINS);
        let before = cell.fetch_update(AcqRel, Acquire, unlock).expect("always some");
        debug_assert!(before & LOCKED != 0, "{vpn:?} was not locked");
        if before & WAITERS != 0 {
            self.notify(vpn);
        }
    }
}

/// A locked entry, with the value that it had.
struct Locked<'a, P: Platform> {
    space: &'a Space<P>,
    vpn: Vpn,
    was: Entry,
}

/// Locked entries of pages anywhere, up to [`UNMAP_PAGES_MAX`]. Dropping it unlocks them as they
/// were.
pub struct Scattered<'a, P: Platform> {
    pages: [Option<Locked<'a, P>>; UNMAP_PAGES_MAX],
    len: usize,
}

impl<'a, P: Platform> Scattered<'a, P> {
    /// No entries.
    pub fn none() -> Scattered<'a, P> {
        Scattered { pages: [const { None }; UNMAP_PAGES_MAX], len: 0 }
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tries to lock an entry of an unpinned page that `wanted` accepts; returns its value.
    pub fn lock(
        &mut self,
        space: &'a Space<P>,
        vpn: Vpn,
        wanted: impl FnOnce(Entry) -> bool,
    ) -> Option<Entry> {
        let was = space.try_lock(vpn, Pinned::Refuse, wanted)?;
        self.pages[self.len] = Some(Locked { space, vpn, was });
        self.len += 1;
        Some(was)
    }

    /// Unlocks an entry as it was. The last entry takes its place.
    pub fn unlock(&mut self, index: usize) {
        self.len -= 1;
        self.pages.swap(index, self.len);
        if let Some(Locked { space, vpn, was }) = self.pages[self.len].take() {
            space.unlock(vpn, was);
        }
    }

    /// Unlocks all entries with new values, made from what they were.
    pub fn release(mut self, value: impl Fn(usize, Entry) -> Entry) {
        for index in 0..std::mem::take(&mut self.len) {
            if let Some(Locked { space, vpn, was }) = self.pages[index].take() {
                space.unlock(vpn, value(index, was));
            }
        }
    }
}

impl<P: Platform> Drop for Scattered<'_, P> {
    fn drop(&mut self) {
        (0..self.len).rev().for_each(|index| self.unlock(index));
    }
}

const _: () = assert!(PINS / PIN == 0x1fff, "thirteen bits of pins");
