//! Atomic words that threads share without a lock. The platform implements them, so that the
//! simulator can charge for the cache line that an access moves, and can run another thread between
//! any two accesses.
//!
//! ```text
//! Atomics::Atomic<u64>   os, uffd: the standard library's, at no cost      Int::Std
//!                        sim: a word and the CPU that has its cache line
//! ```
//! Counters that are per CPU ([`crate::Cpu::cpu`]) are the standard library's atomics: their cache
//! lines do not move between CPUs.

use std::fmt::Debug;
use std::sync::atomic::{self, Ordering};

/// An integer that fits into an atomic word.
pub trait Int: Copy + Eq + Ord + Debug + Default + Send + Sync + 'static {
    /// The standard library's atomic of this size.
    type Std: Atomic<Self>;

    /// Its size, at most 64.
    const BITS: u32;

    /// The integer, in the low bits of a word.
    fn to_word(self) -> u64;

    /// The integer in the low bits of a word.
    fn from_word(word: u64) -> Self;
}

/// An atomic word.
///
/// Obligations: each operation is one atomic access with the given ordering, and has the result of
/// the standard library's method of that name. A stronger ordering is permitted. No operation
/// blocks or fails, except a compare-and-swap whose word has another value.
///
/// Cost: one instruction. Every fault makes many accesses, also under locks.
pub trait Atomic<T: Int>: Send + Sync + 'static {
    /// A word that is not shared yet.
    fn new(value: T) -> Self;

    /// Returns the value.
    fn load(&self, order: Ordering) -> T;

    /// Sets the value.
    fn store(&self, value: T, order: Ordering);

    /// Sets the value; returns the previous one.
    fn swap(&self, value: T, order: Ordering) -> T;

    /// Sets the value to `new` if it is `current`; returns `current`. Does not fail spuriously.
    ///
    /// # Errors
    /// The present value, if it is not `current`.
    fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;

    /// Adds, wrapping around; returns the previous value.
    fn fetch_add(&self, value: T, order: Ordering) -> T;

    /// Subtracts, wrapping around; returns the previous value.
    fn fetch_sub(&self, value: T, order: Ordering) -> T;

    /// Bitwise and; returns the previous value.
    fn fetch_and(&self, value: T, order: Ordering) -> T;

    /// Sets the larger of both values; returns the previous one.
    fn fetch_max(&self, value: T, order: Ordering) -> T;

    /// Replaces the value by the result of `change`, and tries again if another thread changed it
    /// meanwhile; returns the previous value.
    ///
    /// # Errors
    /// The present value, if `change` returns `None` for it.
    fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        mut change: impl FnMut(T) -> Option<T>,
    ) -> Result<T, T> {
        let mut seen = self.load(fetch);
        while let Some(new) = change(seen) {
            match self.compare_exchange(seen, new, set, fetch) {
                Ok(before) => return Ok(before),
                Err(now) => seen = now,
            }
        }
        Err(seen)
    }
}

/// Names the platform's atomic word.
///
/// Used by `core/mm/src/space/entry.rs` (page table entries), `core/mm/src/frame/mod.rs` (records
/// of frames), and wherever core/mm has a lock-free count.
pub trait Atomics {
    /// The platform's atomic word.
    type Atomic<T: Int>: Atomic<T>;

    /// A table of `len` words of value 0.
    ///
    /// Cost: none for words that are not used. Tables are as long as the highest budget that a
    /// process may have, and most processes use little of it.
    fn zeros<T: Int>(len: usize) -> Vec<Self::Atomic<T>> {
        (0..len).map(|_| Atomic::new(T::default())).collect()
    }
}

/// The standard library's atomics, for code that has no platform.
pub struct StdWords;

impl Atomics for StdWords {
    type Atomic<T: Int> = T::Std;
}

/// Implements [`Atomic`] for the standard library's atomics.
macro_rules! std_atomics {
    ($($int:ty => $atomic:ty),*) => {$(
        impl Int for $int {
            type Std = $atomic;

            const BITS: u32 = <$int>::BITS;

            fn to_word(self) -> u64 {
                self as u64
            }

            fn from_word(word: u64) -> $int {
                word as $int
            }
        }

        impl Atomic<$int> for $atomic {
            #[inline(always)]
            fn new(value: $int) -> $atomic {
                <$atomic>::new(value)
            }

            #[inline(always)]
            fn load(&self, order: Ordering) -> $int {
                <$atomic>::load(self, order)
            }

            #[inline(always)]
            fn store(&self, value: $int, order: Ordering) {
                <$atomic>::store(self, value, order);
            }

            #[inline(always)]
            fn swap(&self, value: $int, order: Ordering) -> $int {
                <$atomic>::swap(self, value, order)
            }

            #[inline(always)]
            fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                <$atomic>::compare_exchange(self, current, new, success, failure)
            }

            #[inline(always)]
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                <$atomic>::fetch_add(self, value, order)
            }

            #[inline(always)]
            fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                <$atomic>::fetch_sub(self, value, order)
            }

            #[inline(always)]
            fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                <$atomic>::fetch_and(self, value, order)
            }

            #[inline(always)]
            fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                <$atomic>::fetch_max(self, value, order)
            }
        }
    )*};
}

std_atomics! {
    u8 => atomic::AtomicU8,
    u32 => atomic::AtomicU32,
    u64 => atomic::AtomicU64,
    i64 => atomic::AtomicI64
}
