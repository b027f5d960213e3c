//! The connections of a device: made when a request finds none free, and kept for the next.
//!
//! Locks: none (`places`). Requests that are finished later may take only some of the places; the
//! rest are for requests that the caller waits for. So no thread waits for a place that only it
//! could give back.

use crate::places::{Places, Taken};
use crate::remote::store::{Connection, Store};
use crate::remote::verdict::Problem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The most connections.
pub(super) const PLACES: usize = 32;
/// Places that requests finished later may not take.
const OTHERS: usize = 8;
/// How often a thread that waits for a free place polls.
const LOOK: Duration = Duration::from_micros(50);

/// The connections.
pub(super) struct Links<L: Connection> {
    /// Each place holds its connection, once there is one.
    places: Places<Option<L>>,
    made: AtomicU32,
    closed: AtomicBool,
}

impl<L: Connection> Links<L> {
    pub(super) fn new() -> Links<L> {
        let (made, closed) = (AtomicU32::new(0), AtomicBool::new(false));
        Links { places: Places::new(), made, closed }
    }

    /// Waits for a free place among the first `most`; `None` once they are closed.
    pub(super) fn take(&self, most: usize) -> Option<Held<'_, L>> {
        while !self.closed.load(Relaxed) {
            match self.places.try_take(most) {
                Some(seat) => return Some(Held { made: &self.made, seat }),
                None => std::thread::sleep(LOOK),
            }
        }
        None
    }

    /// A place of the first `most` for requests that are finished later; `None`: all are taken.
    pub(super) fn take_for_later(&self, most: usize) -> Option<Held<'_, L>> {
        self.places
            .try_take(most.saturating_sub(OTHERS))
            .map(|seat| Held { made: &self.made, seat })
    }

    /// The place that was left under this number.
    pub(super) fn back(&self, index: u32) -> Held<'_, L> {
        Held { made: &self.made, seat: self.places.back(index) }
    }

    /// Gives out no place from now on, and waits up to `most` until all are free. Returns the
    /// first.
    pub(super) fn close(&self, most: Duration) -> Option<Held<'_, L>> {
        self.closed.store(true, Relaxed);
        let began = Instant::now();
        let mut first = None;
        let mut taken = 0;
        while taken < PLACES && began.elapsed() < most {
            match self.places.try_take(PLACES) {
                Some(mut seat) => {
                    taken += 1;
                    if first.is_none() {
                        first = Some(Held { made: &self.made, seat });
                        continue;
                    }
                    seat.iter_mut().for_each(L::disconnect);
                    // The place stays taken.
                    let _ = seat.leave();
                }
                None => std::thread::sleep(LOOK),
            }
        }
        first
    }

    /// Forgets all connections without closing their descriptors. Called when no place is taken, in
    /// a process that has a copy of the memory but not of the descriptors: their numbers may belong
    /// to other files here.
    pub(super) fn forget(&self) {
        let all: Vec<_> = std::iter::from_fn(|| self.places.try_take(PLACES)).collect();
        all.into_iter().for_each(|mut seat| std::mem::forget(std::mem::take(&mut *seat)));
    }

    /// How many connections were made.
    pub(super) fn count(&self) -> u64 {
        self.made.load(Relaxed).into()
    }
}

/// A place that a request holds.
pub(super) struct Held<'a, L: Connection> {
    /// Counts connections that were made.
    made: &'a AtomicU32,
    seat: Taken<'a, Option<L>>,
}

impl<L: Connection> Held<'_, L> {
    /// The connection; makes one if there is none.
    pub(super) fn link<S: Store<Link = L>>(
        &mut self,
        store: &S,
        deadline: Duration,
    ) -> Result<&mut L, Problem> {
        let seat = &mut *self.seat;
        if seat.is_none() {
            *seat = Some(store.connect(deadline)?);
            self.made.fetch_add(1, Relaxed);
        }
        let link = seat.as_mut().expect("made above");
        link.set_deadline(deadline)?;
        Ok(link)
    }

    /// The connection, if there is one.
    pub(super) fn open(&mut self) -> Option<&mut L> {
        self.seat.as_mut()
    }

    /// Puts a connection there.
    pub(super) fn put(&mut self, link: L) {
        self.made.fetch_add(1, Relaxed);
        *self.seat = Some(link);
    }

    /// Gives up the requests in flight on the connection.
    pub(super) fn hang_up(&mut self) {
        if let Some(link) = self.seat.take() {
            *self.seat = link.hang_up();
            self.made.fetch_sub(self.seat.is_none().into(), Relaxed);
        }
    }

    /// Keeps the place for [`Links::back`].
    pub(super) fn leave(self) -> u32 {
        self.seat.leave()
    }
}
