//! Batches in flight on a device that combines two others: each batch keeps its transfers in a
//! place of its own.
//!
//! Locks: none ([`Places`]). Batches that are finished later may take only some of the places; the
//! rest are for batches that the caller waits for. So no thread waits for a place that only it
//! could give back.

use crate::busy::PLACES;
use crate::places::{Places, Taken};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places for batches that are finished later.
const LATER_MAX: usize = PLACES - 8;

/// The transfers of a batch.
pub(crate) trait Furnish: Default {
    /// Memory of a place, in bytes.
    const BYTES: usize;

    /// Makes room for as many transfers as a batch may have. Returns whether there was no room
    /// before.
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
        // Once in the life of a place: later batches allocate nothing.
        self.made.fetch_add(taken.furnish().into(), Relaxed);
        taken
    }
}
