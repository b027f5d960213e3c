//! The connections of a device: made when a request finds none free, and kept for the next.
//!
//! Locks: none (`places`). Requests that are finished later leave some places to those that are
//! waited for: a thread that waits for a place never has another one that it must give back first.

use crate::places::{Places, Taken};
use crate::remote::link::{BYTES, Identity, Link};
use crate::remote::login::Login;
use crate::remote::server::Server;
use crate::remote::verdict::Problem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The most connections.
const PLACES: usize = 32;
/// Places for requests that are finished later.
const LATER_MAX: usize = PLACES - 8;
/// Between two looks for a free place.
const LOOK: Duration = Duration::from_micros(50);

/// The connections.
pub(super) struct Links {
    places: Places<Seat>,
    made: AtomicU32,
    closed: AtomicBool,
}

/// A place: its connection, once there is one.
#[derive(Default)]
struct Seat {
    link: Option<Link>,
    /// A connection whose requests may be carried out later.
    earlier: Option<Identity>,
}

impl Links {
    pub(super) fn new() -> Links {
        let (made, closed) = (AtomicU32::new(0), AtomicBool::new(false));
        Links { places: Places::new(), made, closed }
    }

    /// A place, as soon as one is free; `None` once they are closed.
    pub(super) fn take(&self) -> Option<Held<'_>> {
        while !self.closed.load(Relaxed) {
            match self.places.try_take(PLACES) {
                Some(seat) => return Some(Held { made: &self.made, seat }),
                None => std::thread::sleep(LOOK),
            }
        }
        None
    }

    /// A place for requests that are finished later; `None`: all are taken.
    pub(super) fn take_for_later(&self) -> Option<Held<'_>> {
        self.places.try_take(LATER_MAX).map(|seat| Held { made: &self.made, seat })
    }

    /// The place that was left under this number.
    pub(super) fn back(&self, index: u32) -> Held<'_> {
        Held { made: &self.made, seat: self.places.back(index) }
    }

    /// Gives no place from now on, and waits until all are free, or for `most`.
    pub(super) fn close(&self, most: Duration) {
        self.closed.store(true, Relaxed);
        let began = Instant::now();
        let mut taken = 0;
        while taken < PLACES && began.elapsed() < most {
            match self.places.try_take(PLACES) {
                Some(seat) => {
                    // It stays taken.
                    let _ = seat.leave();
                    taken += 1;
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// In a process that has a copy of the memory and not of the descriptors, when no place is
    /// taken: forgets all connections, without closing what has their numbers here.
    pub(super) fn forget(&self) {
        let all: Vec<_> = std::iter::from_fn(|| self.places.try_take(PLACES)).collect();
        all.into_iter().for_each(|mut seat| std::mem::forget(std::mem::take(&mut *seat)));
    }

    /// Memory of all connections that were made.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.made.load(Relaxed)) * BYTES as u64
    }
}

/// A place that a request holds.
pub(super) struct Held<'a> {
    /// Counts connections that were made.
    made: &'a AtomicU32,
    seat: Taken<'a, Seat>,
}

impl Held<'_> {
    /// The connection; makes one if there is none.
    pub(super) fn link(&mut self, server: &Server, login: &Login) -> Result<&mut Link, Problem> {
        let seat = &mut *self.seat;
        if seat.link.is_none() {
            let mut link = Link::open(server, login)?;
            if let Some(earlier) = seat.earlier {
                link.bury(earlier)?;
            } else {
                self.made.fetch_add(1, Relaxed);
            }
            seat.earlier = Some(link.identity);
            seat.link = Some(link);
        }
        Ok(seat.link.as_mut().expect("made above"))
    }

    /// The connection, if there is one.
    pub(super) fn open(&mut self) -> Option<&mut Link> {
        self.seat.link.as_mut()
    }

    /// Puts a connection there.
    pub(super) fn put(&mut self, link: Link) {
        self.made.fetch_add(1, Relaxed);
        *self.seat = Seat { earlier: Some(link.identity), link: Some(link) };
    }

    /// Closes the connection.
    pub(super) fn hang_up(&mut self) {
        self.seat.link = None;
    }

    /// Keeps the place for [`Links::back`].
    pub(super) fn leave(self) -> u32 {
        self.seat.leave()
    }
}
