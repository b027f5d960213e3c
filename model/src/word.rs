//! Atomic words of loom.

use crate::{Loom, threads};
use highwater_platform::{Atomic, Atomics, Int};
use loom::sync::atomic::{AtomicU64, fence};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{self, SeqCst};

/// An atomic word. Loom's is made at the first access, because tables have thousands of words that
/// a test does not use, and must be made by a thread that the others are ordered after: a test
/// accesses its words once before it starts threads. Otherwise loom reports a causality violation.
///
/// Loom treats SeqCst as AcqRel, but knows SeqCst fences. So each SeqCst access has a fence before
/// and after it, which is what processors do. This is slightly stronger than the language where a
/// word has accesses of SeqCst and of weaker orderings.
pub struct Word<T: Int> {
    initial: T,
    word: OnceLock<AtomicU64>,
    integer: PhantomData<T>,
}

impl<T: Int> Word<T> {
    /// In the high bits, so that sums wrap around as those of `T`.
    const SHIFT: u32 = u64::BITS - T::BITS;

    fn bits(value: T) -> u64 {
        value.to_word() << Self::SHIFT
    }

    fn value(bits: u64) -> T {
        T::from_word(bits >> Self::SHIFT)
    }

    fn access<R>(&self, order: Ordering, access: impl FnOnce(&AtomicU64) -> R) -> R {
        threads::die_if_killed();
        let word = self.word.get_or_init(|| AtomicU64::new(Self::bits(self.initial)));
        let ordered = || {
            if order == SeqCst {
                fence(SeqCst);
            }
        };
        ordered();
        let result = access(word);
        ordered();
        result
    }
}

impl<T: Int> Atomic<T> for Word<T> {
    fn new(value: T) -> Word<T> {
        Word { initial: value, word: OnceLock::new(), integer: PhantomData }
    }

    fn load(&self, order: Ordering) -> T {
        Self::value(self.access(order, |word| word.load(order)))
    }

    fn store(&self, value: T, order: Ordering) {
        self.access(order, |word| word.store(Self::bits(value), order));
    }

    fn swap(&self, value: T, order: Ordering) -> T {
        Self::value(self.access(order, |word| word.swap(Self::bits(value), order)))
    }

    fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        let (current, new) = (Self::bits(current), Self::bits(new));
        let exchanged =
            self.access(success, |word| word.compare_exchange(current, new, success, failure));
        exchanged.map(Self::value).map_err(Self::value)
    }

    fn fetch_add(&self, value: T, order: Ordering) -> T {
        Self::value(self.access(order, |word| word.fetch_add(Self::bits(value), order)))
    }

    fn fetch_sub(&self, value: T, order: Ordering) -> T {
        Self::value(self.access(order, |word| word.fetch_sub(Self::bits(value), order)))
    }

    fn fetch_and(&self, value: T, order: Ordering) -> T {
        Self::value(self.access(order, |word| word.fetch_and(Self::bits(value), order)))
    }

    fn fetch_max(&self, value: T, order: Ordering) -> T {
        assert!(T::default() < Self::value(u64::MAX), "bits of negative numbers compare as larger");
        Self::value(self.access(order, |word| word.fetch_max(Self::bits(value), order)))
    }
}

impl Atomics for Loom {
    type Atomic<T: Int> = Word<T>;
}
