//! Which pages of the range are in use, and for what.
//!
//! ```text
//! used:  first page -> Region { end, use }      neighbours of equal use stay apart: a region
//! free:  Vacant                                 bounds the pages that one fault brings in
//! ```
//! A region that a thread unmaps or maps over is [`Use::Changing`] meanwhile: its contents are
//! dropped while it is still in use, so that no other thread gets its pages early, and a fault
//! there waits for the end of the change ([`Regions::await_change`]).
//!
//! Conservation: used and free regions partition the range. Locking: by the owner.

use crate::inherit::Inherited;
use highwater_mm::Range;
use highwater_serve::Vacant;
use highwater_units::{SpaceId, Vpn};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The use of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A mapping of the program.
    Mapping,
    /// A block of malloc.
    Block,
    /// The slabs of all smaller blocks.
    Objects,
    /// A mapping of a file; its pages are in a space of their own.
    File(SpaceId),
    /// A mapping of the kernel's, which the program made with MAP_FIXED.
    Foreign,
    /// A mapping of the kernel's, whose pages the program has locked (mlock).
    Locked,
    /// A thread is unmapping it, or mapping something over it.
    Changing,
}

impl Use {
    /// Whether the kernel serves the pages.
    pub(crate) fn is_kernels(self) -> bool {
        matches!(self, Use::Foreign | Use::Locked)
    }
}

/// A region in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Its pages.
    pub(crate) range: Range,
    /// Its use.
    pub(crate) used_as: Use,
}

/// The regions of a range.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    used: BTreeMap<u64, (u64, Use)>,
    free: Vacant,
    /// Advice about forked children.
    pub(crate) inherited: Inherited,
    awaited: Awaited,
}

/// Number of faults that were left waiting for the end of a change.
#[derive(Debug, Default)]
struct Awaited(AtomicU64);

impl Clone for Awaited {
    /// No fault waits for a copy.
    fn clone(&self) -> Awaited {
        Awaited::default()
    }
}

impl Regions {
    /// A range of `pages` free pages.
    pub(crate) fn new(pages: u64) -> Regions {
        Regions {
            used: BTreeMap::new(),
            free: Vacant::new(pages),
            inherited: Inherited::default(),
            awaited: Awaited::default(),
        }
    }

    /// The region of a page.
    pub(crate) fn find(&self, vpn: Vpn) -> Option<Region> {
        let (first, (end, used_as)) = self.used.range(..=vpn.0).next_back()?;
        let range = Range { first: Vpn(*first), end: Vpn(*end) };
        (vpn.0 < *end).then_some(Region { range, used_as: *used_as })
    }

    /// Takes `pages` pages whose first is a multiple of `align`, from the smallest free region that
    /// holds them, and the lowest of these.
    pub(crate) fn take(&mut self, pages: u64, align: u64, used_as: Use) -> Option<Range> {
        let range = self.free.take(pages, align)?;
        self.insert(range.first.0, range.end.0, used_as);
        Some(range)
    }

    /// Takes the `pages` pages at `first` if they are free.
    pub(crate) fn take_at(&mut self, first: Vpn, pages: u64, used_as: Use) -> bool {
        let range = Range { first, end: first.offset(pages) };
        let taken = self.free.take_at(range);
        if taken {
            self.insert(range.first.0, range.end.0, used_as);
        }
        taken
    }

    /// Number of pages of blocks and mappings.
    pub(crate) fn requested_pages(&self) -> u64 {
        let is_requested = |used_as: &Use| matches!(used_as, Use::Block | Use::Mapping);
        let requested = self.used.iter().filter(|(_, (_, used_as))| is_requested(used_as));
        requested.map(|(first, (end, _))| end - first).sum()
    }

    /// Number of pages that the program has locked.
    pub(crate) fn locked_pages(&self) -> u64 {
        let locked = self.used.iter().filter(|(_, (_, used_as))| *used_as == Use::Locked);
        locked.map(|(first, (end, _))| end - first).sum()
    }

