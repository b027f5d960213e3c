//! The parts of a caller's batch that go to the slow level, until they are done.
//!
//! Locks: none ([`Places`]). Batches that are finished later leave some places to those that are
//! waited for: a thread that waits for a place never has another one that it must give back first.

use crate::busy::PLACES;
use crate::places::{Places, Taken};
use crate::pool::Started;
use highwater_platform::{Io, IoError};
use highwater_units::{IoFrames, Pfn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most parts of a batch in flight together.
const PARTS: usize = 32;
/// Places for batches that are finished later.
const LATER_MAX: usize = PLACES - 8;
/// Memory of a place.
const BYTES: usize = PARTS * (size_of::<Io>() + size_of::<Origin>());

/// The slots of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The transfer of the caller's batch.
    pub(super) io: usize,
    /// The slot of its first page.
    pub(super) slot: u32,
}

/// Parts for the slow level.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) ios: Vec<Io>,
    pub(super) origins: Vec<Origin>,
    /// They are under way.
    pub(super) started: Option<Started>,
}

impl Parts {
    pub(super) fn is_full(&self) -> bool {
        self.ios.len() == PARTS
    }

    pub(super) fn push(&mut self, origin: Origin, io: Io) {
        self.ios.push(io);
        self.origins.push(origin);
    }

    /// Adds a page to the last part if it is adjacent; returns whether it was.
    pub(super) fn extend(&mut self, origin: usize, block: u32, pfn: Pfn) -> bool {
        let Some((Io { slot, frames: IoFrames::List(list), .. }, from)) =
            self.ios.last_mut().zip(self.origins.last())
        else {
            return false;
        };
        let follows = from.io == origin && *slot + list.len() as u32 == block && !list.is_full();
        if follows {
            list.push(pfn);
        }
        follows
    }

    /// Calls `each` with the origin, the first block, the number of pages and the result of each
    /// part, and forgets them.
    pub(super) fn settle(&mut self, mut each: impl FnMut(Origin, u32, u32, Result<(), IoError>)) {
        for (origin, io) in self.origins.drain(..).zip(self.ios.drain(..)) {
            each(origin, io.slot, io.frames.len() as u32, io.result);
        }
    }
}

/// The places of a tier.
pub(super) struct Flights {
    places: Places<Parts>,
    made: AtomicU64,
}

impl Flights {
    pub(super) fn new() -> Flights {
        Flights { places: Places::new(), made: AtomicU64::new(0) }
    }

    /// A place for a batch that is waited for.
    pub(super) fn take(&self) -> Taken<'_, Parts> {
        self.furnished(self.places.take())
    }

    /// A place for a batch that is finished later; `None`: all are taken.
    pub(super) fn take_for_later(&self) -> Option<Taken<'_, Parts>> {
        self.places.try_take(LATER_MAX).map(|taken| self.furnished(taken))
    }

    /// The place that was left under this number.
    pub(super) fn back(&self, index: u32) -> Taken<'_, Parts> {
        self.places.back(index)
    }

    /// Memory of all places that were used.
    pub(super) fn bytes(&self) -> u64 {
        self.made.load(Relaxed) * BYTES as u64
    }

    fn furnished<'a>(&self, mut taken: Taken<'a, Parts>) -> Taken<'a, Parts> {
        assert!(taken.ios.is_empty() && taken.started.is_none(), "all parts were settled");
        if taken.ios.capacity() == 0 {
            // Once in the life of a place: a batch allocates nothing.
            self.made.fetch_add(1, Relaxed);
            taken.ios.reserve_exact(PARTS);
            taken.origins.reserve_exact(PARTS);
        }
        taken
    }
}
