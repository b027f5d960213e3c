//! A cache: objects of one size, and what each CPU and each node has of them.
//!
//! ```text
//! Cache -- Sizing
//!       |- CPU: Lock<CpuSlabs>   the slab it allocates from, partial ones     class SlabCpu
//!       |- Node                  partial slabs                               class SlabNode
//!       |- Sheaves               objects in front of slabs                   sheaf.rs
//!       \- spare: Lock<..>       records that no slab has                    class SlabRecords
//! ```
//! Locking: a CPU's lock, then a node's or that of the spare records. A CPU number is a hint: what
//! it names has a lock, which its own threads take without waiting for others.

use super::record::{Pages, Slab};
use super::sheaf::Sheaves;
use super::sizing::Sizing;
use super::table::Table;
use super::used::Marks;
use crate::lock_class;
use crate::slab::node::Node;
use highwater_platform::{Lock, Platform};
use highwater_units::{CpuId, Order};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A cache of a [`super::Slabs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheId(pub(super) u16);

impl CacheId {
    /// How many caches were made before it.
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// What a cache is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Its name in reports.
    pub name: String,
    /// Bytes of an object, 8 to 64 KiB.
    pub size: u32,
    /// Whether it is noted who asked for each object.
    pub callers: Callers,
    /// How it is noted that objects are in use.
    pub marks: Marks,
    /// Slabs have this order at least. Larger slabs have fewer records.
    pub order: Order,
}

/// Whether it is noted who asked for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// No.
    Unknown,
    /// Yes: 4 bytes for each object.
    Noted,
}

/// How often something happened, by CPU: names are those of the kernel's SLUB_STATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object came from the CPU's own list.
    AllocFastpath,
    /// That list was empty.
    AllocSlowpath,
    /// It was filled with what others freed into the CPU's slab.
    AllocRefill,
    /// It was filled from the CPU's partial slabs.
    CpuPartialAlloc,
    /// It was filled from a node's list.
    AllocFromPartial,
    /// Slabs that came to a CPU's partial list from a node's.
    CpuPartialNode,
    /// A new slab was made.
    AllocSlab,
    /// An object went to the CPU's own list.
    FreeFastpath,
    /// It went to another slab.
    FreeSlowpath,
    /// That one was a CPU's.
    FreeFrozen,
    /// That one was full, and became this CPU's.
    CpuPartialFree,
    /// A CPU's partial list went to the nodes.
    CpuPartialDrain,
    /// A slab was given back.
    FreeSlab,
}

/// Number of events.
pub const EVENTS: usize = 13;

impl Event {
    /// All of them, in the order of their values.
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

/// What a CPU has of a cache.
#[derive(Default)]
pub(super) struct CpuSlabs {
    /// The slab it allocates from, frozen.
    pub(super) slab: Option<u32>,
    /// The first of its objects that are this CPU's alone.
    pub(super) head: Option<u16>,
    /// Frozen slabs with free objects, the newest last.
    pub(super) partial: Vec<u32>,
    /// Records at hand.
    pub(super) spare: Vec<u32>,
}

/// A cache.
pub(super) struct Cache<P: Platform> {
    pub(super) id: CacheId,
    pub(super) spec: CacheSpec,
    pub(super) sizing: Sizing,
    pub(super) cpus: Vec<P::Lock<CpuSlabs>>,
    pub(super) nodes: Vec<Node<P>>,
    /// Arrays of objects in front of its slabs, where it has them.
    pub(super) sheaves: Option<Sheaves<P>>,
    spare: P::Lock<Vec<u32>>,
    events: Vec<[AtomicU64; EVENTS]>,
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
        }
    }

    pub(super) fn count(&self, cpu: CpuId, event: Event, times: usize) {
        self.events[usize::from(cpu.0)][event as usize].fetch_add(times as u64, Relaxed);
    }

    /// How often something happened, on all CPUs.
    pub(super) fn counted(&self, event: Event) -> u64 {
        self.events.iter().map(|cpu| cpu[event as usize].load(Relaxed)).sum()
    }

    /// A record that no slab has; `None`: there are no more.
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

    /// Gives one back.
    pub(super) fn put_record(&self, mine: &mut CpuSlabs, id: u32) {
        mine.spare.push(id);
        if mine.spare.len() > 2 * RECORDS {
            self.spare.lock().extend(mine.spare.drain(..RECORDS));
        }
    }
}

/// Runs of pages on their way back to their source, when no lock is held any more.
#[must_use]
#[derive(Default)]
pub(super) struct Doomed(pub(super) Vec<(Pages, CacheId)>);
