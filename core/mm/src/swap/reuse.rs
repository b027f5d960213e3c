//! How much more memory would have avoided reads: the distance from a page's eviction to its
//! return, in pages evicted meanwhile (the kernel's refault distance, mm/workingset.c).
//!
//! ```text
//! evicted to a slot    the slot's age = pages evicted so far
//! read from the slot   distance = pages evicted since; stats/reuse.rs makes frames of distances
//! ```
//! One slot in 64 has an age, of a large device fewer: those stand for all.
//!
//! Locking: none; a slot's age changes while its page is held.

use highwater_units::Slot;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// At most one slot in so many is sampled: a transfer has fewer pages.
const SAMPLED_MIN: u32 = 64;
/// Most sampled slots of a device: 64 KiB of ages.
const AGES_MAX: u32 = 1 << 14;

/// The number of pages evicted so far.
#[derive(Default)]
pub(super) struct EvictionClock(AtomicU64);

impl EvictionClock {
    pub(super) fn advance(&self, pages: u32) {
        self.0.fetch_add(pages.into(), Relaxed);
    }

    /// The time, as ages have it: never 0.
    pub(super) fn now(&self) -> u32 {
        (self.0.load(Relaxed) as u32).max(1)
    }
}

/// The ages of a device's sampled slots.
pub(super) struct Ages {
    /// One slot in so many.
    sampled: u32,
    /// 0: unknown.
    ages: Vec<AtomicU32>,
}

/// The slots of `pages` pages from `first` on.
pub(super) fn slots_from(first: Slot, pages: usize) -> Range<u32> {
    first.index..first.index + pages as u32
}

impl Ages {
    /// Unknown ones for `slots` slots.
    pub(super) fn new(slots: u32) -> Ages {
        let sampled = slots.div_ceil(AGES_MAX).max(SAMPLED_MIN);
        let ages = (0..slots.div_ceil(sampled)).map(|_| AtomicU32::new(0)).collect();
        Ages { sampled, ages }
    }

    /// The age of the sampled one of some adjacent slots. Places of a file have none.
    fn of(&self, slots: Range<u32>) -> Option<&AtomicU32> {
        let index = slots.start.div_ceil(self.sampled);
        let age = || self.ages.get(index as usize);
        (index < slots.end.div_ceil(self.sampled)).then(age).flatten()
    }

    /// Pages were evicted at `now` to some adjacent slots.
    pub(super) fn evicted(&self, slots: Range<u32>, now: u32) {
        if let Some(age) = self.of(slots) {
            age.store(now, Relaxed);
        }
    }

    /// Some adjacent slots are read at `now`: the distance of the sampled one, in pages.
    pub(super) fn distance(&self, slots: Range<u32>, now: u32) -> Option<u32> {
        let age = self.of(slots)?.load(Relaxed);
        (age != 0).then(|| now.wrapping_sub(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slot_in_64_is_sampled() {
        let ages = Ages::new(1000);
        let table = [(0..1, Some(0)), (1..64, None), (1..65, Some(1)), (64..80, Some(1))];
        for (slots, expected) in table {
            let expected = expected.map(|index: usize| &raw const ages.ages[index]);
            assert_eq!(ages.of(slots.clone()).map(|age| &raw const *age), expected, "{slots:?}");
        }
    }

    #[test]
    fn ages_of_a_large_device_take_little_memory() {
        let ages = Ages::new(u32::MAX);
        assert!(ages.ages.len() <= AGES_MAX as usize);
        ages.evicted(u32::MAX - ages.sampled..u32::MAX, 7);
    }

    #[test]
    fn distances_count_the_pages_evicted_meanwhile() {
        let (clock, ages) = (EvictionClock::default(), Ages::new(129));
        assert_eq!(ages.distance(0..16, clock.now()), None, "never evicted");
        ages.evicted(0..16, clock.now());
        clock.advance(1000);
        assert_eq!(ages.distance(0..1, clock.now()), Some(999));
        ages.evicted(120..129, clock.now());
        clock.advance(5);
        assert_eq!(ages.distance(128..129, clock.now()), Some(5));
        assert_eq!(ages.distance(120..128, clock.now()), None, "not sampled");
        // Ages have 32 bits.
        ages.evicted(0..1, u32::MAX - 2);
        assert_eq!(ages.distance(0..1, 7), Some(10));
    }
}
