//! Transfers of both replicas while a batch is under way.
//!
//! Locks: none ([`Places`]). Batches that are finished later leave some places to those that are
//! waited for: a thread that waits for a place never has another one that it must give back first.

use crate::busy::PLACES;
use crate::places::{Places, Taken};
use crate::pool::Started;
use crate::uring::DEPTH;
use highwater_platform::Io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most transfers of a batch: as many as a device takes at once.
pub(super) const IOS: usize = DEPTH;
/// Places for batches that are finished later.
const LATER_MAX: usize = PLACES - 8;
/// Memory of a place.
const BYTES: usize = IOS * (2 * size_of::<Io>() + size_of::<usize>());

/// A batch under way.
#[derive(Default)]
pub(super) struct Flight {
    /// The transfers of each replica: of a write.
    pub(super) ios: [Vec<Io>; 2],
    /// Their indices in the caller's batch.
    pub(super) origins: Vec<usize>,
    pub(super) started: [Option<Started>; 2],
}

impl Flight {
    pub(super) fn push(&mut self, origin: usize, io: &Io) {
        self.ios.iter_mut().for_each(|ios| ios.push(*io));
        self.origins.push(origin);
    }
}

/// The places of a device.
pub(super) struct Flights {
    places: Places<Flight>,
    made: AtomicU64,
}

impl Flights {
    pub(super) fn new() -> Flights {
        Flights { places: Places::new(), made: AtomicU64::new(0) }
    }

    /// A place for a batch that is waited for.
    pub(super) fn take(&self) -> Taken<'_, Flight> {
        self.emptied(self.places.take())
    }

    /// A place for a batch that is finished later; `None`: all are taken.
    pub(super) fn take_for_later(&self) -> Option<Taken<'_, Flight>> {
        self.places.try_take(LATER_MAX).map(|taken| self.emptied(taken))
    }

    /// The place that was left under this number.
    pub(super) fn back(&self, index: u32) -> Taken<'_, Flight> {
        self.places.back(index)
    }

    /// Memory of all places that were used.
    pub(super) fn bytes(&self) -> u64 {
        self.made.load(Relaxed) * BYTES as u64
    }

    fn emptied<'a>(&self, mut taken: Taken<'a, Flight>) -> Taken<'a, Flight> {
        let Flight { ios, origins, started } = &mut *taken;
        debug_assert!(started.iter().all(Option::is_none), "all that was started is finished");
        if origins.capacity() == 0 {
            // Once in the life of a place: a batch allocates nothing.
            self.made.fetch_add(1, Relaxed);
            origins.reserve_exact(IOS);
            ios.iter_mut().for_each(|ios| ios.reserve_exact(IOS));
        }
        origins.clear();
        ios.iter_mut().for_each(Vec::clear);
        taken
    }
}
