//! The stamp and the tag of each slot: 24 bytes of memory for a page of swap.
//!
//! Locks: none. By the contract of a device, a slot is written by one thread at a time, and is not
//! read meanwhile.

use crate::array::{Array, Zeroable};
use crate::seal::cipher::Tag;
use crate::seal::keys::Stamp;
use crate::slot_set::SlotSet;
use highwater_units::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A slot: its stamp, or zero if it has no contents, and its tag.
struct Record {
    stamp: AtomicU64,
    tag: [AtomicU64; 2],
}

// SAFETY: words, for which every bit pattern is a value.
unsafe impl Zeroable for Record {}

// Below 0.7 % of the swap.
const _: () = assert!(size_of::<Record>() * 1000 < PAGE_SIZE * 7);

/// The records of all slots, in a table that takes memory only where it is touched.
pub(super) struct Tags {
    records: Array<Record>,
    touched: SlotSet,
    /// Pages of the table that were touched.
    pages: AtomicU64,
}

impl Tags {
    /// `slots` slots without contents.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(slots: u32) -> Result<Tags, i32> {
        let pages = (slots as usize * size_of::<Record>()).div_ceil(PAGE_SIZE);
        let (records, touched) = (Array::new(slots as usize)?, SlotSet::new(pages as u32)?);
        Ok(Tags { records, touched, pages: AtomicU64::new(0) })
    }

    /// Bytes that were touched.
    pub(super) fn bytes(&self) -> u64 {
        self.pages.load(Relaxed) * PAGE_SIZE as u64
    }

    /// Records the last write to a slot; returns the stamp that the slot had.
    pub(super) fn set(&self, slot: u32, stamp: Stamp, tag: Tag) -> Option<Stamp> {
        self.touch(slot);
        let record = &self.records[slot as usize];
        record.tag[0].store(tag[0], Relaxed);
        record.tag[1].store(tag[1], Relaxed);
        stamp_of(record.stamp.swap(stamp.0, Relaxed))
    }

    /// The stamp and the tag of a slot's page; `None`: it has none.
    pub(super) fn get(&self, slot: u32) -> Option<(Stamp, Tag)> {
        let record = &self.records[slot as usize];
        let stamp = stamp_of(record.stamp.load(Relaxed))?;
        Some((stamp, [record.tag[0].load(Relaxed), record.tag[1].load(Relaxed)]))
    }

    /// Records that a slot has no contents any more; returns the stamp that it had.
    pub(super) fn clear(&self, slot: u32) -> Option<Stamp> {
        let record = &self.records[slot as usize];
        // A store would touch the page of a slot that was never written.
        stamp_of(record.stamp.load(Relaxed))?;
        stamp_of(record.stamp.swap(0, Relaxed))
    }

    /// Counts the pages of a record.
    fn touch(&self, slot: u32) {
        let first = slot as usize * size_of::<Record>();
        let (first, last) = (first / PAGE_SIZE, (first + size_of::<Record>() - 1) / PAGE_SIZE);
        let (first, pages) = (first as u32, (last - first + 1) as u32);
        if self.touched.missing(first, pages) > 0 {
            let new = self.touched.insert(first, pages);
            self.pages.fetch_add(new.into(), Relaxed);
        }
    }
}

fn stamp_of(word: u64) -> Option<Stamp> {
    (word != 0).then_some(Stamp(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_and_go_and_take_memory_where_they_are_touched() {
        let tags = Tags::new(10_000).unwrap();
        assert_eq!((tags.bytes(), tags.clear(3), tags.get(3)), (0, None, None));
        assert_eq!(tags.set(3, Stamp(9), [1, 2]), None);
        assert_eq!(tags.set(3, Stamp(10), [3, 4]), Some(Stamp(9)));
        assert_eq!(tags.get(3), Some((Stamp(10), [3, 4])));
        // 170 records and two thirds of one fit in a page.
        assert_eq!((tags.set(169, Stamp(11), [0; 2]), tags.bytes()), (None, 4096));
        assert_eq!((tags.set(170, Stamp(12), [0; 2]), tags.bytes()), (None, 8192));
        assert_eq!((tags.set(9_999, Stamp(13), [0; 2]), tags.bytes()), (None, 12288));
        assert_eq!((tags.clear(3), tags.clear(3), tags.get(3)), (Some(Stamp(10)), None, None));
        assert_eq!(tags.bytes(), 12288);
    }
}