    /// Number of blocks of malloc, and of their pages.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let blocks = self.used.iter().filter(|(_, (_, used_as))| *used_as == Use::Block);
        blocks.fold((0, 0), |(count, pages), (first, (end, _))| (count + 1, pages + end - first))
    }

    /// The whole regions that have pages in a range, the last first.
    pub(crate) fn within(&self, range: Range) -> Vec<Region> {
        let last = self.used.range(..range.end.0).rev();
        let touched = last.take_while(|(_, (end, _))| *end > range.first.0);
        let region = |(first, (end, used_as)): (&u64, &(u64, Use))| Region {
            range: Range { first: Vpn(*first), end: Vpn(*end) },
            used_as: *used_as,
        };
        touched.map(region).collect()
    }

    /// The parts of pages 0 to `end` that are not the kernel's, as (first, after the last).
    pub(crate) fn own_parts(&self, end: Vpn) -> Vec<(Vpn, Vpn)> {
        let foreign = self.used.iter().filter(|(_, (_, used_as))| used_as.is_kernels());
        let borders = foreign.map(|(first, (after, _))| (Vpn(*first), Vpn(*after)));
        let mut from = Vpn(0);
        let parts = borders
            .chain([(end, end)])
            .map(|(first, after)| (std::mem::replace(&mut from, after), first));
        parts.filter(|(first, after)| first < after).collect()
    }

    /// Whether all pages of a range are paged memory of the program.
    pub(crate) fn covers(&self, range: Range) -> bool {
        let paged = |region: &Region| match region.used_as {
            Use::Mapping | Use::Block | Use::Objects => true,
            Use::File(_) | Use::Foreign | Use::Locked | Use::Changing => false,
        };
        let within = |region: Region| {
            region.range.end.0.min(range.end.0) - region.range.first.0.max(range.first.0)
        };
        let pages: u64 = self.within(range).into_iter().filter(paged).map(within).sum();
        pages == range.end.0 - range.first.0
    }

    /// Makes a range in use a region of its own, with another use.
    pub(crate) fn change(&mut self, range: Range, used_as: Use) {
        self.release(range);
        let taken = self.take_at(range.first, range.end.0 - range.first.0, used_as);
        debug_assert!(taken, "just released");
    }

    /// Extends a region by free pages behind it.
    pub(crate) fn grow(&mut self, region: Region, pages: u64) -> bool {
        if !self.take_at(region.range.end, pages, region.used_as) {
            return false;
        }
        let tail = self.used.remove(&region.range.end.0).expect("just taken");
        self.used.insert(region.range.first.0, tail);
        true
    }

    /// Whether all pages of a range are in mappings of the program that are paged.
    pub(crate) fn is_mapped(&self, range: Range) -> bool {
        let regions = self.within(range);
        self.covers(range) && regions.iter().all(|region| region.used_as == Use::Mapping)
    }

    /// Begins to unmap a range: marks its parts in use as changing, and returns them as they were.
    /// Parts that another thread is changing are left to it.
    pub(crate) fn leave(&mut self, range: Range) -> Vec<Region> {
        let mut leaving = self.within(range);
        leaving.retain(|region| region.used_as != Use::Changing);
        for region in &mut leaving {
            let (first, end) = (region.range.first, region.range.end);
            region.range = Range { first: first.max(range.first), end: end.min(range.end) };
            self.cut(region.range);
            self.insert(region.range.first.0, region.range.end.0, Use::Changing);
        }
        leaving
    }

    /// Begins to map over a range: marks all of it as one changing region, and returns the parts
    /// that were in use. `None`: another thread is changing a part.
    pub(crate) fn replace(&mut self, range: Range) -> Option<Vec<Region>> {
        if self.is_changing(range) {
            return None;
        }
        let replaced = self.release(range);
        let taken = self.take_at(range.first, range.end.0 - range.first.0, Use::Changing);
        debug_assert!(taken, "just released");
        Some(replaced)
    }

    /// Whether a thread is changing a part of a range.
    pub(crate) fn is_changing(&self, range: Range) -> bool {
        self.within(range).iter().any(|region| region.used_as == Use::Changing)
    }

    /// Ends the change of a region, which is in use from now on.
    pub(crate) fn settle(&mut self, range: Range, used_as: Use) {
        let region = self.used.get_mut(&range.first.0).expect("it is changing");
        debug_assert_eq!(*region, (range.end.0, Use::Changing));
        region.1 = used_as;
    }

    /// Whether a page is changing. Counts a fault that waits: the changing thread wakes it.
    pub(crate) fn await_change(&self, vpn: Vpn) -> bool {
        let changing = self.find(vpn).is_some_and(|region| region.used_as == Use::Changing);
        if changing {
            self.awaited.0.fetch_add(1, Relaxed);
        }
        changing
    }

    /// Number of faults left waiting so far.
    pub(crate) fn awaited(&self) -> u64 {
        self.awaited.0.load(Relaxed)
    }

    /// Frees every used part of a range, and returns the parts.
    pub(crate) fn release(&mut self, range: Range) -> Vec<Region> {
        let released = self.cut(range);
        released.iter().for_each(|region| self.free.put(region.range));
        released
    }

    /// Removes the used parts of a range; the caller inserts or frees them.
    fn cut(&mut self, range: Range) -> Vec<Region> {
        let (from, to) = (range.first.0, range.end.0);
        let before = self.used.range(..from).next_back().filter(|(_, (end, _))| *end > from);
        let start = before.map_or(from, |(first, _)| *first);
        let touched: Vec<_> = self.used.range(start..to).map(|(f, (e, u))| (*f, *e, *u)).collect();
        for (first, end, used_as) in &touched {
            self.used.remove(first);
            if *first < from {
                self.insert(*first, from, *used_as);
            }
            if *end > to {
                self.insert(to, *end, *used_as);
            }
        }
        let cut = |(first, end, used_as): (u64, u64, Use)| Region {
            range: Range { first: Vpn(first.max(from)), end: Vpn(end.min(to)) },
            used_as,
        };
        touched.into_iter().map(cut).collect()
    }

    fn insert(&mut self, first: u64, end: u64, used_as: Use) {
        self.used.insert(first, (end, used_as));
    }
}

#[cfg(test)]
#[path = "regions_fuzz.rs"]
mod fuzz;
