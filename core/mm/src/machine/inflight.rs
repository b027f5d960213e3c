//! Readahead in flight: batches that readers of files have started, until a thread needs one of
//! their pages.
//!
//! ```text
//! reader -- put --> [Started]  by space -- take      a thread that needs a page of the batch
//!                                       |- take_done a reader that may start no more
//!                                       \- take_old  the thread that finishes expired batches
//! ```
//! Conservation: `pages` is the sum over the batches here.
//! Locking: a queue's lock is taken under entries at most, and nothing under it. A thread that
//! finds an entry locked registers as its waiter, then looks here; `put` adds the batch and wakes
//! the waiters of its entries. So no thread sleeps for a batch that lies here.

use super::read_batch::ReadBatch;
use crate::lock_class;
use crate::space::Space;
use highwater_platform::{Atomic, Event, Guard, Lock, Platform, Ticket};
use highwater_units::{Nanos, SpaceId, Vpn};
use std::sync::atomic::Ordering::SeqCst;

/// Queues; spaces share them.
const QUEUES: usize = 16;

/// How long a batch waits for its reader before another thread finishes it.
pub const WINDOW_EXPIRY: Nanos = Nanos(5_000_000);

/// The part of all frames that may be in flight; reclaim has the rest.
const PART_OF_FRAMES: u32 = 8;

/// Batches, and when they were started.
type Started<P> = Vec<(Nanos, ReadBatch<P>)>;

/// Whether batches may be put here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// They may not: no thread would finish expired ones.
    Closed = 0,
    /// They may, and the thread that finishes expired ones wakes up in time.
    Watched = 1,
    /// They may, and that thread sleeps until it is woken.
    Asleep = 2,
}

/// All started batches that no thread has.
pub struct InflightReadahead<P: Platform> {
    queues: Vec<P::Lock<Started<P>>>,
    pages: P::Atomic<u32>,
    state: P::Atomic<u8>,
    wait: P::Event,
}

impl<P: Platform> InflightReadahead<P> {
    /// Empty and closed.
    pub(super) fn new(platform: &P) -> InflightReadahead<P> {
        let queue = |_| platform.new_lock(lock_class::PREFETCH, Started::new());
        InflightReadahead {
            queues: (0..QUEUES).map(queue).collect(),
            pages: Atomic::new(0),
            state: Atomic::new(State::Closed as u8),
            wait: platform.new_event(),
        }
    }

    /// Admits batches: there is a thread that finishes expired ones.
    pub fn open(&self) {
        self.state.store(State::Watched as u8, SeqCst);
    }

    /// Admits no more batches. That thread finishes those that are here.
    pub fn close(&self) {
        self.state.store(State::Closed as u8, SeqCst);
        self.wait.notify_all();
    }

    /// Whether another batch may be started, on a machine of `frames` frames.
    pub fn admits(&self, frames: u32) -> bool {
        self.is_open() && self.pages.load(SeqCst) < frames / PART_OF_FRAMES
    }

    fn queue(&self, space: SpaceId) -> &P::Lock<Started<P>> {
        &self.queues[usize::from(space.0) % QUEUES]
    }

    /// Puts a started batch of pages of `space` here, for the thread that needs one of them.
    pub fn put(&self, platform: &P, space: &Space<P>, batch: ReadBatch<P>) {
        self.pages.fetch_add(batch.pages(), SeqCst);
        let now = platform.now();
        let mut queue = self.queue(space.id()).lock();
        queue.visits(1);
        // Under the lock: afterwards another thread may have taken the batch.
        batch.wake_waiters(space);
        queue.push((now, batch));
        drop(queue);
        let (asleep, watched) = (State::Asleep as u8, State::Watched as u8);
        if self.state.load(SeqCst) == asleep
            && self.state.compare_exchange(asleep, watched, SeqCst, SeqCst).is_ok()
        {
            self.wait.notify_all();
        }
    }

    /// Takes the batch that reads a page.
    pub fn take(&self, space: SpaceId, vpn: Vpn) -> Option<ReadBatch<P>> {
        if self.pages.load(SeqCst) == 0 {
            return None;
        }
        self.take_first(self.queue(space), |_, batch| batch.has(space, vpn))
    }

    /// Takes a batch that was put here before a time.
    pub fn take_old(&self, before: Nanos) -> Option<ReadBatch<P>> {
        self.queues.iter().find_map(|queue| self.take_first(queue, |since, _| since < before))
    }

    /// Takes a batch that can be finished without a wait.
    pub fn take_done(&self, platform: &P) -> Option<ReadBatch<P>> {
        let done = |queue| self.take_first(queue, |_, batch| batch.is_over(platform));
        self.queues.iter().find_map(done)
    }

    fn take_first(
        &self,
        queue: &P::Lock<Started<P>>,
        wanted: impl Fn(Nanos, &ReadBatch<P>) -> bool,
    ) -> Option<ReadBatch<P>> {
        let mut queue = queue.lock();
        let at = queue.iter().position(|(since, batch)| wanted(*since, batch));
        queue.visits(at.map_or(queue.len(), |at| at + 1));
        let (_, batch) = queue.swap_remove(at?);
        drop(queue);
        self.pages.fetch_sub(batch.pages(), SeqCst);
        Some(batch)
    }

    /// A ticket for [`InflightReadahead::watch`].
    pub fn ticket(&self) -> Ticket {
        self.wait.ticket()
    }

    /// Whether batches are admitted.
    pub fn is_open(&self) -> bool {
        self.state.load(SeqCst) != State::Closed as u8
    }

    /// Sleeps until batches have expired, or a [`InflightReadahead::close`] after `ticket`.
    pub fn watch(&self, ticket: Ticket) {
        let (asleep, watched) = (State::Asleep as u8, State::Watched as u8);
        // Set before `pages` is read: a thread that adds some afterwards sees it.
        let _ = self.state.compare_exchange(watched, asleep, SeqCst, SeqCst);
        let timeout = if self.pages.load(SeqCst) == 0 { None } else { Some(WINDOW_EXPIRY) };
        self.wait.wait(ticket, timeout);
        let _ = self.state.compare_exchange(asleep, watched, SeqCst, SeqCst);
    }
}

impl<P: Platform> ReadBatch<P> {
    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.runs.iter().map(|run| run.frames.len() as u32).sum()
    }

    /// Whether the batch reads a page.
    pub fn has(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.runs.iter().any(|run| run.left.has(space, vpn))
    }

    /// Wakes the threads that wait for its pages, all of which are in `space`.
    pub fn wake_waiters(&self, space: &Space<P>) {
        self.runs.iter().for_each(|run| run.left.wake_waiters(space));
    }
}
