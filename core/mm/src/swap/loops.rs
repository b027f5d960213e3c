//! Whether pages are used in a loop that is longer than memory: an array that is read again and
//! again, a heap that a collector walks.
//!
//! In such a loop, LRU eviction removes each page shortly before its next use, and all pages are
//! read in every round. If pages that are read stay on the inactive list instead, the active ones
//! keep their frames, and each round reads only the pages that find no room ("LIRS: An Efficient
//! Low Inter-reference Recency Set Replacement Policy", Jiang and Zhang, 2002). That is wrong if
//! the program no longer uses the active pages, so these are sampled:
//!
//! ```text
//! other --- reuse distances alike: 3/4 of them within a factor of 4 ---> loop
//! loop --- a block of the oldest active pages, unmapped: less than 3/4 of them were used again
//!          within a round and a half ---> other, for a while
//! loop --- distances that differ ---> other
//! ```
//! Distances begin or end a loop if they are alike, or differ, in two windows of samples in a row.
//! Pages that are used at random have distances that differ: of exponential ones, less than half
//! are within any factor of 4.
//!
//! Locking: none. Windows are ended by the thread whose sample is the last one; the stage of a
//! sample is claimed by compare-and-swap.

use crate::stats::REUSE_SAMPLED;
use highwater_units::{LARGE_PAGES, SpaceId, Vpn};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Buckets of distances, two for each power of two.
const BUCKETS: usize = 64;
/// Adjacent buckets that make a factor of 4.
const ALIKE: usize = 4;
/// Distances in a window, one for each [`REUSE_SAMPLED`] pages read.
const WINDOW: u32 = 64;
/// Windows in a row that begin or end a loop.
const WINDOWS: u8 = 2;
/// After active pages were found unused, pages are not taken for those of a loop again until this
/// many times the size of memory was evicted; doubled each time, up to 2^[`DOUBLINGS`]. The mistake
/// has cost reads of once or twice the size of memory.
const REST: u64 = 16;
const DOUBLINGS: u32 = 5;
/// In a loop, one in this many pages that are read by a fault of their own becomes active, so that
/// the active list follows changes of the program.
const ACTIVE_IN: u32 = 16;

/// A step of the sampling, for reclaim to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Nothing.
    Nothing,
    /// Unmap active pages of a block, and report which ones ([`Loops::sampled`]).
    Sample,
    /// Count how many of the sampled pages were used again, and report it ([`Loops::judge`]).
    Judge(Sample),
}

/// Pages that were unmapped, of a block of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    space: SpaceId,
    block: Vpn,
    /// A bit for each page.
    pages: [u64; WORDS],
}

/// Words with a bit for each page of a block.
const WORDS: usize = LARGE_PAGES / 64;

impl Sample {
    /// Some pages of a block.
    pub fn new(space: SpaceId, block: Vpn, pages: impl Iterator<Item = Vpn>) -> Sample {
        let mut words = [0; WORDS];
        let places = pages.filter_map(|vpn| vpn.0.checked_sub(block.0).map(|it| it as usize));
        places
            .filter(|place| *place < LARGE_PAGES)
            .for_each(|place| words[place / 64] |= 1 << (place % 64));
        Sample { space, block, pages: words }
    }

    /// The space.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// The pages.
    pub fn pages(&self) -> impl Iterator<Item = Vpn> + '_ {
        let is_in = |place: &usize| self.pages[place / 64] >> (place % 64) & 1 == 1;
        (0..LARGE_PAGES).filter(is_in).map(|place| self.block.offset(place as u64))
    }
}

/// The state of reclaim.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Pages evicted so far.
    pub evicted: u64,
    /// Pages on the inactive list.
    pub inactive: u32,
    /// Frames of memory.
    pub frames: u64,
}

/// The stages of a sample.
const WANTED: u8 = 0;
const TAKEN: u8 = 1;
const BUSY: u8 = 2;

/// The state of the detection.
pub struct Loops {
    /// Sampled distances of the present window.
    distances: [AtomicU32; BUCKETS],
    seen: AtomicU32,
    is_loop: AtomicBool,
    /// Windows in a row that show the opposite.
    contrary: AtomicU8,
    /// The number of evictions from which on there may be a loop, and the number of recent
    /// mistakes.
    rest: AtomicU64,
    mistakes: AtomicU32,
    /// The usual distance in the last window in which they were alike.
    usual: AtomicU64,
    stage: AtomicU8,
    /// Number of evictions at which the next stage is due.
    due: AtomicU64,
    /// The block of the sample, space << 48 | page, and the pages.
    block: AtomicU64,
    pages: [AtomicU64; WORDS],
    /// Pages read in a loop.
    turn: AtomicU32,
}

