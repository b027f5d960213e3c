//! The io_urings of a process: created when a batch finds none free, and kept for the next.
//!
//! ```text
//! busy     one bit per place: only its holder may touch the ring there
//! places   [ ring | ring | none yet | ... ]
//! ```
//! Locks: none. A thread takes a place by setting its bit, releases it by clearing the bit, and
//! never waits. A batch makes plain calls if all places are taken, or the system refuses rings.
//!
//! A forked child must not use a ring of its parent: both would write to one queue. It marks all
//! places as busy and creates a pool of its own.

use crate::uring::{Ring, Set};
use highwater_platform::Direction;
use std::cell::UnsafeCell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Places for rings, and so the most batches in flight at once through rings.
const PLACES: usize = u64::BITS as usize;

/// The rings over one file.
pub(crate) struct Pool {
    busy: AtomicU64,
    refused: AtomicBool,
    places: [Place; PLACES],
}

#[derive(Default)]
struct Place(UnsafeCell<Option<Ring>>);

// SAFETY: only the thread that set the bit of a place in `busy` reaches the ring there, with
// acquire and release between one holder and the next.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool without rings.
    pub(crate) fn new() -> Pool {
        Pool {
            busy: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            places: std::array::from_fn(|_| Place::default()),
        }
    }

    /// A ring over `file`, which is the same in all calls; `None` if all are in use, or the system
    /// refuses more.
    pub(crate) fn take(&self, file: BorrowedFd<'_>) -> Option<Held<'_>> {
        let mut held = self.take_place()?;
        if held.ring_mut().is_none() {
            held.make(file);
        }
        held.ring_mut().is_some().then_some(held)
    }

    /// The lowest free place, so that few rings are created, and stay in the CPU's caches.
    fn take_place(&self) -> Option<Held<'_>> {
        let mut busy = self.busy.load(Relaxed);
        while busy != u64::MAX {
            let index = (!busy).trailing_zeros();
            let taken = busy | 1 << index;
            match self.busy.compare_exchange_weak(busy, taken, Acquire, Relaxed) {
                Ok(_) => return Some(Held { pool: self, index }),
                Err(now) => busy = now,
            }
        }
        None
    }

    /// The ring of a started batch.
    pub(crate) fn back(&self, started: &Started) -> Held<'_> {
        Held { pool: self, index: started.index }
    }

    /// For a forked child: it never uses or closes any of the parent's rings, whether they were
    /// free or in use at the time of the fork.
    pub(crate) fn leave_to_parent(&self) {
        self.busy.store(u64::MAX, Release);
    }
}

/// A batch in flight on a ring, whose place stays taken.
#[must_use]
pub struct Started {
    index: u32,
    pub(crate) direction: Direction,
    /// The transfers that went to the ring.
    pub(crate) left: Set,
}

/// A place that a batch holds.
pub(crate) struct Held<'a> {
    pool: &'a Pool,
    index: u32,
}

impl Held<'_> {
    fn place(&self) -> &Place {
        &self.pool.places[self.index as usize]
    }

    fn ring_mut(&mut self) -> &mut Option<Ring> {
        // SAFETY: the holder of the place's bit is the only one, and is borrowed mutably.
        unsafe { &mut *self.place().0.get() }
    }

    fn make(&mut self, file: BorrowedFd<'_>) {
        if self.pool.refused.load(Relaxed) {
            return;
        }
        match Ring::new(file) {
            Ok(ring) => *self.ring_mut() = Some(ring),
            // Not permitted, not implemented, no memory or no descriptors: do not retry for every
            // batch.
            Err(_) => self.pool.refused.store(true, Relaxed),
        }
    }

    /// The ring.
    pub(crate) fn ring(&mut self) -> &mut Ring {
        self.ring_mut().as_mut().expect("`take` returns only places with a ring")
    }

    /// Leaves the transfers `left` in flight on the ring. The place stays taken.
    pub(crate) fn leave(self, direction: Direction, left: Set) -> Started {
        let index = self.index;
        std::mem::forget(self);
        Started { index, direction, left }
    }

    /// Never uses the ring and its place again. The ring is not dropped: its descriptor may belong
    /// to another file by now.
    pub(crate) fn abandon(mut self) {
        std::mem::forget(self.ring_mut().take());
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pool.busy.fetch_and(!(1 << self.index), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn places_run_out_and_come_back() {
        let pool = Pool::new();
        let held: Vec<_> = std::iter::from_fn(|| pool.take_place()).collect();
        assert_eq!(held.len(), PLACES);
        drop(held);
        assert_eq!(pool.take_place().map(|held| held.index), Some(0));
    }

    #[test]
    fn a_ring_is_made_once() {
        let file = tempfile::tempfile().unwrap();
        let pool = Pool::new();
        let Some(mut held) = pool.take(file.as_fd()) else {
            highwater_platform::testing::skip_or_fail("this system grants no io_uring");
            return;
        };
        let descriptor = held.ring().as_raw_fd();
        drop(held);
        let mut again = pool.take(file.as_fd()).unwrap();
        assert_eq!((again.index, again.ring().as_raw_fd()), (0, descriptor));
    }

    #[test]
    fn abandoned_rings_are_not_handed_out_again() {
        let file = tempfile::tempfile().unwrap();
        let pool = Pool::new();
        let Some(held) = pool.take(file.as_fd()) else { return };
        held.abandon();
        assert_eq!(pool.take(file.as_fd()).map(|held| held.index), Some(1));
    }

    #[test]
    fn rings_that_are_left_to_the_parent_are_not_used() {
        let file = tempfile::tempfile().unwrap();
        let pool = Pool::new();
        drop(pool.take(file.as_fd()));
        pool.leave_to_parent();
        assert!(pool.take(file.as_fd()).is_none());
    }
}
