//! Level and block of each slot: a word per slot, changed by compare-and-exchange only.
//!
//! ```text
//! Empty   0 |        | pins: 12
//! Fast    1 | moving | pins: 12 | stamp: 8 | block: 32
//! Slow    2 |                              | block: 32
//! ```
//! As with every device, callers do not write or discard a slot during another transfer of it;
//! several may read it. So the table resolves only conflicts between such a caller and the mover.
//!
//! - A pin keeps a block of the fast level in place. Readers pin, and so does the mover while it
//!   copies a page out. No thread waits for the slow device with a pin.
//! - The mover marks an unpinned slot, and commits the move only if the mark is still set. A caller
//!   that pins, overwrites or discards the slot clears the mark, which voids the move: so a dropped
//!   page does not come back, and a page that was just read is not moved as cold.
//! - A caller that drops a pinned slot leaves its block to the mover, which frees it after its pin.

use crate::array::Array;
use std::ops::Range;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

const KIND: u64 = 0b11;
const FAST: u64 = 1;
const SLOW: u64 = 2;
const MOVING: u64 = 1 << 2;
const PINS_SHIFT: u32 = 4;
const PIN: u64 = 1 << PINS_SHIFT;
const PINS: u64 = 0xfff << PINS_SHIFT;
const STAMP_SHIFT: u32 = 16;
const STAMP: u64 = 0xff << STAMP_SHIFT;
const BLOCK_SHIFT: u32 = 32;

/// The time of a slot's last read or write: a count that wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(pub(super) u8);

impl Stamp {
    /// The age at `now`, in steps.
    fn age(self, now: Stamp) -> u8 {
        now.0.wrapping_sub(self.0)
    }
}

/// The place of a slot's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Never written, or dropped.
    Empty,
    /// In this block of the fast level.
    Fast(u32),
    /// In this block of the slow level.
    Slow(u32),
}

/// The state of the slot when the mover ends its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unpinned {
    /// The page is still in its block.
    Kept,
    /// The slot was dropped: the mover frees its block. The pin is still held.
    Dropped,
}

/// The result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// The slot is in its slow block; the mover frees the fast one.
    Moved,
    /// The slot was used meanwhile: the mover frees the slow block.
    Void,
}

/// The places of all slots.
pub(super) struct Table {
    words: Array<AtomicU64>,
    /// No slot from this one on was ever in the fast level.
    end: AtomicU32,
}

impl Table {
    /// A table of empty slots.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(slots: u32) -> Result<Table, i32> {
        Ok(Table { words: Array::new(slots as usize)?, end: AtomicU32::new(0) })
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> u32 {
        self.words.len() as u32
    }

    /// The slots that may be in the fast level. Most slots of a large device are never used: to
    /// read all of their words takes longer than to move pages, and maps a page of zeros for every
    /// 512 slots.
    pub(super) fn ever_fast(&self) -> Range<u32> {
        0..self.end.load(Relaxed)
    }

    /// The place of a slot's page. A page in the fast level is pinned and marked as used now.
    pub(super) fn pin(&self, slot: u32, now: Stamp) -> Place {
        let used = |word: u64| {
            let place = word & !(MOVING | STAMP) | u64::from(now.0) << STAMP_SHIFT;
            (word & KIND == FAST).then(|| place + PIN)
        };
        let word = match self.word(slot).fetch_update(AcqRel, Acquire, used) {
            Ok(word) | Err(word) => word,
        };
        place(word)
    }

    /// The place of a slot's page now. It may move on at once.
    pub(super) fn place(&self, slot: u32) -> Place {
        place(self.word(slot).load(Relaxed))
    }

    /// Ends a reader's pin.
    pub(super) fn unpin(&self, slot: u32) {
        self.word(slot).fetch_sub(PIN, Release);
    }

    /// Sets the place of an empty slot's page.
    pub(super) fn set(&self, slot: u32, place: Place, now: Stamp) {
        let word = match place {
            Place::Empty => 0,
            Place::Fast(block) => {
                // Seldom grows: all CPUs read it.
                if slot >= self.end.load(Relaxed) {
                    self.end.fetch_max(slot + 1, Relaxed);
                }
                FAST | u64::from(now.0) << STAMP_SHIFT | u64::from(block) << BLOCK_SHIFT
            }
            Place::Slow(block) => SLOW | u64::from(block) << BLOCK_SHIFT,
        };
        self.word(slot).store(word, Release);
    }

    /// Drops a slot without waiting; returns the place that the caller must free.
    pub(super) fn drop_slot(&self, slot: u32) -> Place {
        let word = self.word(slot);
        let mut old = word.load(Acquire);
        while let Err(now) = word.compare_exchange_weak(old, old & PINS, AcqRel, Acquire) {
            old = now;
        }
        match old & PINS {
            0 => place(old),
            // The mover is copying from the block, and frees it.
            _ => Place::Empty,
        }
    }

    /// Waits until the mover releases a dropped slot, which takes the copying of one page.
    pub(super) fn wait_unpinned(&self, slot: u32) {
        while self.word(slot).load(Acquire) & PINS != 0 {
            std::thread::yield_now();
        }
    }

    /// Age and block of a slot in the fast level.
    pub(super) fn age(&self, slot: u32, now: Stamp) -> Option<(u8, u32)> {
        let word = self.word(slot).load(Relaxed);
        (word & KIND == FAST).then(|| (stamp(word).age(now), block(word)))
    }

