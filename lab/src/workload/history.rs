//! The last write of each word, so that lost writes are detected as well as wrong pages.
//!
//! ```text
//! page: word 0 1 2 3 ... 511     word w belongs to lane w % lanes; thread t writes lane t alone
//! lane: slot 0 1 ... slots-1     the k-th write of a lane to a page goes to a slot that k fixes
//! ```
//! So one count per (lane, page) gives the last version of every word of the page. Each page has
//! its own first slot, and the next slots follow in odd steps: this order visits all slots, and can
//! be inverted.
//!
//! A writer stores the value, then counts (release). A reader that reads the count first (acquire)
//! must find that write or a later one: the version is exact for its own words, and a lower bound
//! for those of other threads.

use super::WORDS;
use std::sync::atomic::{AtomicU32, Ordering};

/// From one slot to the next; odd, so that it visits all of a power of two.
const STEP: u32 = 0x9e37_79b1;
/// The inverse of [`STEP`] modulo 2^32, hence modulo every smaller power of two.
const STEP_INVERSE: u32 = inverse(STEP);

/// Newton's iteration for the inverse of an odd number: correct bits double each round.
const fn inverse(odd: u32) -> u32 {
    let mut x = odd;
    let mut round = 0;
    while round < 5 {
        x = x.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

/// Counts of writes, by lane and page: 4 bytes each, outside the memory under test.
pub struct History {
    counts: Vec<Vec<AtomicU32>>,
    lanes: usize,
}

/// A write that a thread is about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextWrite {
    /// Where in the page.
    pub word: usize,
    /// Its version.
    pub version: u32,
}

impl History {
    /// The most threads: each needs a word of its own in every page.
    pub const THREADS_MAX: usize = WORDS;

    /// No writes yet, by `threads` (1 to [`History::THREADS_MAX`]) threads to `pages` pages.
    pub fn new(threads: usize, pages: u64) -> History {
        assert!((1..=Self::THREADS_MAX).contains(&threads), "{threads} threads");
        let lane = |_| (0..pages).map(|_| AtomicU32::new(0)).collect();
        History { counts: (0..threads).map(lane).collect(), lanes: threads.next_power_of_two() }
    }

    /// Bytes a history of this shape takes.
    pub fn bytes(threads: usize, pages: u64) -> u64 {
        threads as u64 * pages * size_of::<AtomicU32>() as u64
    }

    /// Where thread `lane` writes next in `page`.
    ///
    /// # Panics
    /// At the 2^32nd write of one thread to one page.
    pub fn next_write(&self, lane: usize, page: u64) -> NextWrite {
        let count = self.counts[lane][page as usize].load(Ordering::Relaxed);
        let version = count.checked_add(1).expect("under 2^32 writes of a thread to a page");
        let slot = version.wrapping_mul(STEP).wrapping_add(start(lane, page)) & self.mask();
        NextWrite { word: slot as usize * self.lanes + lane, version }
    }

    /// Records that the lane's write of `version` has been stored.
    pub fn wrote(&self, lane: usize, page: u64, version: u32) {
        self.counts[lane][page as usize].store(version, Ordering::Release);
    }

    /// The lane that writes to a word; it may belong to no thread.
    pub fn lane_of(&self, word: usize) -> usize {
        word & (self.lanes - 1)
    }

    /// The version of a word's last recorded write; 0 if it still has its fill.
    pub fn version(&self, page: u64, word: usize) -> u32 {
        let lane = self.lane_of(word);
        let Some(counts) = self.counts.get(lane) else { return 0 };
        let count = counts[page as usize].load(Ordering::Acquire);
        let slot = (word / self.lanes) as u32;
        let residue = slot.wrapping_sub(start(lane, page)).wrapping_mul(STEP_INVERSE);
        let ago = count.wrapping_sub(residue) & self.mask();
        count.saturating_sub(ago)
    }

    /// Slots in a lane, less one.
    fn mask(&self) -> u32 {
        (WORDS / self.lanes) as u32 - 1
    }
}

/// Where a lane's slots begin in a page, so that writes to many pages spread over their words.
fn start(lane: usize, page: u64) -> u32 {
    let place = (page as u32).wrapping_add((lane as u32).rotate_right(8));
    let x = place.wrapping_mul(0x85eb_ca6b);
    x ^ (x >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_words_last_version_follows_from_one_count() {
        for threads in [1, 3, 8, WORDS] {
            let history = History::new(threads, 3);
            let mut last = vec![[0_u32; WORDS]; 3];
            let writes = 3 * WORDS / threads + 5;
            for (lane, page) in (0..threads).flat_map(|lane| (0..3_u64).map(move |p| (lane, p))) {
                for _ in 0..writes {
                    let NextWrite { word, version } = history.next_write(lane, page);
                    assert_eq!(history.lane_of(word), lane);
                    history.wrote(lane, page, version);
                    last[page as usize][word] = version;
                }
            }
            for (page, words) in last.iter().enumerate() {
                for (word, &version) in words.iter().enumerate() {
                    assert_eq!(history.version(page as u64, word), version, "{threads} {word}");
                }
            }
        }
    }

    #[test]
    fn words_not_yet_written_have_version_0() {
        let history = History::new(1, 1);
        let first = history.next_write(0, 0);
        history.wrote(0, 0, first.version);
        let written = (0..WORDS).filter(|&word| history.version(0, word) != 0);
        assert_eq!(written.collect::<Vec<_>>(), [first.word]);
    }
}
