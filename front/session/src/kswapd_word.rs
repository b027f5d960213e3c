//! The number of kswapd threads that the run's user has chosen, in a word of the budget.

use highwater_mm::config::{KSWAPD_THREADS_MAX, KswapdThreads};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nothing was chosen: each process keeps what it began with.
const NONE: u64 = 0;
const AUTO: u64 = u64::MAX;

/// The word. Another process may write anything to it.
pub(crate) struct KswapdWord(AtomicU64);

impl KswapdWord {
    pub(crate) fn set(&self, threads: KswapdThreads) {
        let word = match threads {
            KswapdThreads::Fixed(threads) => threads as u64,
            KswapdThreads::Auto => AUTO,
        };
        self.0.store(word, Relaxed);
    }

    /// `None`: nothing was chosen.
    pub(crate) fn get(&self) -> Option<KswapdThreads> {
        match self.0.load(Relaxed) {
            NONE => None,
            AUTO => Some(KswapdThreads::Auto),
            threads => Some(KswapdThreads::Fixed(threads.min(KSWAPD_THREADS_MAX as u64) as usize)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_survives_the_word_and_a_wrong_word_is_in_range() {
        let word = KswapdWord(AtomicU64::new(0));
        assert_eq!(word.get(), None);
        for threads in [KswapdThreads::Fixed(1), KswapdThreads::Fixed(16), KswapdThreads::Auto] {
            word.set(threads);
            assert_eq!(word.get(), Some(threads));
        }
        word.0.store(1000, Relaxed);
        assert_eq!(word.get(), Some(KswapdThreads::Fixed(KSWAPD_THREADS_MAX)));
    }
}
