//! Locks and events. A platform makes them, so the simulator can queue and charge for them.

use highwater_units::Nanos;
use std::ops::DerefMut;

/// What a lock protects; statistics and lock-order checks go by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockClass {
    /// The table of spaces.
    Spaces,
    /// Leaf allocation of a page table.
    PageTable,
    /// Counts and swap cache of one cluster of slots.
    SwapCluster,
    /// Cluster lists of a swap device.
    SwapDevice,
    /// A CPU's current cluster.
    SwapCpu,
    /// Frames kept by a CPU.
    PerCpuFrames,
    /// The buddy allocator of a node.
    Zone,
    /// A CPU's pages on their way to a list.
    LruBatch,
    /// The LRU lists of a node.
    Lru,
    /// Start and stop of kswapd threads.
    Kswapd,
    /// Anything in a test.
    Test,
}

/// Mutual exclusion around a `T`.
pub trait Lock<T>: Send + Sync {
    /// Holds the lock until dropped.
    type Guard<'a>: DerefMut<Target = T>
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
}
