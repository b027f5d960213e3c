//! Shared words. A platform makes them: the simulator charges for the cache line an access moves,
//! and may let another thread run between any two accesses.
//!
//! ```text
//! Atomics::Atomic<u64>   os, uffd: the standard library's, at no cost      Int::Std
//!                        sim: a word and the CPU that has its cache line
//! ```
//! What threads share without a lock is one of these. Counters that each CPU has for itself
//! ([`crate::Cpu::cpu`]) are the standard library's: nobody waits for their lines.

use std::fmt::Debug;
use std::sync::atomic::{self, Ordering};

/// An integer that fits an atomic word.
pub trait Int: Copy + Eq + Ord + Debug + Send + Sync + 'static {
    /// The standard library's word of this size.
    type Std: Atomic<Self>;
}

/// A shared word. Orderings and results are those of the standard library's atomics.
pub trait Atomic<T: Int>: Send + Sync + 'static {
    /// A word that nobody shares yet.
    fn new(value: T) -> Self;

    /// The value.
    fn load(&self, order: Ordering) -> T;

    /// Sets the value.
    fn store(&self, value: T, order: Ordering);

    /// Sets the value and returns the one before.
    fn swap(&self, value: T, order: Ordering) -> T;

    /// Sets the value to `new` if it is `current`.
    ///
    /// # Errors
    /// The value, if it is another.
    fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;

    /// Adds, wrapping around; returns the value before.
    fn fetch_add(&self, value: T, order: Ordering) -> T;

    /// Subtracts, wrapping around; returns the value before.
    fn fetch_sub(&self, value: T, order: Ordering) -> T;

    /// Keeps the common bits; returns the value before.
    fn fetch_and(&self, value: T, order: Ordering) -> T;

    /// Keeps the larger value; returns the value before.
    fn fetch_max(&self, value: T, order: Ordering) -> T;

    /// Replaces the value by `change` of it, again until nobody came in between, unless that is
    /// `None`; returns the value before.
    ///
    /// # Errors
    /// The value for which `change` gave `None`.
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

/// Where shared words come from.
pub trait Atomics {
    /// The platform's shared word.
    type Atomic<T: Int>: Atomic<T>;
}

/// Makes the standard library's atomics words of a platform.
macro_rules! std_atomics {
    ($($int:ty => $atomic:ty),*) => {$(
        impl Int for $int {
            type Std = $atomic;
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
    u64 => atomic::AtomicU64
}
