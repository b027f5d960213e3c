//! Locks and events. A platform makes them, so the simulator can queue and charge for them.

use crate::LockStatistics;
use highwater_units::Nanos;
use std::ops::DerefMut;

/// What a lock protects; statistics and lock-order checks go by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockClass {
    /// Slots that a CPU keeps.
    SlotCache,
    /// All slots of a swap device, where one lock guards them (swap_info).
    SwapInfo,
    /// A tree of the swap cache.
    SwapCache,
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
    /// Pages that are to be read before they are used.
    Prefetch,
    /// Arrays of objects that a CPU keeps.
    SlabSheaf,
    /// Those that some CPUs share.
    SlabBarn,
    /// What a CPU has of a cache of objects.
    SlabCpu,
    /// The partial slabs of a node (list_lock).
    SlabNode,
    /// Records that no slab has.
    SlabRecords,
    /// Anything in a test.
    Test,
}

impl LockClass {
    /// All of them, in the order of their values.
    pub const ALL: [LockClass; 17] = [
        LockClass::SlotCache,
        LockClass::SwapInfo,
        LockClass::SwapCache,
        LockClass::SwapCluster,
        LockClass::SwapDevice,
        LockClass::SwapCpu,
        LockClass::PerCpuFrames,
        LockClass::Zone,
        LockClass::LruBatch,
        LockClass::Lru,
        LockClass::Prefetch,
        LockClass::SlabSheaf,
        LockClass::SlabBarn,
        LockClass::SlabCpu,
        LockClass::SlabNode,
        LockClass::SlabRecords,
        LockClass::Test,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            LockClass::SlotCache => "slot_cache",
            LockClass::SwapInfo => "swap_info",
            LockClass::SwapCache => "swap_cache",
            LockClass::SwapCluster => "swap_cluster",
            LockClass::SwapDevice => "swap_device",
            LockClass::SwapCpu => "swap_cpu",
            LockClass::PerCpuFrames => "per_cpu_frames",
            LockClass::Zone => "zone",
            LockClass::LruBatch => "lru_batch",
            LockClass::Lru => "lru",
            LockClass::Prefetch => "prefetch",
            LockClass::SlabSheaf => "slab_sheaf",
            LockClass::SlabBarn => "slab_barn",
            LockClass::SlabCpu => "slab_cpu",
            LockClass::SlabNode => "list_lock",
            LockClass::SlabRecords => "slab_records",
            LockClass::Test => "test",
        }
    }
}

/// A lock that is held, until it is dropped.
pub trait Guard<T>: DerefMut<Target = T> {
    /// Says that the holder goes over `items` of what the lock protects: links, counts, blocks. So
    /// the simulator knows how long it is held; elsewhere it costs nothing.
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
