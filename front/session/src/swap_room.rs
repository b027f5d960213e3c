//! The room of a run's swap devices, shared by its processes: words of the budget's file.
//!
//! ```text
//! SwapWords:  limits: Levels | claims: Levels, for each entry of the budget
//! Levels:     pages of each level: a device, or one of the two levels of a tier
//! ```
//! Each process has devices of its own. Their contents take room here, in batches that the devices
//! keep track of. As with memory, no process keeps the sum: one adds to its own words, adds those
//! of all processes up, and gives back what exceeds the limit. The words of one that was killed are
//! cleared with its entry.
//!
//! Locking: none. A process changes its own words only, until its entry is cleared.

use highwater_platform::{Atomic, Atomics, StdWords};
use std::sync::atomic::Ordering::*;

/// The most levels of the swap devices of a run: a cache line of words.
pub const SWAP_LEVELS_MAX: usize = 16;

/// A number of pages for each level.
#[repr(C, align(64))]
struct Levels<A: Atomics>([A::Atomic<u32>; SWAP_LEVELS_MAX]);

/// The shared words. `A` is another type in models only.
#[repr(C)]
pub(crate) struct SwapWords<const ENTRIES: usize, A: Atomics = StdWords> {
    limits: Levels<A>,
    claims: [Levels<A>; ENTRIES],
}

/// The room of a level, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRoom {
    /// Pages that all processes may use together.
    pub limit: u64,
    /// Pages that they have claimed.
    pub claimed: u64,
}

impl SwapRoom {
    /// Pages that no process has claimed.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.claimed)
    }
}

impl<const ENTRIES: usize, A: Atomics> SwapWords<ENTRIES, A> {
    #[cfg(test)]
    pub(crate) fn new() -> SwapWords<ENTRIES, A> {
        let levels = || Levels(std::array::from_fn(|_| Atomic::new(0)));
        SwapWords { limits: levels(), claims: std::array::from_fn(|_| levels()) }
    }

    /// Sets the limit of a level, in pages.
    pub(crate) fn limit(&self, level: usize, pages: u64) {
        if let Some(word) = self.limits.0.get(level) {
            word.store(u32::try_from(pages).unwrap_or(u32::MAX), Release);
        }
    }

    fn limit_of(&self, level: usize) -> u64 {
        self.limits.0[level].load(Acquire).into()
    }

    /// The pages of a level that the first `used` entries have claimed.
    fn claimed(&self, used: usize, level: usize) -> u64 {
        self.claims[..used].iter().map(|entry| u64::from(entry.0[level].load(SeqCst))).sum()
    }

    /// Takes up to `pages` pages for an entry, one of the first `used`; returns how many.
    pub(crate) fn claim(&self, entry: usize, used: usize, level: usize, pages: u32) -> u32 {
        let Some(own) = self.claims[entry].0.get(level) else { return 0 };
        let more = |claimed: u32| claimed.checked_add(pages);
        if own.fetch_update(SeqCst, SeqCst, more).is_err() {
            return 0;
        }
        let excess = self.claimed(used, level).saturating_sub(self.limit_of(level));
        let excess = u32::try_from(excess).unwrap_or(u32::MAX).min(pages);
        lower(own, excess);
        pages - excess
    }

    /// Returns pages of an entry.
    pub(crate) fn give_back(&self, entry: usize, level: usize, pages: u32) {
        if let Some(own) = self.claims[entry].0.get(level) {
            lower(own, pages);
        }
    }

    /// Returns all pages that an entry has claimed, which no process uses any more.
    pub(crate) fn clear(&self, entry: usize) {
        self.claims[entry].0.iter().for_each(|word| word.store(0, SeqCst));
    }

    /// The levels, of which the first `used` entries have claimed some.
    pub(crate) fn rooms(&self, used: usize) -> Vec<SwapRoom> {
        let room =
            |level| SwapRoom { limit: self.limit_of(level), claimed: self.claimed(used, level) };
        (0..SWAP_LEVELS_MAX).map(room).filter(|room| room.limit > 0).collect()
    }
}

