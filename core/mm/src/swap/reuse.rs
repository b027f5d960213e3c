//! How long ago pages were evicted: the distance from a page's eviction to its return, in pages
//! evicted meanwhile (the kernel's refault distance, mm/workingset.c).
//!
//! ```text
//! evicted to a slot    the slot's age = pages evicted so far
//! read from the slot   distance = pages evicted since
//!                      -> the list that the page joins                        fault/refault.rs
//!                      -> of one slot in 64: how much more memory would have avoided the read
//!                                                                             stats/reuse.rs
//! ```
//! Ages are coarse, a 4096th of memory rounded down to a power of two, and wrap: a page that
//! returns after 8 to 16 times as many evictions as memory has pages looks recently evicted.
//!
//! Locking: none; a slot's age changes while its page is held.

use super::by_slot::BySlot;
use crate::stats::REUSE_SAMPLED;
use highwater_units::Slot;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

/// Evictions of a whole memory, in ages.
const AGES_OF_MEMORY: u32 = 4096;

/// The number of pages evicted so far.
pub(super) struct EvictionClock {
    evicted: AtomicU64,
    /// Evictions of an age: 2^shift.
    shift: u32,
}

impl EvictionClock {
    /// No evictions, for a memory of `frames`.
    pub(super) fn new(frames: u32) -> EvictionClock {
        let shift = (frames / AGES_OF_MEMORY).max(1).ilog2();
        EvictionClock { evicted: AtomicU64::new(0), shift }
    }

    pub(super) fn pages(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    pub(super) fn advance(&self, pages: u32) {
        self.evicted.fetch_add(pages.into(), Relaxed);
    }

    /// The time, as slots have it: never 0.
    pub(super) fn now(&self) -> u16 {
        ((self.evicted.load(Relaxed) >> self.shift) as u16).max(1)
    }

    /// Evictions since an age.
    fn since(&self, age: u16) -> u32 {
        u32::from(self.now().wrapping_sub(age)) << self.shift
    }
}

/// The ages of a device's slots, by cluster, made at first use; 0: unknown.
pub(super) struct Ages(BySlot<AtomicU16>);

/// The slots of `pages` pages from `first` on.
pub(super) fn slots_from(first: Slot, pages: usize) -> Range<u32> {
    first.index..first.index + pages as u32
}

impl Ages {
    /// Unknown ages for `slots` slots.
    pub(super) fn new(slots: u32) -> Ages {
        Ages(BySlot::new(slots))
    }

    /// Notes that pages were evicted to some slots.
    pub(super) fn evicted(&self, slots: Range<u32>, clock: &EvictionClock) {
        let now = clock.now();
        for slot in slots {
            self.0.get_or_make(slot, || AtomicU16::new(0)).store(now, Relaxed);
        }
    }

    /// The number of pages evicted since the page of a slot was evicted; `None` if it is not known,
    /// or the slot is a place of a file.
    pub(super) fn distance(&self, slot: u32, clock: &EvictionClock) -> Option<u32> {
        let age = self.0.get(slot)?.load(Relaxed);
        (age != 0).then(|| clock.since(age))
    }

    /// The distance of the sampled slot among some adjacent slots, if there is one.
    pub(super) fn sampled_distance(&self, slots: Range<u32>, clock: &EvictionClock) -> Option<u32> {
        let sampled = slots.start.checked_next_multiple_of(REUSE_SAMPLED)?;
        slots.contains(&sampled).then(|| self.distance(sampled, clock)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_the_pages_evicted_meanwhile() {
        let (clock, ages) = (EvictionClock::new(4096), Ages::new(1000));
        assert_eq!(ages.distance(0, &clock), None, "never evicted");
        ages.evicted(500..530, &clock);
        clock.advance(1000);
        ages.evicted(510..511, &clock);
        assert_eq!(ages.distance(529, &clock), Some(999), "of two clusters");
        assert_eq!(
            [500, 510, 530].map(|slot| ages.distance(slot, &clock)),
            [Some(999), Some(0), None]
        );
        assert_eq!(ages.distance(5000, &clock), None, "the place of a file");
    }

    #[test]
    fn one_slot_in_64_is_sampled() {
        let (clock, ages) = (EvictionClock::new(1), Ages::new(1000));
        ages.evicted(0..1000, &clock);
        let table = [(0..1, true), (1..64, false), (1..65, true), (64..80, true), (65..81, false)];
        for (slots, expected) in table {
            let found = ages.sampled_distance(slots.clone(), &clock).is_some();
            assert_eq!(found, expected, "{slots:?}");
        }
    }

    #[test]
    fn ages_of_a_large_memory_are_coarse_and_wrap_late() {
        let frames = 1 << 20;
        let (clock, ages) = (EvictionClock::new(frames), Ages::new(1));
        clock.advance(3 * frames);
        ages.evicted(0..1, &clock);
        clock.advance(7);
        assert_eq!(ages.distance(0, &clock), Some(0));
        clock.advance(15 * frames);
        assert_eq!(ages.distance(0, &clock), Some(15 * frames));
    }
}