impl Loops {
    pub(super) fn new() -> Loops {
        Loops {
            distances: [const { AtomicU32::new(0) }; BUCKETS],
            seen: AtomicU32::new(0),
            is_loop: AtomicBool::new(false),
            contrary: AtomicU8::new(0),
            rest: AtomicU64::new(0),
            mistakes: AtomicU32::new(0),
            usual: AtomicU64::new(0),
            stage: AtomicU8::new(WANTED),
            due: AtomicU64::new(0),
            block: AtomicU64::new(0),
            pages: [const { AtomicU64::new(0) }; WORDS],
            turn: AtomicU32::new(0),
        }
    }

    /// Whether pages that are read must not displace active ones.
    pub fn keep_active(&self) -> bool {
        self.is_loop.load(Relaxed)
    }

    /// Whether a page that is read becomes active all the same.
    pub fn is_exception(&self) -> bool {
        self.turn.fetch_add(1, Relaxed).is_multiple_of(ACTIVE_IN)
    }

    /// Notes that a sampled page is read, `distance` evictions after its own, when there have been
    /// `evicted` evictions in all.
    pub(super) fn note(&self, distance: u32, evicted: u64) {
        self.distances[bucket(distance)].fetch_add(1, Relaxed);
        if self.seen.fetch_add(1, Relaxed) + 1 == WINDOW {
            let counts = self.distances.each_ref().map(|count| count.swap(0, Relaxed));
            self.seen.store(0, Relaxed);
            self.end_window(usual(&counts), evicted);
        }
    }

    /// Ends a window in which distances were alike, of this size, or were not.
    fn end_window(&self, usual: Option<u64>, evicted: u64) {
        if let Some(usual) = usual {
            self.usual.store(usual, Relaxed);
        }
        let is_loop = self.keep_active();
        let rests = !is_loop && evicted < self.rest.load(Relaxed);
        let is_contrary = is_loop != usual.is_some() && !rests;
        let contrary = if is_contrary { self.contrary.load(Relaxed) + 1 } else { 0 };
        self.contrary.store(contrary, Relaxed);
        if contrary >= WINDOWS {
            self.change_to(!is_loop);
        }
    }

    fn change_to(&self, is_loop: bool) {
        self.contrary.store(0, Relaxed);
        self.stage.store(WANTED, Relaxed);
        self.due.store(0, Relaxed);
        self.is_loop.store(is_loop, Relaxed);
    }

    /// The step that is due, in a loop. The thread that gets one has to report its result.
    pub fn task(&self, now: Now) -> Task {
        if now.evicted < self.due.load(Relaxed) {
            return Task::Nothing;
        }
        let stage = self.stage.load(Relaxed);
        let is_ours =
            stage != BUSY && self.stage.compare_exchange(stage, BUSY, Acquire, Relaxed).is_ok();
        match stage {
            WANTED if is_ours => Task::Sample,
            TAKEN if is_ours => Task::Judge(self.sample()),
            _ => Task::Nothing,
        }
    }

    fn sample(&self) -> Sample {
        let block = self.block.load(Relaxed);
        let pages = self.pages.each_ref().map(|word| word.load(Relaxed));
        Sample { space: SpaceId((block >> 48) as u16), block: Vpn(block & ((1 << 48) - 1)), pages }
    }

    /// Notes the pages that were unmapped; `None`: there were none. A round has as many evictions
    /// as a page's distance and its time on the inactive list. The next stage is due after one and
    /// a half rounds.
    pub fn sampled(&self, sample: Option<Sample>, now: Now) {
        if let Some(Sample { space, block, pages }) = sample {
            self.block.store(u64::from(space.0) << 48 | block.0, Relaxed);
            self.pages.iter().zip(pages).for_each(|(at, word)| at.store(word, Relaxed));
        }
        let round = self.usual.load(Relaxed) + u64::from(now.inactive);
        self.due.store(now.evicted + round * 3 / 2, Relaxed);
        self.stage.store(if sample.is_some() { TAKEN } else { WANTED }, Release);
    }

    /// Notes how many of the sampled pages that are still active were used again, and how many were
    /// not.
    pub fn judge(&self, used: usize, unused: usize, now: Now) {
        let mistakes = self.mistakes.load(Relaxed);
        if used >= 3 * unused {
            self.mistakes.store(mistakes.saturating_sub(u32::from(used > 0)), Relaxed);
            return self.sampled(None, now);
        }
        self.mistakes.store((mistakes + 1).min(DOUBLINGS), Relaxed);
        let rest = (REST * now.frames) << mistakes;
        self.rest.store(now.evicted + rest, Relaxed);
        self.change_to(false);
    }
}

/// Two buckets for each power of two.
fn bucket(distance: u32) -> usize {
    let log2 = distance.max(2).ilog2();
    let half = distance.max(2) >> (log2 - 1) & 1;
    (2 * log2 + half) as usize
}

/// The end of the fullest bucket, if 3/4 of the distances are within a factor of 4.
fn usual(counts: &[u32; BUCKETS]) -> Option<u64> {
    let all: u32 = counts.iter().sum();
    let alike = counts.windows(ALIKE).map(|four| four.iter().sum::<u32>()).max()?;
    if 4 * alike < 3 * all {
        return None;
    }
    let (fullest, _) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
    let (log2, half) = (fullest as u32 / 2, fullest as u64 % 2);
    Some((1 << log2) + ((half + 1) << log2 >> 1))
}

