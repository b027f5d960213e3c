//! Locks and events. The platform implements them, so that the simulator can queue threads and
//! charge for contention.

use crate::profile::{LockClass, LockStatistics};
use highwater_units::Nanos;
use std::ops::DerefMut;

/// A held lock; dropping it releases the lock.
pub trait Guard<T>: DerefMut<Target = T> {
    /// Reports that the holder visits `items` items of the protected data: links, counts, blocks.
    /// The simulator charges for them; other platforms do nothing.
    fn visits(&self, items: usize);
}

/// A mutual-exclusion lock around a `T`.
///
/// Obligations: a release happens before the next acquisition. The lock need not be recursive or
/// fair. The manager takes locks in the order that `core/mm/src/machine.rs` defines, and does not
/// sleep or transfer pages while it holds one; it notifies events under locks. The thread that
/// acquired a lock releases it.
///
/// Cost: an uncontended acquisition should take one atomic operation and no system call. Locks are
/// held for one batch of pages at most, so a short spin before sleeping saves context switches.
pub trait Lock<T>: Send + Sync {
    /// The held lock.
    type Guard<'a>: Guard<T>
    where
        Self: 'a,
        T: 'a;

    /// Acquires the lock; blocks while another thread holds it.
    fn lock(&self) -> Self::Guard<'_>;

    /// Acquires the lock unless a thread holds it. Never blocks, and does not fail on a free lock.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;

    /// Creates a free lock around another value, whose costs count for the class of this one.
    fn alike(&self, value: T) -> Self
    where
        Self: Sized;
}

/// A state of an event: the number of notifications so far, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u32);

/// An event count: threads wait for a condition without a lock, and no wake-up is lost.
///
/// Waiter: take a ticket; check the condition; if it is false, wait with the ticket; repeat.
/// Notifier: make the condition true; notify.
///
/// Obligations: a wait returns if a notification came after its ticket was taken, whether before or
/// after the wait began. A thread that takes its ticket after a notification sees all that the
/// notifier wrote before.
///
/// Cost: [`Event::notify_all`] must not block, because callers may hold locks. Without waiters it
/// should take no system call, for it is frequent. [`Event::ticket`] is one load.
pub trait Event: Send + Sync {
    /// The present state, to be taken before the condition is checked.
    fn ticket(&self) -> Ticket;

    /// Blocks until a notification after `ticket`, or for `timeout`; `None`: without limit. May
    /// return early, so the caller checks its condition again.
    fn wait(&self, ticket: Ticket, timeout: Option<Nanos>);

    /// Advances the event, and wakes all threads that wait with an older ticket.
    fn notify_all(&self);
}

/// Creates locks and events, and reports what locks cost.
///
/// Obligations: locks and events may be created and dropped at any time, by any thread.
///
/// Cost: most are created when a manager starts; some when a space or a cache of objects is added.
///
/// Used by every file of core/mm that has a lock; `core/mm/src/machine.rs` lists them in lock
/// order. Events: `core/mm/src/machine.rs` and `core/mm/src/space/page_table.rs`.
pub trait Locks {
    /// The platform's lock.
    type Lock<T: Send + 'static>: Lock<T> + 'static;
    /// The platform's event.
    type Event: Event + 'static;

    /// Creates a free lock around `value`, whose costs count for `class`.
    fn new_lock<T: Send + 'static>(&self, class: LockClass, value: T) -> Self::Lock<T>;

    /// Creates an event without notifications.
    fn new_event(&self) -> Self::Event;

    /// The costs of all locks created here, so far. A platform that does not count returns zeros.
    fn lock_statistics(&self) -> LockStatistics;
}
