//! Settings of the managers that the run's user has chosen, in words of the budget.

use highwater_mm::config::{FILE_WINDOW_MAX, KSWAPD_THREADS_MAX, KswapdThreads, SWAPPINESS_MAX};
use highwater_units::RUN_PAGES_MAX;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Settings that a user can change while processes run; `None`: each keeps what it began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// kswapd threads of each process.
    pub kswapd: Option<KswapdThreads>,
    /// Preference for anonymous pages in reclaim, 0 to 200.
    pub swappiness: Option<u32>,
    /// Pages that a fault of a sequential stream reads at most, 1 to 16.
    pub readahead: Option<usize>,
    /// Pages of a file's readahead window, 0 to 256.
    pub file_readahead: Option<usize>,
}

impl Tuning {
    /// These, and where nothing was chosen, those of `other`.
    #[must_use]
    pub fn or(self, other: Tuning) -> Tuning {
        Tuning {
            kswapd: self.kswapd.or(other.kswapd),
            swappiness: self.swappiness.or(other.swappiness),
            readahead: self.readahead.or(other.readahead),
            file_readahead: self.file_readahead.or(other.file_readahead),
        }
    }
}

/// The words. Another process may write anything to them.
pub(crate) struct TuningWords {
    kswapd: Word,
    swappiness: Word,
    readahead: Word,
    file_readahead: Word,
}

/// 0: nothing was chosen; else the value and one.
struct Word(AtomicU64);

/// The value of `auto`.
const AUTO: u64 = 0;

impl Word {
    fn set(&self, value: Option<u64>) {
        if let Some(value) = value {
            self.0.store(value + 1, Relaxed);
        }
    }

    fn get(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.0.load(Relaxed).checked_sub(1)?;
        Some(value.clamp(*range.start(), *range.end()))
    }
}

impl TuningWords {
    /// Stores the chosen settings; the others stay.
    pub(crate) fn set(&self, tuning: Tuning) {
        let threads = tuning.kswapd.map(|threads| match threads {
            KswapdThreads::Fixed(threads) => threads as u64,
            KswapdThreads::Auto => AUTO,
        });
        self.kswapd.set(threads);
        self.swappiness.set(tuning.swappiness.map(u64::from));
        self.readahead.set(tuning.readahead.map(|pages| pages as u64));
        self.file_readahead.set(tuning.file_readahead.map(|pages| pages as u64));
    }

    pub(crate) fn get(&self) -> Tuning {
        let threads = |value| match value {
            AUTO => KswapdThreads::Auto,
            threads => KswapdThreads::Fixed(threads as usize),
        };
        let pages = |word: &Word, range| word.get(range).map(|pages| pages as usize);
        Tuning {
            kswapd: self.kswapd.get(AUTO..=KSWAPD_THREADS_MAX as u64).map(threads),
            swappiness: self.swappiness.get(0..=SWAPPINESS_MAX.into()).map(|it| it as u32),
            readahead: pages(&self.readahead, 1..=RUN_PAGES_MAX as u64),
            file_readahead: pages(&self.file_readahead, 0..=FILE_WINDOW_MAX as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(value: u64) -> TuningWords {
        let word = || Word(AtomicU64::new(value));
        let (kswapd, swappiness, readahead, file_readahead) = (word(), word(), word(), word());
        TuningWords { kswapd, swappiness, readahead, file_readahead }
    }

    #[test]
    fn choices_survive_the_words_and_wrong_words_are_in_range() {
        let fresh = words(0);
        assert_eq!(fresh.get(), Tuning::default());
        for threads in [KswapdThreads::Fixed(1), KswapdThreads::Fixed(16), KswapdThreads::Auto] {
            fresh.set(Tuning { kswapd: Some(threads), ..Tuning::default() });
            assert_eq!(fresh.get(), Tuning { kswapd: Some(threads), ..Tuning::default() });
        }
        let chosen = Tuning {
            kswapd: Some(KswapdThreads::Auto),
            swappiness: Some(0),
            readahead: Some(1),
            file_readahead: Some(256),
        };
        fresh.set(Tuning { kswapd: None, ..chosen });
        assert_eq!(fresh.get(), chosen);
        let most = Tuning {
            kswapd: Some(KswapdThreads::Fixed(16)),
            swappiness: Some(200),
            readahead: Some(16),
            file_readahead: Some(256),
        };
        assert_eq!(words(1000).get(), most);
        assert_eq!(words(1).get().readahead, Some(1));
    }
}
