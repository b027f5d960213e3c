//! Requests to read pages before they are used: a queue from faults to a readahead thread.
//!
//! ```text
//! fault of a stream, Manager::prefetch -- push --> [ReadaheadRequest] -- pop --> fault/ahead.rs
//! ```
//! Requests are hints: a full queue drops them. Locking: one lock, under entries at most.

use crate::lock_class;
use highwater_platform::{Event, Guard, Lock, Platform, Ticket};
use highwater_units::{SpaceId, Vpn};
use std::collections::VecDeque;

/// Requests in a queue at most.
const REQUESTS_MAX: usize = 1024;

/// Pages that will be used soon, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadRequest {
    /// The space of the pages.
    pub space: SpaceId,
    /// The first page.
    pub first: Vpn,
    /// The page after the last.
    pub end: Vpn,
    /// The run from this page on stays unmapped, so that its first use is seen.
    pub marker: Option<Vpn>,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// It is in the queue.
    Accepted,
    /// The queue was full.
    Dropped,
}

/// A queue of requests.
pub struct ReadaheadQueue<P: Platform> {
    queue: P::Lock<VecDeque<ReadaheadRequest>>,
    event: P::Event,
}

impl<P: Platform> ReadaheadQueue<P> {
    /// An empty queue.
    pub fn new(platform: &P) -> ReadaheadQueue<P> {
        let queue = VecDeque::with_capacity(REQUESTS_MAX);
        let queue = platform.new_lock(lock_class::PREFETCH, queue);
        ReadaheadQueue { queue, event: platform.new_event() }
    }

    /// Adds a request and wakes the thread.
    pub fn push(&self, request: ReadaheadRequest) -> Queued {
        let mut queue = self.queue.lock();
        queue.visits(1);
        if queue.len() == REQUESTS_MAX {
            return Queued::Dropped;
        }
        queue.push_back(request);
        drop(queue);
        self.event.notify_all();
        Queued::Accepted
    }

    /// Takes the oldest request.
    pub fn pop(&self) -> Option<ReadaheadRequest> {
        let mut queue = self.queue.lock();
        queue.visits(1);
        queue.pop_front()
    }

    /// A ticket for [`ReadaheadQueue::wait`].
    pub fn ticket(&self) -> Ticket {
        self.event.ticket()
    }

    /// Waits for a request, or for [`ReadaheadQueue::wake`], that comes after `ticket`.
    pub fn wait(&self, ticket: Ticket) {
        self.event.wait(ticket, None);
    }

    /// Wakes the readahead thread.
    pub fn wake(&self) {
        self.event.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;

    #[test]
    fn requests_come_in_order_and_a_full_queue_drops_them() {
        let platform = TestPlatform::new(1, Vec::new());
        let queue: ReadaheadQueue<TestPlatform> = ReadaheadQueue::new(&platform);
        let request = |first| ReadaheadRequest {
            space: SpaceId(1),
            first: Vpn(first),
            end: Vpn(first + 1),
            marker: None,
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
}
