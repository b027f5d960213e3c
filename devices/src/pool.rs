//! The rings of a process: made when a batch finds none free, kept for the next.
//!
//! ```text
//! busy    one bit per place: its holder alone may touch the ring there
//! rings   [ ring | ring | none yet | ... ]
//! ```
//! Locks: none. A place is taken by setting its bit and given back by clearing it; nothing is
//! waited for. Who finds all places taken, or a system that grants no rings, makes plain calls.
//!
//! A forked child must not use a ring of its parent: both would write one queue. It takes all
//! places, drops what is in them (its own mapping and descriptor; the parent's stay) and makes a
//! pool of its own. Rings in use at the instant of the fork only lose their descriptor there.

use crate::sys;
use crate::uring::{Ring, Set};
use highwater_platform::Direction;
use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Places for rings: batches in flight at once through rings.
const PLACES: usize = u64::BITS as usize;

/// What no descriptor is: a place without a ring.
const NO_DESCRIPTOR: i32 = -1;

/// The rings over one file.
pub(crate) struct Pool {
    owner: u32,
    busy: AtomicU64,
    refused: AtomicBool,
    places: [Place; PLACES],
}

struct Place {
    ring: UnsafeCell<Option<Ring>>,
    descriptor: AtomicI32,
}

// SAFETY: the ring of a place is reached only by the thread that set the bit of the place in
// `busy`, with acquire and release between one holder and the next.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool without rings.
    pub(crate) fn new() -> Pool {
        let place =
            || Place { ring: UnsafeCell::new(None), descriptor: AtomicI32::new(NO_DESCRIPTOR) };
        Pool {
            owner: std::process::id(),
            busy: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            places: std::array::from_fn(|_| place()),
        }
    }

    /// A ring over `file`, which is always the same; none when all are in use and no more are to
    /// be had.
    pub(crate) fn take(&self, file: BorrowedFd<'_>) -> Option<Held<'_>> {
        let mut held = self.take_place()?;
        if held.ring_mut().is_none() {
            held.make(file);
        }
        held.ring_mut().is_some().then_some(held)
    }

    /// The lowest free place: rings used last are in the CPU's caches, and few are ever made.
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

    /// The ring of a batch that was left to it.
    pub(crate) fn back(&self, started: &Started) -> Held<'_> {
        Held { pool: self, index: started.index }
    }

    /// Whether a descriptor is that of a ring here.
    pub(crate) fn owns_descriptor(&self, descriptor: i32) -> bool {
        descriptor != NO_DESCRIPTOR
            && self.places.iter().any(|place| place.descriptor.load(Relaxed) == descriptor)
    }

    /// In a forked child: lets go of the parent's rings. Elsewhere nothing happens.
    pub(crate) fn leave_to_parent(&self) {
        if self.owner == std::process::id() {
            return;
        }
        let busy = self.busy.swap(u64::MAX, Acquire);
        for (index, place) in self.places.iter().enumerate() {
            let descriptor = place.descriptor.swap(NO_DESCRIPTOR, Relaxed);
            match busy & 1 << index {
                // SAFETY: the bit was clear and is set now, so the place is ours.
                0 => drop(unsafe { (*place.ring.get()).take() }),
                // Its holder does not exist in this process, and the ring is never touched.
                _ => sys::close(descriptor),
            }
        }
    }
}

/// A batch that a ring is at: its place stays in use.
#[must_use]
pub struct Started {
    index: u32,
    pub(crate) direction: Direction,
    /// The transfers that went to the ring.
    pub(crate) left: Set,
}

/// A place in the hands of one batch.
pub(crate) struct Held<'a> {
    pool: &'a Pool,
    index: u32,
}

impl Held<'_> {
    fn place(&self) -> &Place {
        &self.pool.places[self.index as usize]
    }

    fn ring_mut(&mut self) -> &mut Option<Ring> {
        // SAFETY: the holder of the place's bit is alone, and it is borrowed mutably.
        unsafe { &mut *self.place().ring.get() }
    }

    fn make(&mut self, file: BorrowedFd<'_>) {
        if self.pool.refused.load(Relaxed) {
            return;
        }
        match Ring::new(file) {
            Ok(ring) => {
                self.place().descriptor.store(ring.as_raw_fd(), Relaxed);
                *self.ring_mut() = Some(ring);
            }
            // Not permitted, not known, no memory or no descriptors: asking again for every batch
            // would cost more than it could win.
            Err(_) => self.pool.refused.store(true, Relaxed),
        }
    }

    /// The ring.
    pub(crate) fn ring(&mut self) -> &mut Ring {
        self.ring_mut().as_mut().expect("a place is handed out with its ring")
    }

    /// Leaves the transfers `left` to the ring. The place stays taken.
    pub(crate) fn leave(self, direction: Direction, left: Set) -> Started {
        let index = self.index;
        std::mem::forget(self);
        Started { index, direction, left }
    }

    /// Never uses the ring again, nor its place. The ring is not dropped, because its descriptor
    /// may by now be a file of the program.
    pub(crate) fn abandon(mut self) {
        self.place().descriptor.store(NO_DESCRIPTOR, Relaxed);
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
    use std::os::fd::AsFd;

    #[test]
    fn places_run_out_and_come_back() {
        let pool = Pool::new();
        let held: Vec<_> = std::iter::from_fn(|| pool.take_place()).collect();
        assert_eq!(held.len(), PLACES);
        drop(held);
        assert_eq!(pool.take_place().map(|held| held.index), Some(0));
    }

    #[test]
    fn a_ring_is_made_once_and_known_by_its_descriptor() {
        let file = tempfile::tempfile().unwrap();
        let pool = Pool::new();
        let Some(mut held) = pool.take(file.as_fd()) else {
            println!("skipped: this system grants no io_uring");
            return;
        };
        let descriptor = held.ring().as_raw_fd();
        assert!(pool.owns_descriptor(descriptor) && !pool.owns_descriptor(file.as_raw_fd()));
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

    /// Whether a forked child that leaves the rings to its parent has none, and none is open.
    fn child_has_none(pool: &Pool, file: &std::fs::File, rings: &[i32]) -> bool {
        pool.leave_to_parent();
        // SAFETY: asks about a number.
        let open = |fd: &i32| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0;
        let known = rings.iter().any(|fd| pool.owns_descriptor(*fd));
        pool.take(file.as_fd()).is_none() && !known && !rings.iter().any(open)
    }

    #[test]
    fn a_fork_in_the_middle_of_a_batch_leaves_all_rings_to_the_parent() {
        let file = tempfile::tempfile().unwrap();
        let pool = Pool::new();
        let (Some(mut used), Some(mut free)) = (pool.take(file.as_fd()), pool.take(file.as_fd()))
        else {
            println!("skipped: this system grants no io_uring");
            return;
        };
        let rings = [used.ring().as_raw_fd(), free.ring().as_raw_fd()];
        drop(free);
        // SAFETY: the child makes system calls and allocates, and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(!child_has_none(&pool, &file, &rings));
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        pool.leave_to_parent();
        assert!(rings.iter().all(|fd| pool.owns_descriptor(*fd)), "the parent keeps its own");
    }
}
