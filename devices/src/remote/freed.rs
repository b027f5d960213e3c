//! Freed slots whose contents are still on the server.
//!
//! ```text
//! discard -> freed --take--> leaving --gone--> nothing       keeper: deletes them on the server
//!              \--- keep <---- waits while it is leaving     a writer of the slot
//! ```
//! A deletion in flight must not reach the server after the next write of its slot.
//!
//! Locks: none. A slot is in `leaving` before it leaves `freed`, so a writer that takes it out of
//! `freed` too late sees it in `leaving`. One thread takes slots.

use crate::array::Array;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

/// Words of a group of slots that are deleted together.
const WORDS: usize = 8;
/// Slots of a group.
pub(super) const GROUP: u32 = WORDS as u32 * u64::BITS;
/// How often a writer that waits for a deletion polls it.
const LOOK: Duration = Duration::from_micros(20);

/// The slots of a group, by bits.
pub(super) type Group = [u64; WORDS];

pub(super) struct Freed {
    freed: Array<AtomicU64>,
    leaving: Array<AtomicU64>,
    count: AtomicU32,
}

impl Freed {
    /// # Errors
    /// The system's error number.
    pub(super) fn new(slots: u32) -> Result<Freed, i32> {
        let words = slots.div_ceil(GROUP) as usize * WORDS;
        let (freed, leaving) = (Array::new(words)?, Array::new(words)?);
        Ok(Freed { freed, leaving, count: AtomicU32::new(0) })
    }

    /// Adds a slot; returns roughly how many there are.
    pub(super) fn add(&self, slot: u32) -> u32 {
        let (word, bit) = place(slot);
        self.freed[word].fetch_or(bit, SeqCst);
        self.count.fetch_add(1, Relaxed) + 1
    }

    /// Roughly how many slots were added since [`Freed::begin`].
    pub(super) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Restarts the count, before all groups are taken.
    pub(super) fn begin(&self) {
        self.count.store(0, Relaxed);
    }

    /// Records that some groups were not taken.
    pub(super) fn again(&self) {
        self.count.fetch_max(1, Relaxed);
    }

    /// Takes out slots that are about to be written again, and waits while they are leaving.
    pub(super) fn keep(&self, slots: impl Iterator<Item = u32>) {
        for (word, bit) in slots.map(place) {
            if self.freed[word].load(SeqCst) & bit != 0 {
                self.freed[word].fetch_and(!bit, SeqCst);
            }
            while self.leaving[word].load(SeqCst) & bit != 0 {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Takes the slots of a group, which count as leaving until [`Freed::gone`].
    pub(super) fn take(&self, group: u32) -> Group {
        std::array::from_fn(|index| {
            let word = group as usize * WORDS + index;
            let seen = self.freed[word].load(SeqCst);
            if seen == 0 {
                return 0;
            }
            self.leaving[word].store(seen, SeqCst);
            let taken = self.freed[word].fetch_and(!seen, SeqCst) & seen;
            self.leaving[word].store(taken, SeqCst);
            taken
        })
    }

    /// Whether no slot of a group is to be deleted.
    pub(super) fn is_empty(&self, group: u32) -> bool {
        let words = group as usize * WORDS..(group as usize + 1) * WORDS;
        self.freed[words].iter().all(|word| word.load(SeqCst) == 0)
    }

    /// The server has deleted the slots of a group, or was not asked to.
    pub(super) fn gone(&self, group: u32) {
        let words = group as usize * WORDS..(group as usize + 1) * WORDS;
        words.for_each(|word| self.leaving[word].store(0, SeqCst));
    }

    /// Forgets all slots.
    pub(super) fn clear(&self) {
        let used = self.freed.iter().filter(|word| word.load(Relaxed) != 0);
        used.for_each(|word| word.store(0, SeqCst));
    }
}

fn place(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

/// The slots of a group, counted from its first.
pub(super) fn members(group: Group) -> impl Iterator<Item = u32> {
    let words = group.into_iter().zip(0..);
    let bits = |(word, index): (u64, u32)| {
        crate::uring::members(word).map(move |bit| index * 64 + bit as u32)
    };
    words.flat_map(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

    #[test]
    fn random_slots_match_a_set() {
        let (mut random, mut model) = (Prng::new(8), BTreeSet::new());
        let freed = Freed::new(1100).unwrap();
        for _ in 0..3_000 {
            let slot = random.below(1100) as u32;
            match random.below(4) {
                0 => {
                    let group = slot / GROUP;
                    let taken: Vec<u32> =
                        members(freed.take(group)).map(|slot| group * GROUP + slot).collect();
                    let of_group = |slot: &u32| slot / GROUP == group;
                    assert!(taken.iter().copied().eq(model.iter().copied().filter(of_group)));
                    model.retain(|slot| !of_group(slot));
                    assert!(freed.is_empty(group));
                    freed.gone(group);
                }
                1 => {
                    freed.keep([slot].into_iter());
                    model.remove(&slot);
                }
                _ => {
                    freed.add(slot);
                    model.insert(slot);
                    assert!(!freed.is_empty(slot / GROUP));
                }
            }
        }
        freed.clear();
        assert_eq!(freed.take(0), [0; WORDS]);
    }

    #[test]
    fn a_writer_waits_for_a_slot_that_is_leaving() {
        let freed = Freed::new(GROUP).unwrap();
        freed.add(70);
        assert!(members(freed.take(0)).eq([70]));
        let deleted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                freed.keep(69..72);
                assert!(deleted.load(Acquire), "written before it was deleted");
            });
            std::thread::sleep(Duration::from_millis(20));
            deleted.store(true, Release);
            freed.gone(0);
        });
    }
}
