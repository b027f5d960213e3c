//! Batches that readers of files have begun to read, until somebody comes for their pages.
//!
//! ```text
//! reader -- put --> [Shelf]  by space -- take     who comes for a page of it, mostly that reader
//!                                     \- take_old the thread that lands what nobody came for
//! ```
//! Conservation: `pages` are those of all batches on the shelves.
//! Locking: a shelf's lock is taken alone, under entries at most. Who finds a page's entry locked
//! says so there before it looks on the shelf, and who puts a batch there looks for that
//! afterwards: so nobody sleeps for a batch that lies there.

use super::Machine;
use super::read_batch::ReadBatch;
use crate::lock_class;
use highwater_platform::{Atomic, Event, Guard, Lock, Platform, Ticket};
use highwater_units::{Nanos, SpaceId, Vpn};
use std::sync::atomic::Ordering::SeqCst;

/// Shelves; spaces share them.
const SHELVES: usize = 16;

/// How long a batch waits for its reader.
pub const WINDOW_EXPIRY: Nanos = Nanos(5_000_000);

/// Part of all frames that may be under way: what is left can be reclaimed.
const PART_OF_FRAMES: u32 = 8;

/// A batch, and since when it lies there.
type Shelf<P> = Vec<(Nanos, ReadBatch<P>)>;

/// Whether batches may be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No: nobody would land what is left.
    Closed = 0,
    /// Yes, and the thread that lands what is left looks now and then.
    Watched = 1,
    /// Yes, and that thread sleeps until it is told.
    Asleep = 2,
}

/// All batches under way that are in nobody's hands.
pub struct InflightReadahead<P: Platform> {
    shelves: Vec<P::Lock<Shelf<P>>>,
    pages: P::Atomic<u32>,
    state: P::Atomic<u8>,
    bell: P::Event,
}

impl<P: Platform> InflightReadahead<P> {
    /// None, and closed.
    pub(super) fn new(platform: &P) -> InflightReadahead<P> {
        let shelf = |_| platform.new_lock(lock_class::PREFETCH, Shelf::new());
        InflightReadahead {
            shelves: (0..SHELVES).map(shelf).collect(),
            pages: Atomic::new(0),
            state: Atomic::new(State::Closed as u8),
            bell: platform.new_event(),
        }
    }

    /// From now on there is somebody who lands what is left.
    pub fn open(&self) {
        self.state.store(State::Watched as u8, SeqCst);
    }

    /// Nothing is put there any more. What is there, its landlord takes.
    pub fn close(&self) {
        self.state.store(State::Closed as u8, SeqCst);
        self.bell.notify_all();
    }

    /// Whether one more batch may be begun.
    pub fn admits(&self, m: &Machine<P>) -> bool {
        let frames = m.frames.len() as u32;
        self.is_open() && self.pages.load(SeqCst) < frames / PART_OF_FRAMES
    }

    fn shelf(&self, space: SpaceId) -> &P::Lock<Shelf<P>> {
        &self.shelves[usize::from(space.0) % SHELVES]
    }

    /// Leaves a batch of pages of `space`, that was sent, to who comes for one of them.
    pub fn put(&self, m: &Machine<P>, space: SpaceId, flight: ReadBatch<P>) {
        self.pages.fetch_add(flight.pages(), SeqCst);
        let now = m.platform.now();
        let mut shelf = self.shelf(space).lock();
        shelf.visits(1);
        // Under the lock: afterwards it may be gone.
        flight.wake_waiters(m);
        shelf.push((now, flight));
        drop(shelf);
        let (asleep, watched) = (State::Asleep as u8, State::Watched as u8);
        if self.state.load(SeqCst) == asleep
            && self.state.compare_exchange(asleep, watched, SeqCst, SeqCst).is_ok()
        {
            self.bell.notify_all();
        }
    }

    /// The batch that a page is of, taken out.
    pub fn take(&self, space: SpaceId, vpn: Vpn) -> Option<ReadBatch<P>> {
        if self.pages.load(SeqCst) == 0 {
            return None;
        }
        self.take_first(self.shelf(space), |_, flight| flight.has(space, vpn))
    }

    /// A batch that has been there since before a time, taken out.
    pub fn take_old(&self, before: Nanos) -> Option<ReadBatch<P>> {
        self.shelves.iter().find_map(|shelf| self.take_first(shelf, |since, _| since < before))
    }

    /// A batch that can be landed without a wait, taken out.
    pub fn take_done(&self, m: &Machine<P>) -> Option<ReadBatch<P>> {
        self.shelves.iter().find_map(|shelf| self.take_first(shelf, |_, flight| flight.is_over(m)))
    }

    fn take_first(
        &self,
        shelf: &P::Lock<Shelf<P>>,
        wanted: impl Fn(Nanos, &ReadBatch<P>) -> bool,
    ) -> Option<ReadBatch<P>> {
        let mut shelf = shelf.lock();
        let at = shelf.iter().position(|(since, flight)| wanted(*since, flight));
        shelf.visits(at.map_or(shelf.len(), |at| at + 1));
        let (_, flight) = shelf.swap_remove(at?);
        drop(shelf);
        self.pages.fetch_sub(flight.pages(), SeqCst);
        Some(flight)
    }

    /// The present point in the history of the bell.
    pub fn ticket(&self) -> Ticket {
        self.bell.ticket()
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.state.load(SeqCst) != State::Closed as u8
    }

    /// Waits until batches have been there for long enough, or it was closed after `ticket`.
    pub fn watch(&self, ticket: Ticket) {
        let (asleep, watched) = (State::Asleep as u8, State::Watched as u8);
        // Said before the look at `pages`: who adds some afterwards sees it.
        let _ = self.state.compare_exchange(watched, asleep, SeqCst, SeqCst);
        let patience = if self.pages.load(SeqCst) == 0 { None } else { Some(WINDOW_EXPIRY) };
        self.bell.wait(ticket, patience);
        let _ = self.state.compare_exchange(asleep, watched, SeqCst, SeqCst);
    }
}