/// Takes pages off a claim, which may have been cleared: the process has left the budget.
fn lower(claim: &impl Atomic<u32>, pages: u32) {
    let rest = |claimed: u32| Some(claimed.saturating_sub(pages));
    // Never an error: there is always a rest.
    let _ = claim.fetch_update(SeqCst, SeqCst, rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    const ENTRIES: usize = 6;

    fn words(limits: &[u64]) -> SwapWords<ENTRIES> {
        let words = SwapWords::new();
        limits.iter().enumerate().for_each(|(level, pages)| words.limit(level, *pages));
        words
    }

    fn claimed(words: &SwapWords<ENTRIES>) -> Vec<u64> {
        words.rooms(ENTRIES).iter().map(|room| room.claimed).collect()
    }

    #[test]
    fn levels_are_apart() {
        let words = words(&[1000, 50]);
        let claim = |entry, level, pages| words.claim(entry, 2, level, pages);
        assert_eq!((claim(0, 0, 600), claim(1, 0, 600)), (600, 400));
        assert_eq!((claim(0, 1, 49), claim(1, 1, 2)), (49, 1));
        assert_eq!((claim(0, 2, 1), claim(0, SWAP_LEVELS_MAX, 1)), (0, 0), "there is none");
        let full = |limit| SwapRoom { limit, claimed: limit };
        assert_eq!(words.rooms(2), [full(1000), full(50)]);
        words.give_back(0, 0, 10);
        assert_eq!((words.rooms(2)[0].left(), claim(1, 0, 600)), (10, 10));
        words.clear(0);
        assert_eq!(claimed(&words), [410, 1]);
        words.give_back(0, 0, 10);
        assert_eq!(claimed(&words), [410, 1], "it had nothing left");
    }

    #[test]
    fn the_largest_device_does_not_overflow() {
        let words = words(&[1 << 32]);
        assert_eq!(words.claim(0, 1, 0, u32::MAX), u32::MAX);
        assert_eq!((words.claim(0, 1, 0, 512), claimed(&words)), (0, vec![u32::MAX.into()]));
    }

    #[test]
    fn random_claims_match_a_model() {
        let (mut random, limit) = (Prng::new(3), 5000);
        let (words, mut model) = (words(&[limit]), [0; ENTRIES]);
        for _ in 0..20_000 {
            let entry = random.below(ENTRIES as u64) as usize;
            let pages = random.below(900) as u32;
            match random.below(20) {
                0 => {
                    words.clear(entry);
                    model[entry] = 0;
                }
                1..12 => {
                    let left = limit - model.iter().sum::<u64>();
                    let granted = u64::from(pages).min(left);
                    assert_eq!(u64::from(words.claim(entry, ENTRIES, 0, pages)), granted);
                    model[entry] += granted;
                }
                _ => {
                    let some = u64::from(pages).min(model[entry]);
                    words.give_back(entry, 0, some as u32);
                    model[entry] -= some;
                }
            }
            assert_eq!(claimed(&words), [model.iter().sum::<u64>()]);
        }
    }

    #[test]
    fn threads_that_claim_at_once_never_exceed_the_room() {
        let words = words(&[10_000]);
        let own: Vec<u64> = std::thread::scope(|scope| {
            let words = &words;
            let run = |entry| {
                let (mut random, mut own) = (Prng::new(entry as u64), 0);
                for _ in 0..20_000 {
                    if random.percent(55) {
                        own += words.claim(entry, ENTRIES, 0, 1 + random.below(700) as u32);
                    } else {
                        let some = random.below(u64::from(own) + 1) as u32;
                        words.give_back(entry, 0, some);
                        own -= some;
                    }
                }
                own.into()
            };
            let threads: Vec<_> =
                (0..ENTRIES).map(|entry| scope.spawn(move || run(entry))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(own.iter().sum::<u64>() <= 10_000, "{own:?}");
        assert_eq!(claimed(&words), [own.iter().sum::<u64>()]);
    }
}
