//! A cache: objects of one size, with the slabs of each CPU and each node.
//!
//! ```text
//! Cache -- Sizing
//!       |- CPU: Lock<CpuSlabs>   the slab it allocates from, partial slabs    class SlabCpu
//!       |- Node                  partial slabs                               class SlabNode
//!       |- Sheaves               free objects in front of slabs              barn.rs
//!       \- spare: Lock<..>       unused records                              class SlabRecords
//! ```
//! Locking: a CPU's lock, then a node's or the lock of spare records. A thread may migrate to
//! another CPU at any time, hence the locks of CPUs, which are rarely contended.

use super::barn::Sheaves;
use super::node::Node;
use super::object::CacheId;
use super::record::{Pages, Slab};
use super::sizing::Sizing;
use super::table::Table;
use super::used::Marks;
use crate::lock_class;
use highwater_platform::{Lock, Platform};
use highwater_units::{CpuId, Order};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The specification of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Its name in reports.
    pub name: String,
    /// The size of an object, 8 bytes to 64 KiB.
    pub size: u32,
    /// Whether callers are recorded.
    pub callers: Callers,
    /// How allocated objects are marked.
    pub marks: Marks,
    /// The least order of slabs. Larger slabs need fewer records.
    pub order: Order,
}

/// Whether a cache records the caller of each allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Not recorded.
    Unknown,
    /// Recorded, in 4 bytes for each object.
    Noted,
}

/// Events that each CPU counts, named as in the kernel's SLUB_STATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object came from the CPU's free list.
    AllocFastpath,
    /// That list was empty.
    AllocSlowpath,
    /// It was refilled with objects that other CPUs freed into the CPU's slab.
    AllocRefill,
    /// It was refilled from the CPU's partial slabs.
    CpuPartialAlloc,
    /// It was refilled from a node's list.
    AllocFromPartial,
    /// A slab moved from a node's list to a CPU's partial list.
    CpuPartialNode,
    /// A slab was allocated.
    AllocSlab,
    /// An object was freed to the CPU's free list.
    FreeFastpath,
    /// An object was freed to another slab.
    FreeSlowpath,
    /// That slab was frozen.
    FreeFrozen,
    /// That slab was full, and this CPU took it.
    CpuPartialFree,
    /// A CPU's partial list was moved to the nodes.
    CpuPartialDrain,
    /// A slab was freed.
    FreeSlab,
}

/// The number of events.
pub const EVENTS: usize = 13;

impl Event {
    /// All events, in the order of their values.
    pub const ALL: [Event; EVENTS] = [
        Event::AllocFastpath,
        Event::AllocSlowpath,
        Event::AllocRefill,
        Event::CpuPartialAlloc,
        Event::AllocFromPartial,
        Event::CpuPartialNode,
        Event::AllocSlab,
        Event::FreeFastpath,
        Event::FreeSlowpath,
        Event::FreeFrozen,
        Event::CpuPartialFree,
        Event::CpuPartialDrain,
        Event::FreeSlab,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Event::AllocFastpath => "alloc_fastpath",
            Event::AllocSlowpath => "alloc_slowpath",
            Event::AllocRefill => "alloc_refill",
            Event::CpuPartialAlloc => "cpu_partial_alloc",
            Event::AllocFromPartial => "alloc_from_partial",
            Event::CpuPartialNode => "cpu_partial_node",
            Event::AllocSlab => "alloc_slab",
            Event::FreeFastpath => "free_fastpath",
            Event::FreeSlowpath => "free_slowpath",
            Event::FreeFrozen => "free_frozen",
            Event::CpuPartialFree => "cpu_partial_free",
            Event::CpuPartialDrain => "cpu_partial_drain",
            Event::FreeSlab => "free_slab",
        }
    }
}

/// The slabs of a cache that a CPU has.
#[derive(Default)]
pub(super) struct CpuSlabs {
    /// The slab it allocates from, frozen.
    pub(super) slab: Option<u32>,
    /// The first object of the CPU's free list, which has objects of that slab.
    pub(super) head: Option<u16>,
    /// Frozen slabs with free objects, the newest last.
    pub(super) partial: Vec<u32>,
    /// Unused records.
    pub(super) spare: Vec<u32>,
}

/// A cache.
pub(super) struct Cache<P: Platform> {
    pub(super) id: CacheId,
    pub(super) spec: CacheSpec,
    pub(super) sizing: Sizing,
    pub(super) cpus: Vec<P::Lock<CpuSlabs>>,
    pub(super) nodes: Vec<Node<P>>,
    /// Arrays of free objects in front of slabs, if they are on.
    pub(super) sheaves: Option<Sheaves<P>>,
    spare: P::Lock<Vec<u32>>,
    events: Vec<[AtomicU64; EVENTS]>,
    /// Refills from the list of a node that is not the CPU's own.
    #[cfg(feature = "history")]
    pub(super) from_other: AtomicU64,
}

/// Records moved between a CPU and the cache at a time.
const RECORDS: usize = 16;

impl<P: Platform> Cache<P> {
    pub(super) fn new(
        platform: &P,
        id: CacheId,
        spec: CacheSpec,
        sizing: Sizing,
        nodes: usize,
        sheaves: Option<Sheaves<P>>,
    ) -> Cache<P> {
        let cpus = platform.cpus();
        let cpu = |_| platform.new_lock(lock_class::SLAB_CPU, CpuSlabs::default());
        Cache {
            id,
            spec,
            sizing,
            cpus: (0..cpus).map(cpu).collect(),
            nodes: (0..nodes).map(|_| Node::new(platform)).collect(),
            sheaves,
            spare: platform.new_lock(lock_class::SLAB_RECORDS, Vec::new()),
            events: (0..cpus).map(|_| [const { AtomicU64::new(0) }; EVENTS]).collect(),
            #[cfg(feature = "history")]
            from_other: AtomicU64::new(0),
        }
    }

    pub(super) fn count(&self, cpu: CpuId, event: Event, times: usize) {
        self.events[usize::from(cpu.0)][event as usize].fetch_add(times as u64, Relaxed);
    }

    /// The count of an event, over all CPUs.
    pub(super) fn counted(&self, event: Event) -> u64 {
        self.events.iter().map(|cpu| cpu[event as usize].load(Relaxed)).sum()
    }

    /// Takes an unused record, or creates one; `None` if there are 16 Mi already.
    pub(super) fn take_record(&self, mine: &mut CpuSlabs, table: &Table<P>) -> Option<u32> {
        if mine.spare.is_empty() {
            let mut spare = self.spare.lock();
            let keep = spare.len().saturating_sub(RECORDS);
            mine.spare.extend(spare.drain(keep..));
            drop(spare);
        }
        mine.spare.pop().or_else(|| {
            let objects = self.sizing.objects;
            let callers = match self.spec.callers {
                Callers::Unknown => 0,
                Callers::Noted => objects,
            };
            let marks = self.spec.marks;
            table.add(Slab::new(self.id, self.sizing.size, objects, callers, marks))
        })
    }

    /// Returns a record.
    pub(super) fn put_record(&self, mine: &mut CpuSlabs, id: u32) {
        mine.spare.push(id);
        if mine.spare.len() > 2 * RECORDS {
            self.spare.lock().extend(mine.spare.drain(..RECORDS));
        }
    }
}

/// Pages of ended slabs, to be freed when no lock is held.
#[must_use]
#[derive(Default)]
pub(super) struct Doomed(pub(super) Vec<(Pages, CacheId)>);
