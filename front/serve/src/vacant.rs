//! The free pages of a range of addresses, from which its owner takes regions.
//!
//! ```text
//! by_first: first page -> end         neighbours are merged
//! by_length: (length, first page)     the smallest that fits is taken
//! ```
//! Conservation: both maps describe the same free ranges. Locking: by the owner.

use highwater_mm::Range;
use highwater_units::Vpn;
use std::collections::{BTreeMap, BTreeSet};

/// Free pages.
#[derive(Clone, Debug)]
pub struct Vacant {
    by_first: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Vacant {
    /// The pages from 0 up to, but not including, `pages`, all of them free.
    pub fn new(pages: u64) -> Vacant {
        let mut vacant = Vacant { by_first: BTreeMap::new(), by_length: BTreeSet::new() };
        vacant.add(0, pages);
        vacant
    }

    /// Takes `pages` contiguous pages, the first a multiple of `align`, from the smallest free
    /// range that has them; of equal ranges, from the lowest. `None`: no free range has them.
    pub fn take(&mut self, pages: u64, align: u64) -> Option<Range> {
        let fits = |(length, first): &(u64, u64)| {
            let start = first.next_multiple_of(align);
            (start + pages <= first + length).then_some((*first, start))
        };
        let (first, start) = self.by_length.range((pages, 0)..).find_map(fits)?;
        let end = self.remove(first);
        self.add(first, start);
        self.add(start + pages, end);
        Some(Range { first: Vpn(start), end: Vpn(start + pages) })
    }

    /// Takes all pages of a range; `false` if one of them is not free.
    pub fn take_at(&mut self, range: Range) -> bool {
        let (first, end) = (range.first.0, range.end.0);
        let holder = self.by_first.range(..=first).next_back().filter(|(_, stop)| **stop >= end);
        let Some((start, stop)) = holder.map(|(start, stop)| (*start, *stop)) else { return false };
        self.remove(start);
        self.add(start, first);
        self.add(end, stop);
        true
    }

    /// Frees a range. None of its pages may be free already.
    pub fn put(&mut self, range: Range) {
        let (mut first, mut end) = (range.first.0, range.end.0);
        let before = self.by_first.range(..first).next_back().map(|(f, e)| (*f, *e));
        if let Some((start, _)) = before.filter(|(_, stop)| *stop == first) {
            self.remove(start);
            first = start;
        }
        if self.by_first.contains_key(&end) {
            end = self.remove(end);
        }
        self.add(first, end);
    }

    /// The number of free pages.
    ///
    /// # Panics
    /// If the two maps differ, or neighbours are not merged.
    pub fn check(&self) -> u64 {
        let by_length = self.by_first.iter().map(|(first, end)| (end - first, *first));
        assert_eq!(by_length.collect::<BTreeSet<_>>(), self.by_length);
        let mut ends = self.by_first.values();
        assert!(ends.all(|end| !self.by_first.contains_key(end)), "free parts are merged");
        self.by_length.iter().map(|(length, _)| length).sum()
    }

    fn add(&mut self, first: u64, end: u64) {
        if first < end {
            self.by_first.insert(first, end);
            self.by_length.insert((end - first, first));
        }
    }

    fn remove(&mut self, first: u64) -> u64 {
        let end = self.by_first.remove(&first).expect("a free part starts there");
        self.by_length.remove(&(end - first, first));
        end
    }
}
