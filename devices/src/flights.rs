//! Batches under way on a device that is made of two: the transfers of each, in a place of its own.
//!
//! Locks: none ([`Places`]). Batches that are finished later leave some places to those that are
//! waited for: a thread that waits for a place never has another one that it must give back first.

use crate::busy::PLACES;
use crate::places::{Places, Taken};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places for batches that are finished later.
const LATER_MAX: usize = PLACES - 8;

/// The transfers of a batch.
pub(crate) trait Furnish: Default {
    /// Memory of a place, in bytes.
    const BYTES: usize;

    /// Makes room for as many transfers as a batch may have. Returns whether there was none.
    fn furnish(&mut self) -> bool;
}

/// The places of a device.
pub(crate) struct Flights<T> {
    places: Places<T>,
    made: AtomicU64,
}

impl<T: Furnish> Flights<T> {
    pub(crate) fn new() -> Flights<T> {
        Flights { places: Places::new(), made: AtomicU64::new(0) }
    }

    /// A place for a batch that is waited for.
    pub(crate) fn take(&self) -> Taken<'_, T> {
        self.furnished(self.places.take())
    }

    /// A place for a batch that is finished later; `None`: all are taken.
    pub(crate) fn take_for_later(&self) -> Option<Taken<'_, T>> {
        self.places.try_take(LATER_MAX).map(|taken| self.furnished(taken))
    }

    /// The place that was left under this number.
    pub(crate) fn back(&self, index: u32) -> Taken<'_, T> {
        self.places.back(index)
    }

    /// Memory of all places that were used.
    pub(crate) fn bytes(&self) -> u64 {
        self.made.load(Relaxed) * T::BYTES as u64
    }

    fn furnished<'a>(&self, mut taken: Taken<'a, T>) -> Taken<'a, T> {
        // Once in the life of a place: a batch allocates nothing.
        self.made.fetch_add(taken.furnish().into(), Relaxed);
        taken
    }
}
