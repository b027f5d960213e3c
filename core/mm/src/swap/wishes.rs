//! Pages that are wanted soon: a queue of hints between faults and a thread that reads ahead.
//!
//! ```text
//! fault of a stream, Manager::prefetch -- ask --> [Wish, ...] -- next --> fault/ahead.rs
//! ```
//! Locking: one lock, taken alone, under entries at most. What finds the queue full is forgotten.

use crate::lock_class;
use highwater_platform::{Event, Guard, Lock, Platform, Ticket};
use highwater_units::{SpaceId, Vpn};
use std::collections::VecDeque;

/// Wishes kept at a time.
const WISHES_MAX: usize = 1024;

/// Pages that are wanted soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Whose they are.
    pub space: SpaceId,
    /// The first one.
    pub first: Vpn,
    /// The page after the last; there is one at least.
    pub end: Vpn,
    /// From this one on a run is to be left unmapped, so that it is seen when it is used.
    pub marker: Option<Vpn>,
}

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is known.
    Noted,
    /// There are too many.
    Forgotten,
}

/// A queue of wishes.
pub struct Wishes<P: Platform> {
    queue: P::Lock<VecDeque<Wish>>,
    rung: P::Event,
}

impl<P: Platform> Wishes<P> {
    /// None.
    pub fn new(platform: &P) -> Wishes<P> {
        let queue = VecDeque::with_capacity(WISHES_MAX);
        let queue = platform.new_lock(lock_class::PREFETCH, queue);
        Wishes { queue, rung: platform.new_event() }
    }

    /// Notes a wish.
    pub fn ask(&self, wish: Wish) -> Asked {
        let mut queue = self.queue.lock();
        queue.visits(1);
        if queue.len() == WISHES_MAX {
            return Asked::Forgotten;
        }
        queue.push_back(wish);
        drop(queue);
        self.rung.notify_all();
        Asked::Noted
    }

    /// The oldest wish, taken out.
    pub fn next(&self) -> Option<Wish> {
        let mut queue = self.queue.lock();
        queue.visits(1);
        queue.pop_front()
    }

    /// The present point in the history of wishes.
    pub fn ticket(&self) -> Ticket {
        self.rung.ticket()
    }

    /// Waits for a wish, or for [`Wishes::ring`], that comes after `ticket`.
    pub fn wait(&self, ticket: Ticket) {
        self.rung.wait(ticket, None);
    }

    /// Wakes who waits.
    pub fn ring(&self) {
        self.rung.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;

    #[test]
    fn wishes_come_in_order_and_too_many_are_forgotten() {
        let platform = TestPlatform::new(1, Vec::new());
        let wishes: Wishes<TestPlatform> = Wishes::new(&platform);
        let wish = |first| Wish {
            space: SpaceId(1),
            first: Vpn(first),
            end: Vpn(first + 1),
            marker: None,
        };
        assert_eq!(wishes.next(), None);
        for page in 0..WISHES_MAX as u64 {
            assert_eq!(wishes.ask(wish(page)), Asked::Noted);
        }
        assert_eq!(wishes.ask(wish(1 << 20)), Asked::Forgotten);
        for page in 0..WISHES_MAX as u64 {
            assert_eq!(wishes.next(), Some(wish(page)));
        }
        assert_eq!(wishes.next(), None);
    }
}
