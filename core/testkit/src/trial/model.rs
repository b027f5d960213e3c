//! The model: the contents that users expect in pages.
//!
//! ```text
//! Shared   per thread and page: values before and after a store; other threads check copies by it
//! Drops    per page: drops begun and ended; a page may read as zeros only after a drop
//! Known    per user: its words of volatile and private pages
//! ```
//! A thread owns two words of a page, one in each half. If a page can be evicted between two
//! accesses, a store or drop may affect only one of the words, so each is tracked separately.

use highwater_platform::WORDS_PER_FRAME;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// One value for each of a thread's two words.
pub(super) type Halves<T> = [T; 2];

/// A thread's words of a page.
pub(super) fn words(thread: usize) -> Halves<usize> {
    [thread, WORDS_PER_FRAME - 1 - thread]
}

/// The contents of the shared space.
pub(super) struct Shared {
    pages: u64,
    begun: Vec<Halves<AtomicU64>>,
    done: Vec<Halves<AtomicU64>>,
}

impl Shared {
    /// All zeros.
    pub(super) fn new(threads: usize, pages: u64) -> Shared {
        let zeros = || (0..threads as u64 * pages).map(|_| Default::default()).collect();
        Shared { pages, begun: zeros(), done: zeros() }
    }

    fn at(&self, thread: usize, page: u64) -> usize {
        (thread as u64 * self.pages + page) as usize
    }

    /// Called before a thread stores `value` to its words of a page.
    pub(super) fn begin(&self, thread: usize, page: u64, value: u64) {
        self.begun[self.at(thread, page)].iter().for_each(|word| word.store(value, SeqCst));
    }

    /// Called after the store; `stored` has the values of the words where it succeeded.
    pub(super) fn end(&self, thread: usize, page: u64, stored: Halves<Option<u64>>) {
        let at = self.at(thread, page);
        for (half, stored) in stored.into_iter().enumerate() {
            match stored {
                Some(value) => self.done[at][half].store(value, SeqCst),
                None => self.begun[at][half].store(self.done[at][half].load(SeqCst), SeqCst),
            }
        }
    }

    /// The least values that a thread's words may hold: values only increase.
    pub(super) fn least(&self, thread: usize, page: u64) -> Halves<u64> {
        self.done[self.at(thread, page)].each_ref().map(|word| word.load(SeqCst))
    }

    /// The other values that they may hold: those of a store in progress.
    pub(super) fn most(&self, thread: usize, page: u64) -> Halves<u64> {
        self.begun[self.at(thread, page)].each_ref().map(|word| word.load(SeqCst))
    }
}

/// Drops of volatile pages.
pub(super) struct Drops {
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
}

impl Drops {
    /// No drops.
    pub(super) fn new(pages: u64) -> Drops {
        let zeros = || (0..pages).map(|_| AtomicU64::new(0)).collect();
        Drops { begun: zeros(), ended: zeros() }
    }

    /// Called before a thread drops a page.
    pub(super) fn begin(&self, page: u64) {
        self.begun[page as usize].fetch_add(1, SeqCst);
    }

    /// Called after the drop.
    pub(super) fn end(&self, page: u64) {
        self.ended[page as usize].fetch_add(1, SeqCst);
    }

    /// The number of ended drops of a page, taken before a store for [`Drops::none_since`].
    pub(super) fn ended(&self, page: u64) -> u64 {
        self.ended[page as usize].load(SeqCst)
    }

    /// Whether no drop was in progress at that point, and none began after it.
    pub(super) fn none_since(&self, page: u64, point: u64) -> bool {
        self.begun[page as usize].load(SeqCst) == point
    }
}

/// A word of a volatile page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fleeting {
    /// The last stored value.
    pub(super) value: u64,
    /// Drops that had ended when the store began.
    pub(super) since: u64,
}

impl Fleeting {
    /// Checks and records the value found. The caller reads the page first; `drops` is read after.
    pub(super) fn find(&mut self, found: u64, drops: &Drops, page: u64) {
        let stored = self.value;
        if found == stored {
            return;
        }
        assert_eq!(found, 0, "volatile page {page}: neither {stored:#x} nor zeros");
        let lost = drops.none_since(page, self.since);
        assert!(!lost, "volatile page {page}: {stored:#x} is gone, but nobody dropped the page");
        self.value = 0;
    }
}

/// The contents that one user expects.
pub(super) struct Known {
    /// The user's thread number.
    pub(super) thread: usize,
    /// Its words of the volatile pages.
    pub(super) volatile: Vec<Halves<Fleeting>>,
    /// Its words of its private pages.
    pub(super) private: Vec<Halves<u64>>,
}

impl Known {
    /// All zeros.
    pub(super) fn new(thread: usize, pages: u64) -> Known {
        let (volatile, private) = (Default::default(), Default::default());
        let pages = pages as usize;
        Known { thread, volatile: vec![volatile; pages], private: vec![private; pages] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_becomes_zero_only_after_a_drop() {
        let drops = Drops::new(2);
        // In progress when the store begins, so it may take effect after the store.
        drops.begin(1);
        let mut word = Fleeting { value: 7, since: drops.ended(1) };
        drops.end(1);
        word.find(7, &drops, 1);
        word.find(0, &drops, 1);
        assert_eq!(word.value, 0);
        let mut other = Fleeting { value: 7, since: drops.ended(1) };
        assert!(drops.none_since(1, other.since));
        drops.begin(1);
        other.find(0, &drops, 1);
    }

    #[test]
    #[should_panic(expected = "nobody dropped")]
    fn a_lost_word_is_found() {
        let drops = Drops::new(1);
        drops.begin(0);
        drops.end(0);
        Fleeting { value: 7, since: drops.ended(0) }.find(0, &drops, 0);
    }

    #[test]
    fn half_a_store_is_known_as_such() {
        let shared = Shared::new(2, 3);
        shared.begin(1, 2, 9);
        assert_eq!((shared.least(1, 2), shared.most(1, 2)), ([0, 0], [9, 9]));
        shared.end(1, 2, [Some(9), None]);
        assert_eq!((shared.least(1, 2), shared.most(1, 2)), ([9, 0], [9, 0]));
        assert_eq!(shared.most(0, 2), [0, 0], "another thread's");
    }
}
