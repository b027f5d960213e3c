//! Locks and events. A platform makes them, so the simulator can queue and charge for them.

use crate::profile::{LockClass, LockStatistics};
use highwater_units::Nanos;
use std::ops::DerefMut;

/// A lock that is held, until it is dropped.
pub trait Guard<T>: DerefMut<Target = T> {
    /// The holder visits `items` of what the lock protects: links, counts, blocks. The simulator
    /// charges for them; elsewhere it costs nothing.
    fn visits(&self, items: usize);
}

/// Mutual exclusion around a `T`.
pub trait Lock<T>: Send + Sync {
    /// Holds the lock until dropped.
    type Guard<'a>: Guard<T>
    where
        Self: 'a,
        T: 'a;

    /// Waits for the lock. The caller holds no lock that comes later in the lock order.
    fn lock(&self) -> Self::Guard<'_>;

    /// The lock, if nobody holds it.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// A point in an event's history, taken before the condition is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u32);

/// An event count: wait without a lock, and without losing a wake-up.
///
/// Waiter: take a ticket, look at the condition, wait with the ticket if it does not hold.
/// Waker: make the condition true, then notify. A notification after the ticket ends the wait.
pub trait Event: Send + Sync {
    /// The present point of history.
    fn ticket(&self) -> Ticket;

    /// Waits until a notification that came after `ticket`, or `timeout`. May return early.
    fn wait(&self, ticket: Ticket, timeout: Option<Nanos>);

    /// Ends every wait whose ticket is older. Free of system calls when nobody waits.
    fn notify_all(&self);
}

/// Where locks and events come from.
pub trait Locks {
    /// The platform's lock.
    type Lock<T: Send + 'static>: Lock<T> + 'static;
    /// The platform's event.
    type Event: Event + 'static;

    /// A free lock around `value`.
    fn new_lock<T: Send + 'static>(&self, class: LockClass, value: T) -> Self::Lock<T>;

    /// An event with no history.
    fn new_event(&self) -> Self::Event;

    /// What the locks made here have cost so far.
    fn lock_statistics(&self) -> LockStatistics;
}