    /// Marks and pins a slot of the fast level that is at least `age` steps old; returns its block.
    pub(super) fn begin_move(&self, slot: u32, age: u8, now: Stamp) -> Option<u32> {
        let word = self.word(slot).load(Acquire);
        let cold = word & KIND == FAST && word & PINS == 0 && stamp(word).age(now) >= age;
        let marked = (word | MOVING) + PIN;
        let won = cold && self.word(slot).compare_exchange(word, marked, AcqRel, Relaxed).is_ok();
        won.then_some(block(word))
    }

    /// Ends the mover's pin after it copied the page.
    pub(super) fn end_copy(&self, slot: u32) -> Unpinned {
        let kept = |word: u64| (word & KIND == FAST).then(|| word - PIN);
        match self.word(slot).fetch_update(AcqRel, Acquire, kept) {
            Ok(_) => Unpinned::Kept,
            Err(_) => Unpinned::Dropped,
        }
    }

    /// Moves the slot to the slow block, which has the page, if it was not used since it was
    /// marked.
    pub(super) fn commit(&self, slot: u32, to: u32) -> Committed {
        let slow = SLOW | u64::from(to) << BLOCK_SHIFT;
        let unused = |word: u64| (word & MOVING != 0).then_some(slow);
        match self.word(slot).fetch_update(AcqRel, Relaxed, unused) {
            Ok(_) => Committed::Moved,
            Err(_) => Committed::Void,
        }
    }

    /// Cancels a move: the page stays in the fast level.
    pub(super) fn cancel(&self, slot: u32) {
        let marked = |word: u64| (word & MOVING != 0).then_some(word & !MOVING);
        // Without a mark the slot was used, and there is nothing to cancel.
        let _ = self.word(slot).fetch_update(AcqRel, Relaxed, marked);
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        &self.words[slot as usize]
    }
}

fn block(word: u64) -> u32 {
    (word >> BLOCK_SHIFT) as u32
}

fn stamp(word: u64) -> Stamp {
    Stamp((word >> STAMP_SHIFT) as u8)
}

fn place(word: u64) -> Place {
    match word & KIND {
        FAST => Place::Fast(block(word)),
        SLOW => Place::Slow(block(word)),
        _ => Place::Empty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Stamp = Stamp(3);
    const LATER: Stamp = Stamp(10);

    fn moving() -> Table {
        let table = Table::new(8).unwrap();
        table.set(5, Place::Fast(77), NOW);
        assert_eq!(table.begin_move(5, 8, LATER), None, "used 7 steps ago");
        assert_eq!(table.begin_move(5, 7, LATER), Some(77));
        table
    }

    #[test]
    fn slots_that_were_never_in_the_fast_level_are_not_searched() {
        let table = Table::new(1 << 24).unwrap();
        assert_eq!(table.ever_fast(), 0..0);
        table.set(7, Place::Fast(1), NOW);
        table.set(1 << 20, Place::Slow(2), NOW);
        assert_eq!(table.ever_fast(), 0..8, "not the slots of the slow level");
        table.set(3, Place::Fast(3), NOW);
        table.drop_slot(7);
        assert_eq!(table.ever_fast(), 0..8, "it may be used again");
    }

    #[test]
    fn an_unused_slot_moves() {
        let table = moving();
        assert_eq!(table.end_copy(5), Unpinned::Kept);
        assert_eq!(table.commit(5, 9), Committed::Moved);
        assert_eq!(table.pin(5, LATER), Place::Slow(9));
        assert_eq!(table.drop_slot(5), Place::Slow(9));
        assert_eq!(table.pin(5, LATER), Place::Empty);
    }

    #[test]
    fn a_slot_that_is_read_stays() {
        let table = moving();
        assert_eq!(table.end_copy(5), Unpinned::Kept);
        assert_eq!(table.pin(5, LATER), Place::Fast(77));
        assert_eq!(table.commit(5, 9), Committed::Void, "somebody reads");
        table.unpin(5);
        assert_eq!(table.commit(5, 9), Committed::Void, "somebody read");
        assert_eq!(table.age(5, LATER), Some((0, 77)));
    }

    #[test]
    fn a_slot_dropped_during_the_copy_leaves_its_block_to_the_mover() {
        let table = moving();
        assert_eq!(table.drop_slot(5), Place::Empty);
        assert_eq!(table.end_copy(5), Unpinned::Dropped);
        table.unpin(5);
        table.wait_unpinned(5);
        table.set(5, Place::Fast(77), LATER);
        assert_eq!(table.commit(5, 9), Committed::Void, "other contents");
    }

    #[test]
    fn a_slot_dropped_or_rewritten_during_the_write_is_not_moved() {
        let table = moving();
        assert_eq!(table.end_copy(5), Unpinned::Kept);
        assert_eq!(table.drop_slot(5), Place::Fast(77));
        assert_eq!(table.commit(5, 9), Committed::Void);
        table.set(5, Place::Fast(77), LATER);
        assert_eq!(table.commit(5, 9), Committed::Void, "the same block, other contents");
        table.cancel(5);
        assert_eq!(table.pin(5, LATER), Place::Fast(77));
    }

    #[test]
    fn ages_wrap() {
        let table = Table::new(1).unwrap();
        table.set(0, Place::Fast(1), Stamp(250));
        assert_eq!(table.age(0, Stamp(4)), Some((10, 1)));
    }
}
