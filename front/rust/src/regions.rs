//! The mappings of a [`Memory`](crate::Memory): where each of them lies in the memory's range, and
//! how much all of them may hold.
//!
//! ```text
//! used: first page -> end, advice, space of a file      free: Vacant
//! ```
//! Conservation: each page of the range is either used or free; `reserved` is the number of used
//! pages. Locking: by the owner.

use crate::advice::Advice;
use highwater_mm::Range;
use highwater_serve::Vacant;
use highwater_units::{SpaceId, Vpn};
use std::collections::BTreeMap;

/// The first space that a manager adds: that of anonymous memory.
pub(crate) const SPACE: SpaceId = SpaceId(0);

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) range: Range,
    pub(crate) advice: Advice,
    /// The space of the file that is mapped; `None`: anonymous memory, or a file that is not open.
    pub(crate) file: Option<SpaceId>,
}

/// The entry of a mapping in `used`, under its first page.
struct Row {
    end: u64,
    advice: Advice,
    file: Option<SpaceId>,
}

/// The mappings of a range.
pub(crate) struct Regions {
    used: BTreeMap<u64, Row>,
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
        let (first, row) = self.used.range(..=vpn.0).next_back()?;
        let range = Range { first: Vpn(*first), end: Vpn(row.end) };
        (vpn.0 < row.end).then_some(Region { range, advice: row.advice, file: row.file })
    }

    /// Adds a mapping of `pages` pages, the first of which is a multiple of `align`. `None`: no
    /// free part has so many pages.
    pub(crate) fn add(&mut self, pages: u64, align: u64) -> Option<Range> {
        let range = self.free.take(pages, align)?;
        let row = Row { end: range.end.0, advice: Advice::Detect, file: None };
        self.used.insert(range.first.0, row);
        self.reserved += pages;
        Some(range)
    }

    /// Extends a mapping to `end` in place; `false` if other mappings are in the way.
    pub(crate) fn extend(&mut self, range: Range, end: Vpn) -> bool {
        let taken = self.free.take_at(Range { first: range.end, end });
        if taken {
            self.entry(range).end = end.0;
            self.reserved += end.0 - range.end.0;
        }
        taken
    }

    /// Cuts off a mapping at `end`, which lies beyond its first page.
    pub(crate) fn cut(&mut self, range: Range, end: Vpn) {
        self.entry(range).end = end.0;
        self.reserved -= range.end.0 - end.0;
        self.free.put(Range { first: end, end: range.end });
    }

    /// Removes a mapping.
    pub(crate) fn remove(&mut self, range: Range) {
        let removed = self.used.remove(&range.first.0);
        debug_assert_eq!(removed.map(|row| row.end), Some(range.end.0));
        self.reserved -= range.end.0 - range.first.0;
        self.free.put(range);
    }

    /// Sets how a mapping is used.
    pub(crate) fn advise(&mut self, range: Range, advice: Advice) {
        self.entry(range).advice = advice;
    }

    /// Sets the space of the file whose pages a mapping has.
    pub(crate) fn set_file(&mut self, range: Range, file: Option<SpaceId>) {
        self.entry(range).file = file;
    }

    fn entry(&mut self, range: Range) -> &mut Row {
        let entry = self.used.get_mut(&range.first.0).expect("a mapping begins there");
        debug_assert_eq!(entry.end, range.end.0);
        entry
    }
}

#[cfg(test)]
#[path = "regions_fuzz.rs"]
mod fuzz;
