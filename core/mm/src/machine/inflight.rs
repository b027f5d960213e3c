//! Batches that readers of files submitted and no thread waits for (`fault/history.rs`).
//!
//! ```text
//! reader -- put --> [Bucket], by space -- take      a fault on a page of the batch
//!                                      |- take_done a reader that may not add more
//!                                      \- take_old  the thread that completes expired batches
//! ```
//! Conservation: `pages` counts the pages of all batches in the buckets.
//! Locking: a bucket's lock is taken alone, under entries at most. A fault that finds an entry
//! locked registers as a waiter before it searches the bucket; `put` wakes the waiters under the
//! bucket's lock. So no fault sleeps for a batch that is in a bucket.

use super::read_batch::ReadBatch;
use crate::lock_class;
use crate::space::Space;
use highwater_platform::{Atomic, Event, Guard, Lock, Platform, Ticket};
use highwater_units::{Nanos, SpaceId, Vpn};
use std::sync::atomic::Ordering::SeqCst;

/// Buckets; spaces share them.
const BUCKETS: usize = 16;

/// The time after which the manager's thread completes a batch.
pub const WINDOW_EXPIRY: Nanos = Nanos(5_000_000);

/// At most this part of all frames is in flight; the others can be reclaimed.
const PART_OF_FRAMES: u32 = 8;

/// Batches, each with the time of its submission.
type Bucket<P> = Vec<(Nanos, ReadBatch<P>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Batches are not accepted: no thread would complete them.
    Closed = 0,
    /// Open; the thread looks for expired batches from time to time.
    Watched = 1,
    /// Open; the thread sleeps until it is woken.
    Asleep = 2,
}

/// All batches in flight that no thread owns.
pub struct InflightReadahead<P: Platform> {
    buckets: Vec<P::Lock<Bucket<P>>>,
    pages: P::Atomic<u32>,
    state: P::Atomic<u8>,
    wake: P::Event,
}

impl<P: Platform> InflightReadahead<P> {
    /// No batches; closed.
    pub(super) fn new(platform: &P) -> InflightReadahead<P> {
        let bucket = |_| platform.new_lock(lock_class::PREFETCH, Bucket::new());
        InflightReadahead {
            buckets: (0..BUCKETS).map(bucket).collect(),
            pages: Atomic::new(0),
            state: Atomic::new(State::Closed as u8),
            wake: platform.new_event(),
        }
    }

    /// Accepts batches: a thread completes those that expire.
    pub fn open(&self) {
        self.state.store(State::Watched as u8, SeqCst);
    }

    /// Accepts no more batches; the thread completes those that there are.
    pub fn close(&self) {
        self.state.store(State::Closed as u8, SeqCst);
        self.wake.notify_all();
    }

    /// Whether one more batch may be submitted, with a budget of `frames`.
    pub fn admits(&self, frames: usize) -> bool {
        self.is_open() && self.pages.load(SeqCst) < frames as u32 / PART_OF_FRAMES
    }

    fn bucket(&self, space: SpaceId) -> &P::Lock<Bucket<P>> {
        &self.buckets[usize::from(space.0) % BUCKETS]
    }

    /// Adds a submitted batch of pages of `space`.
    pub fn put(&self, platform: &P, space: &Space<P>, batch: ReadBatch<P>) {
        self.pages.fetch_add(batch.pages(), SeqCst);
        let now = platform.now();
        let mut bucket = self.bucket(space.id()).lock();
        bucket.visits(1);
        // Under the lock: without it another thread may take the batch first.
        batch.wake_waiters(space);
        bucket.push((now, batch));
        drop(bucket);
        let (asleep, watched) = (State::Asleep as u8, State::Watched as u8);
        if self.state.load(SeqCst) == asleep
            && self.state.compare_exchange(asleep, watched, SeqCst, SeqCst).is_ok()
        {
            self.wake.notify_all();
        }
    }

    /// Removes the batch that has a page.
    pub fn take(&self, space: SpaceId, vpn: Vpn) -> Option<ReadBatch<P>> {
        if self.pages.load(SeqCst) == 0 {
            return None;
        }
        self.take_first(self.bucket(space), |_, batch| batch.has(space, vpn))
    }

    /// Removes a batch that was submitted before a time.
    pub fn take_old(&self, before: Nanos) -> Option<ReadBatch<P>> {
        self.buckets.iter().find_map(|bucket| self.take_first(bucket, |since, _| since < before))
    }

    /// Removes a batch that completes without a wait.
    pub fn take_done(&self, platform: &P) -> Option<ReadBatch<P>> {
        let done = |_, batch: &ReadBatch<P>| batch.is_done(platform);
        self.buckets.iter().find_map(|bucket| self.take_first(bucket, done))
    }

    fn take_first(
        &self,
        bucket: &P::Lock<Bucket<P>>,
        wanted: impl Fn(Nanos, &ReadBatch<P>) -> bool,
    ) -> Option<ReadBatch<P>> {
        let mut bucket = bucket.lock();
        let at = bucket.iter().position(|(since, batch)| wanted(*since, batch));
        bucket.visits(at.map_or(bucket.len(), |at| at + 1));
        let (_, batch) = bucket.swap_remove(at?);
        drop(bucket);
        self.pages.fetch_sub(batch.pages(), SeqCst);
        Some(batch)
    }

    /// A ticket for [`InflightReadahead::wait`].
    pub fn ticket(&self) -> Ticket {
        self.wake.ticket()
    }

    /// Whether batches are accepted.
    pub fn is_open(&self) -> bool {
        self.state.load(SeqCst) != State::Closed as u8
    }

    /// Waits until a batch may have expired, or [`InflightReadahead::close`] after `ticket`.
    pub fn wait(&self, ticket: Ticket) {
        let (asleep, watched) = (State::Asleep as u8, State::Watched as u8);
        // Before `pages` is read: a reader that adds pages afterwards sees the state.
        let _ = self.state.compare_exchange(watched, asleep, SeqCst, SeqCst);
        let timeout = if self.pages.load(SeqCst) == 0 { None } else { Some(WINDOW_EXPIRY) };
        self.wake.wait(ticket, timeout);
        let _ = self.state.compare_exchange(asleep, watched, SeqCst, SeqCst);
    }
}
