//! will-it-scale's mmap1: each task maps 128 MiB and unmaps it again, and touches nothing.
//!
//! ```text
//! mmap:   a vm_area_struct, its lock; 7 maple nodes asked for, one used, the leaf before deferred
//! munmap: one node more, the leaf before deferred; area and lock deferred
//! tick (1 ms, all CPUs at once): what was deferred two grace periods ago is freed, in passes
//! ```
//! This follows Linux 6.5: a store into the tree makes a new leaf, since others may read the old
//! one (RCU); mapping asks for the nodes of the worst case, three per level and one more, and gives
//! back those that it does not need. Each task has its own process, and so its own tree: only the
//! allocator is shared.

use super::{Shift, measure};
use crate::workload::outcome::Outcome;
use crate::workload::tally::Tally;
use crate::workload::ticks::Stopwatch;
use crate::workload::world::World;
use highwater_mm::slab::{
    CacheError, CacheId, CacheSpec, Callers, Marks, Object, SlabPages, Slabs,
};
use highwater_platform::Cpu;
use highwater_units::{CpuId, Nanos, NodeId, Order};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of a vm_area_struct.
const AREA: u32 = 184;
/// Of the lock of one.
const AREA_LOCK: u32 = 40;
/// Of a node of a maple tree.
const NODE: u32 = 256;
/// Nodes asked for by a store into a tree of two levels: 3 a level, and one.
const NODES_ASKED: usize = 7;
/// The time between two checks for expired objects (HZ = 1000).
const TICK: u64 = 1_000_000;

/// Passes of the softirq at a tick (MAX_SOFTIRQ_RESTART). ksoftirqd does the rest.
const PASSES: usize = 10;
/// Objects freed by a pass, at least (blimit).
const PASS_OBJECTS_MIN: usize = 10;
/// A pass frees one in this many of the CPU's deferred objects (rcu_divisor).
const PASS_SHARE: usize = 128;

/// What an operation takes beside its objects: the document leaves 3.05 us beside the lock, of
/// which objects take the rest.
pub const WORK: Nanos = Nanos(2200);

/// How it is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Tasks; the `n`th runs on the `n`th core.
    pub threads: usize,
    /// What an operation takes beside its objects.
    pub work: Nanos,
    /// From one end of a grace period to the next.
    pub grace: Nanos,
    /// A switch between a task and ksoftirqd.
    pub switch: Nanos,
    /// Before it is measured.
    pub warm_up: Duration,
    /// How long it is measured.
    pub time: Duration,
}

/// Whether passes leave some of a CPU's expired objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expired {
    /// Nothing.
    Freed,
    /// Perhaps some.
    Left,
}

/// The caches, and the thread that ends grace periods.
struct Kernel<'a, S: SlabPages, W> {
    slabs: &'a Slabs<S>,
    world: &'a W,
    config: Config,
    nodes: CacheId,
    areas: CacheId,
    locks: CacheId,
    /// Grace periods that have ended.
    ended: AtomicU64,
}

/// Runs it.
///
/// # Errors
/// There are too many caches.
///
/// # Panics
/// If memory is short.
pub fn run<S: SlabPages, W: World>(
    slabs: &Slabs<S>,
    world: &W,
    config: &Config,
) -> Result<Outcome, CacheError> {
    let cache = |name: &str, size| {
        let (callers, marks) = (Callers::Unknown, Marks::Bits);
        let (name, order) = (name.into(), Order(0));
        slabs.create(CacheSpec { name, size, callers, marks, order })
    };
    let kernel = Kernel {
        slabs,
        world,
        config: *config,
        nodes: cache("maple_node", NODE)?,
        areas: cache("vm_area_struct", AREA)?,
        locks: cache("vma_lock", AREA_LOCK)?,
        ended: AtomicU64::new(0),
    };
    let times = (config.warm_up, config.time);
    let home = |thread: usize| Some(home(slabs.platform(), thread));
    Ok(measure((slabs, world), config.threads, times, &home, |_, shift, watch| {
        kernel.task(shift, watch)
    }))
}

/// Task `n` is bound to core `n`, socket by socket; more tasks than cores begin again.
fn home<P: Cpu>(platform: &P, thread: usize) -> NodeId {
    let cpus = platform.cpus();
    platform.node_of(CpuId((thread % cpus) as u16))
}

impl<S: SlabPages, W: World> Kernel<'_, S, W> {
    fn task(&self, shift: Shift, watch: &Stopwatch<'_, W>) -> Tally {
        let mut tally = Tally::new();
        let mut leaf = self.alloc(self.nodes);
        let mut tick = self.world.now().0 / TICK;
        loop {
            let began = watch.ticks();
            leaf = self.map_and_unmap(leaf);
            let now = self.world.now();
            if now.0 / TICK > tick {
                tick = now.0 / TICK;
                self.tick(now);
            }
            if now >= shift.end {
                return tally;
            }
            if now >= shift.warm {
                tally.stores += 1;
                tally.latency.saturating_record(watch.ticks().saturating_sub(began));
            }
        }
    }

    /// One operation; from the tree's leaf to the next.
    fn map_and_unmap(&self, leaf: Object) -> Object {
        self.world.work(Nanos(self.config.work.0 / 2));
        let (area, lock) = (self.alloc(self.areas), self.alloc(self.locks));
        let mut asked = Vec::with_capacity(NODES_ASKED);
        let had = self.slabs.alloc_bulk(self.nodes, NODES_ASKED, |node| asked.push(node));
        assert_eq!(had, NODES_ASKED, "memory for nodes");
        let mapped = asked.pop().expect("seven");
        self.slabs.free_bulk(&asked).expect("they were just allocated");
        self.defer(leaf);
        self.world.work(Nanos(self.config.work.0 - self.config.work.0 / 2));
        let unmapped = self.alloc(self.nodes);
        self.defer(mapped);
        self.defer(area);
        self.defer(lock);
        unmapped
    }

    fn alloc(&self, cache: CacheId) -> Object {
        self.slabs.alloc(cache).expect("memory for an object")
    }

    fn defer(&self, object: Object) {
        self.slabs.free_deferred(object).expect("it is in use");
    }

    /// The first CPU after a grace period marks its end; each CPU frees its expired objects.
    fn tick(&self, now: Nanos) {
        let due = now.0 / self.config.grace.0;
        let ended = self.ended.load(Relaxed);
        if due > ended && self.ended.compare_exchange(ended, due, Relaxed, Relaxed).is_ok() {
            self.slabs.end_grace_period();
        }
        if self.passes(PASSES) == Expired::Left {
            // It has slept, so it preempts the task, and runs on for up to 12 ms (sched_slice).
            self.world.work(self.config.switch);
            while self.passes(PASSES) == Expired::Left {}
            self.world.work(self.config.switch);
        }
    }

    /// Frees expired objects in up to `count` passes (rcu_do_batch).
    fn passes(&self, count: usize) -> Expired {
        for _ in 0..count {
            let most = (self.slabs.deferred_here() / PASS_SHARE).max(PASS_OBJECTS_MIN);
            if self.slabs.free_expired(most) < most {
                return Expired::Freed;
            }
        }
        Expired::Left
    }
}
