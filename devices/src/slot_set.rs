//! A set of slots: one bit for each.
//!
//! Locks: none. Several threads may change bits of different slots at once, but no two threads the
//! bit of one slot.

use crate::array::Array;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A set of slots, in memory that is taken where it is touched.
pub(crate) struct SlotSet(Array<AtomicU64>);

impl SlotSet {
    /// An empty set of slots below `slots`.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn new(slots: u32) -> Result<SlotSet, i32> {
        Array::new((slots as usize).div_ceil(64)).map(SlotSet)
    }

    /// How many of the `pages` slots from `slot` on are not in the set.
    pub(crate) fn missing(&self, slot: u32, pages: u32) -> u32 {
        let missing = |(word, mask): (usize, u64)| mask & !self.0[word].load(Relaxed);
        bits(slot, pages).map(|bits| missing(bits).count_ones()).sum()
    }

    /// Adds slots; returns how many are new.
    pub(crate) fn insert(&self, slot: u32, pages: u32) -> u32 {
        let added = |(word, mask): (usize, u64)| mask & !self.0[word].fetch_or(mask, Relaxed);
        bits(slot, pages).map(|bits| added(bits).count_ones()).sum()
    }

    /// The slots of the set, in order.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> {
        let words = (0..).zip(self.0.iter());
        words.flat_map(|(index, word)| {
            let slot = move |bit: usize| index * 64 + bit as u32;
            crate::uring::members(word.load(Relaxed)).map(slot)
        })
    }

    /// Removes all slots.
    pub(crate) fn clear(&self) {
        let taken = self.0.iter().filter(|word| word.load(Relaxed) != 0);
        taken.for_each(|word| word.store(0, Relaxed));
    }

    /// Removes slots; returns how many there were.
    pub(crate) fn remove(&self, slot: u32, pages: u32) -> u32 {
        let removed = |(word, mask): (usize, u64)| mask & self.0[word].fetch_and(!mask, Relaxed);
        bits(slot, pages).map(|bits| removed(bits).count_ones()).sum()
    }
}

/// The bits of one or more slots: words, and masks in them.
fn bits(slot: u32, pages: u32) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (slot, slot + pages - 1);
    (first / 64..=last / 64).map(move |word| {
        let from = if word == first / 64 { first % 64 } else { 0 };
        let to = if word == last / 64 { last % 64 } else { 63 };
        (word as usize, u64::MAX << from & u64::MAX >> (63 - to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;
    use std::collections::BTreeSet;

    #[test]
    fn bits_of_a_run_match_one_by_one() {
        for (slot, pages) in
            (0..200).flat_map(|slot| [1, 2, 15, 16, 64, 65, 512].map(|pages| (slot, pages)))
        {
            let mut expected = [0u64; 12];
            (slot..slot + pages).for_each(|s| expected[s as usize / 64] |= 1 << (s % 64));
            let mut found = [0u64; 12];
            bits(slot, pages).for_each(|(word, mask)| found[word] |= mask);
            assert_eq!(found, expected, "{pages} from {slot}");
        }
    }

    #[test]
    fn random_changes_match_a_set() {
        let (mut random, mut model) = (Prng::new(5), BTreeSet::new());
        let set = SlotSet::new(300).unwrap();
        for _ in 0..5_000 {
            let slot = random.below(300) as u32;
            let pages = 1 + random.below(u64::from(300 - slot).min(40)) as u32;
            let slots = slot..slot + pages;
            let there = slots.clone().filter(|slot| model.contains(slot)).count() as u32;
            assert_eq!(set.missing(slot, pages), pages - there);
            if random.percent(50) {
                assert_eq!(set.insert(slot, pages), pages - there);
                model.extend(slots);
            } else {
                assert_eq!(set.remove(slot, pages), there);
                model.retain(|slot| !slots.contains(slot));
            }
            assert!(set.members().eq(model.iter().copied()));
        }
    }
}
