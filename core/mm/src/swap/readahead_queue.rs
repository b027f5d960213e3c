//! Readahead requests: a queue of hints from faults to a thread that reads ahead.
//!
//! ```text
//! fault of a stream, Manager::prefetch -- push --> [request, ...] -- pop --> fault/readahead.rs
//! ```
//! Locking: one lock, taken alone, under entries at most. A full queue drops new requests.

use crate::lock_class;
use highwater_platform::{Event, Guard, Lock, Platform, Ticket};
use highwater_units::{SpaceId, Vpn};
use std::collections::VecDeque;

/// Most requests in a queue.
const REQUESTS_MAX: usize = 1024;

/// Why pages are read, which decides what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// A caller asked for them: they are mapped.
    Asked,
    /// A stream will reach them: they are mapped, except for the run that begins with this page,
    /// whose use shows that the stream continues.
    Stream(Option<Vpn>),
    /// Pointers name them: they are mapped.
    Named,
    /// Pointers name them: they are left unmapped, so that their use is seen.
    Watched,
}

impl Landing {
    /// The page with which a run has to begin, so that it is left unmapped.
    pub fn marker(self) -> Option<Vpn> {
        match self {
            Landing::Stream(marker) => marker,
            Landing::Asked | Landing::Named | Landing::Watched => None,
        }
    }
}

/// Pages to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadRequest {
    /// Their space.
    pub space: SpaceId,
    /// The first page.
    pub first: Vpn,
    /// The page after the last; above `first`.
    pub end: Vpn,
    /// Why.
    pub landing: Landing,
}

impl ReadaheadRequest {
    /// The request without its first pages; `None` if no page is left.
    pub fn skip(self, pages: u64) -> Option<ReadaheadRequest> {
        let first = self.first.offset(pages);
        (first < self.end).then_some(ReadaheadRequest { first, ..self })
    }
}

/// Whether the queue took a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// It is in the queue.
    Accepted,
    /// The queue is full.
    Dropped,
}

/// A queue of requests.
pub struct ReadaheadQueue<P: Platform> {
    queue: P::Lock<VecDeque<ReadaheadRequest>>,
    wake: P::Event,
}

impl<P: Platform> ReadaheadQueue<P> {
    /// An empty queue.
    pub fn new(platform: &P) -> ReadaheadQueue<P> {
        let queue = VecDeque::with_capacity(REQUESTS_MAX);
        let queue = platform.new_lock(lock_class::PREFETCH, queue);
        ReadaheadQueue { queue, wake: platform.new_event() }
    }

    /// Appends a request and wakes the thread.
    pub fn push(&self, request: ReadaheadRequest) -> Queued {
        let mut queue = self.queue.lock();
        queue.visits(1);
        if queue.len() == REQUESTS_MAX {
            return Queued::Dropped;
        }
        queue.push_back(request);
        drop(queue);
        self.wake.notify_all();
        Queued::Accepted
    }

    /// Removes the oldest request.
    pub fn pop(&self) -> Option<ReadaheadRequest> {
        let mut queue = self.queue.lock();
        queue.visits(1);
        queue.pop_front()
    }

    /// A ticket for [`ReadaheadQueue::wait`].
    pub fn ticket(&self) -> Ticket {
        self.wake.ticket()
    }

    /// Waits for a [`ReadaheadQueue::push`] or [`ReadaheadQueue::wake`] after `ticket`.
    pub fn wait(&self, ticket: Ticket) {
        self.wake.wait(ticket, None);
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;

    #[test]
    fn requests_are_in_order_and_a_full_queue_drops() {
        let platform = TestPlatform::new(1, Vec::new());
        let queue: ReadaheadQueue<TestPlatform> = ReadaheadQueue::new(&platform);
        let request = |first| ReadaheadRequest {
            space: SpaceId(1),
            first: Vpn(first),
            end: Vpn(first + 1),
            landing: Landing::Asked,
        };
        assert_eq!(queue.pop(), None);
        for page in 0..REQUESTS_MAX as u64 {
            assert_eq!(queue.push(request(page)), Queued::Accepted);
        }
        assert_eq!(queue.push(request(1 << 20)), Queued::Dropped);
        for page in 0..REQUESTS_MAX as u64 {
            assert_eq!(queue.pop(), Some(request(page)));
        }
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn skipping_all_pages_leaves_no_request() {
        let (space, first, end) = (SpaceId(2), Vpn(10), Vpn(14));
        let request = ReadaheadRequest { space, first, end, landing: Landing::Stream(Some(first)) };
        assert_eq!(request.skip(3), Some(ReadaheadRequest { first: Vpn(13), ..request }));
        assert_eq!(request.skip(4), None);
    }
}
