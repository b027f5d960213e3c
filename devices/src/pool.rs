//! The io_urings of a process: created when a batch finds none free, and kept for the next.
//!
//! ```text
//! busy     the taken places: only the holder of a place may touch the ring there
//! places   [ ring | ring | none yet | ... ], and so the most batches in flight through rings
//! ```
//! Locks: none (`busy`), and no thread waits. A batch makes plain calls if all places are taken, or
//! the system refuses rings.
//!
//! A forked child must not use a ring of its parent: both would write to one queue. It marks all
//! places as busy and creates a pool of its own.

use crate::busy::{Busy, PLACES};
use crate::uring::{Ring, Set};
use highwater_platform::Direction;
use std::cell::UnsafeCell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The rings over one file.
pub(crate) struct Pool {
    busy: Busy,
    refused: AtomicBool,
    places: [Place; PLACES],
}

#[derive(Default)]
struct Place(UnsafeCell<Option<Ring>>);

// SAFETY: only the thread that took a place reaches the ring there.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool without rings.
    pub(crate) fn new() -> Pool {
        Pool {
            busy: Busy::new(PLACES),
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

    fn take_place(&self) -> Option<Held<'_>> {
        let index = self.busy.try_take(PLACES)?;
        Some(Held { pool: self, index })
    }

    /// The ring of a started batch.
    pub(crate) fn back(&self, started: &Started) -> Held<'_> {
        Held { pool: self, index: started.index }
    }

    /// For a forked child: it never uses or closes any of the parent's rings, whether they were
    /// free or in use at the time of the fork.
    pub(crate) fn leave_to_parent(&self) {
        self.busy.close();
    }
}

/// A batch in flight on a ring or a connection, whose place stays taken.
#[must_use]
pub struct Started {
    /// The place of its ring, or connection.
    pub(crate) index: u32,
    pub(crate) direction: Direction,
    /// The transfers that went there.
    pub(crate) left: Set,
    /// The bounce pages of a sealed write.
    pub(crate) bounce: Option<u32>,
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
        // SAFETY: a place has one holder, which is borrowed mutably.
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
        Started { index, direction, left, bounce: None }
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
        self.pool.busy.put(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

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