const _: () = assert!(WINDOW * REUSE_SAMPLED <= 4096, "a window is a part of a small memory");

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u64 = 1000;

    fn now(evicted: u64) -> Now {
        Now { evicted, inactive: 100, frames: FRAMES }
    }

    fn note_windows(loops: &Loops, windows: u32, evicted: u64, distance: impl Fn(u32) -> u32) {
        (0..windows * WINDOW).for_each(|sample| loops.note(distance(sample), evicted));
    }

    fn in_a_loop(evicted: u64) -> Loops {
        let loops = Loops::new();
        note_windows(&loops, 2, evicted, |_| 300);
        assert!(loops.keep_active());
        loops
    }

    /// Unmaps a block, and finds `used` of its pages used, and `unused` not.
    fn sample(loops: &Loops, at: u64, used: usize, unused: usize) {
        assert_eq!(loops.task(now(at)), Task::Sample);
        assert_eq!(loops.task(now(at)), Task::Nothing, "one thread does");
        let taken =
            Sample::new(SpaceId(3), Vpn(512), [511, 512, 577, 1023, 1024].map(Vpn).into_iter());
        loops.sampled(Some(taken), now(at));
        assert_eq!(loops.task(now(at + 500)), Task::Nothing, "the round is not over");
        assert_eq!(loops.task(now(at + 1000)), Task::Judge(taken));
        assert!(taken.pages().eq([512, 577, 1023].map(Vpn)), "those of the block");
        loops.judge(used, unused, now(at + 1000));
    }

    #[test]
    fn distances_of_a_loop_are_alike_and_those_of_random_uses_differ() {
        let counts = |distance: &dyn Fn(f64) -> f64| {
            let mut counts = [0; BUCKETS];
            let of = |sample: u32| distance((f64::from(sample) + 0.5) / 1000.0);
            (0..1000).map(of).for_each(|distance| counts[bucket(distance as u32)] += 1);
            usual(&counts)
        };
        let ends = [300.0, 512.0, 767.0].map(|distance| counts(&|_| distance));
        assert_eq!(ends, [Some(384), Some(768), Some(768)]);
        assert!(counts(&|part| 300.0 + 200.0 * part).is_some());
        assert_eq!(counts(&|part| -5000.0 * (1.0 - part).ln()), None, "uniformly random");
        assert_eq!(counts(&|part| 5000.0 * part * part * part), None, "mostly near");
        let mixed = |part: f64| if part < 0.3 { 50_000.0 * part } else { 300.0 };
        assert_eq!(counts(&mixed), None, "a loop beside random uses");
    }

    #[test]
    fn buckets_are_half_powers_of_two() {
        let edges = [0, 1, 2, 3, 4, 5, 6, 8, 12, 16, u32::MAX].map(bucket);
        assert_eq!(edges, [2, 2, 2, 3, 4, 4, 5, 6, 7, 8, BUCKETS - 1]);
    }

    #[test]
    fn a_loop_begins_and_ends_after_two_windows() {
        let loops = Loops::new();
        note_windows(&loops, 1, 0, |_| 300);
        note_windows(&loops, 1, 0, |sample| 1 << (sample % 20));
        note_windows(&loops, 1, 0, |_| 300);
        assert!(!loops.keep_active());
        note_windows(&loops, 1, 0, |_| 300);
        assert!(loops.keep_active());
        note_windows(&loops, 1, 0, |sample| 1 << (sample % 20));
        assert!(loops.keep_active());
        note_windows(&loops, 1, 0, |sample| 1 << (sample % 20));
        assert!(!loops.keep_active());
    }

    #[test]
    fn active_pages_that_are_used_are_sampled_again() {
        let loops = in_a_loop(0);
        for round in 0..3 {
            sample(&loops, 2000 * round, 96, 32);
            assert!(loops.keep_active());
        }
        loops.judge(0, 0, now(9000));
        assert!(loops.keep_active(), "none was left");
    }

    #[test]
    fn active_pages_that_are_left_behind_give_way() {
        let loops = in_a_loop(0);
        sample(&loops, 0, 95, 33);
        assert!(!loops.keep_active());
        let rest = REST * FRAMES;
        note_windows(&loops, 4, 1000 + rest - 1, |_| 300);
        assert!(!loops.keep_active(), "for a while");
        note_windows(&loops, 2, 1000 + rest, |_| 300);
        assert!(loops.keep_active());
        sample(&loops, 1000 + rest, 0, 9);
        note_windows(&loops, 4, 2000 + rest + 2 * rest - 1, |_| 300);
        assert!(!loops.keep_active(), "longer each time");
    }

    #[test]
    fn few_pages_that_are_read_in_a_loop_become_active() {
        let loops = in_a_loop(0);
        let exceptions = (0..1600).filter(|_| loops.is_exception()).count();
        assert_eq!(exceptions as u32, 1600 / ACTIVE_IN);
    }
}
