//! The mappings of a [`Memory`](crate::Memory): what lies where in its range, and how much all of
//! them may hold.
//!
//! ```text
//! used: first page -> end, order of use      free: Vacant
//! ```
//! Conservation: used and free pages are all pages of the range; `reserved` is the sum of the used
//! ones. Locking: by the owner.

use crate::advice::Advice;
use highwater_mm::Range;
use highwater_serve::Vacant;
use highwater_units::Vpn;
use std::collections::BTreeMap;

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) range: Range,
    pub(crate) advice: Advice,
}

/// The mappings of a range.
pub(crate) struct Regions {
    used: BTreeMap<u64, (u64, Advice)>,
    free: Vacant,
    reserved: u64,
}

impl Regions {
    /// A range of `pages` free pages.
    pub(crate) fn new(pages: u64) -> Regions {
        Regions { used: BTreeMap::new(), free: Vacant::new(pages), reserved: 0 }
    }

    /// The pages of all mappings.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The mapping of a page.
    pub(crate) fn find(&self, vpn: Vpn) -> Option<Region> {
        let (first, (end, advice)) = self.used.range(..=vpn.0).next_back()?;
        let range = Range { first: Vpn(*first), end: Vpn(*end) };
        (vpn.0 < *end).then_some(Region { range, advice: *advice })
    }

    /// Adds a mapping of `pages` pages, its first a multiple of `align`. `None`: no free part has
    /// as many.
    pub(crate) fn add(&mut self, pages: u64, align: u64) -> Option<Range> {
        let range = self.free.take(pages, align)?;
        self.used.insert(range.first.0, (range.end.0, Advice::Detect));
        self.reserved += pages;
        Some(range)
    }

    /// Extends a mapping to `end` where it lies; `false` if other mappings are in the way.
    pub(crate) fn extend(&mut self, range: Range, end: Vpn) -> bool {
        let taken = self.free.take_at(Range { first: range.end, end });
        if taken {
            self.entry(range).0 = end.0;
            self.reserved += end.0 - range.end.0;
        }
        taken
    }

    /// Cuts a mapping off at `end`, behind its first page.
    pub(crate) fn cut(&mut self, range: Range, end: Vpn) {
        self.entry(range).0 = end.0;
        self.reserved -= range.end.0 - end.0;
        self.free.put(Range { first: end, end: range.end });
    }

    /// Removes a mapping.
    pub(crate) fn remove(&mut self, range: Range) {
        let removed = self.used.remove(&range.first.0);
        debug_assert_eq!(removed.map(|(end, _)| end), Some(range.end.0));
        self.reserved -= range.end.0 - range.first.0;
        self.free.put(range);
    }

    /// Sets how a mapping is used.
    pub(crate) fn advise(&mut self, range: Range, advice: Advice) {
        self.entry(range).1 = advice;
    }

    fn entry(&mut self, range: Range) -> &mut (u64, Advice) {
        let entry = self.used.get_mut(&range.first.0).expect("a mapping begins there");
        debug_assert_eq!(entry.0, range.end.0);
        entry
    }
}

#[cfg(test)]
#[path = "regions_fuzz.rs"]
mod fuzz;
