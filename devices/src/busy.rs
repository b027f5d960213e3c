//! Up to 64 places, each with one holder at a time: one bit per place.
//!
//! Locks: none. A thread takes a place by setting its bit and releases it by clearing the bit, with
//! acquire and release between one holder and the next.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The most places.
pub(crate) const PLACES: usize = u64::BITS as usize;

/// The places that are taken.
pub(crate) struct Busy(AtomicU64);

impl Busy {
    /// `count` free places.
    pub(crate) fn new(count: usize) -> Busy {
        // Bits without a place stay set.
        Busy(AtomicU64::new(u64::MAX.checked_shl(count as u32).unwrap_or(0)))
    }

    /// The lowest free place among the first `most`: few places are used, and their values stay in
    /// the CPU's caches. `None`: all are taken.
    pub(crate) fn try_take(&self, most: usize) -> Option<u32> {
        let mut busy = self.0.load(Relaxed);
        loop {
            let index = (!busy).trailing_zeros();
            if index as usize >= most {
                return None;
            }
            match self.0.compare_exchange_weak(busy, busy | 1 << index, Acquire, Relaxed) {
                Ok(_) => return Some(index),
                Err(now) => busy = now,
            }
        }
    }

    /// Waits until a place is free, and takes the lowest.
    pub(crate) fn take(&self) -> u32 {
        loop {
            match self.try_take(PLACES) {
                Some(index) => return index,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Releases a place that the caller has taken.
    pub(crate) fn put(&self, index: u32) {
        self.0.fetch_and(!(1 << index), Release);
    }

    /// Takes all places for good, those of other holders as well.
    pub(crate) fn close(&self) {
        self.0.store(u64::MAX, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_run_out_and_come_back() {
        for count in [1, 5, 63, 64] {
            let busy = Busy::new(count);
            let taken: Vec<u32> = std::iter::from_fn(|| busy.try_take(PLACES)).collect();
            assert!(taken.iter().copied().eq(0..count as u32), "{taken:?}");
            busy.put(count as u32 - 1);
            assert_eq!(busy.try_take(count - 1), None);
            assert_eq!(busy.take(), count as u32 - 1);
            busy.put(0);
            busy.close();
            assert_eq!(busy.try_take(PLACES), None);
        }
    }
}
