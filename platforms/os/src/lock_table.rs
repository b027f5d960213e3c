//! What the locks of a platform cost, summed by class and phase.
//!
//! ```text
//! OsLock ── 1 acquisition in 31, or one that waited ──> Note ── when the lock is free ──> totals
//! ```
//! A sampled acquisition stands for 31: it is entered as so many, and its hold time that many
//! times. 31 is a prime, so that locks taken in turn by two phases, or in any other short rhythm,
//! are not always sampled on the same beat; and every lock of a table starts elsewhere in its
//! first 31, so that thousands of locks taken a few times each are counted right together. Waits
//! are entered exactly: who waits has time to look at the clock. Nothing here allocates, blocks or
//! changes errno, so that locks work inside malloc and in signal handlers. No lock: the totals are
//! atomics, and each CPU has its own, so that statistics of many per-CPU locks are not themselves
//! a cache line that all CPUs share.

use crate::phase;
use crate::time::monotonic;
use crate::topology::Topology;
use highwater_platform::{LockClass, LockStatistics, Phase};
use highwater_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The totals of a platform; clones share them.
#[derive(Clone)]
pub struct LockTable(Arc<Table>);

struct Table {
    topology: Topology,
    cpus: Vec<CpuTotals>,
    /// Locks made so far.
    locks: AtomicU32,
    /// What looking at the clock adds to a hold time.
    clock_cost: Nanos,
}

#[derive(Default)]
#[repr(align(128))]
struct CpuTotals([[Totals; Phase::MAX]; LockClass::MAX]);

#[derive(Default)]
struct Totals {
    acquisitions: AtomicU64,
    contended: AtomicU64,
    wait: AtomicU64,
    hold: AtomicU64,
}

/// The least time between two looks at the clock.
fn clock_cost() -> Nanos {
    let gap = |_| {
        let before = monotonic();
        monotonic().since(before)
    };
    (0..16).map(gap).min().unwrap_or_default()
}

impl LockTable {
    /// How many acquisitions a sampled one stands for.
    pub(crate) const SAMPLE_EVERY: u32 = 31;

    /// A table of no locks yet.
    pub fn new(topology: Topology) -> LockTable {
        let cpus = (0..topology.count()).map(|_| CpuTotals::default()).collect();
        let (locks, clock_cost) = (AtomicU32::new(0), clock_cost());
        LockTable(Arc::new(Table { topology, cpus, locks, clock_cost }))
    }

    /// How many acquisitions away the first sample of a new lock is.
    pub(crate) fn first_sample(&self) -> u32 {
        1 + self.0.locks.fetch_add(1, Relaxed) % LockTable::SAMPLE_EVERY
    }

    /// What to enter of an acquisition by this thread, which has the lock now: how long it waited
    /// for it, if at all, and since when it has had it, if it is a sample.
    pub(crate) fn note(
        &self,
        class: u8,
        waited: Option<Nanos>,
        sampled: Option<Nanos>,
    ) -> Note<'_> {
        let cpu = &self.0.cpus[usize::from(self.0.topology.current().0)];
        Note {
            totals: &cpu.0[usize::from(class)][usize::from(phase::current().id())],
            waited,
            hold: sampled.map_or(Hold::Untimed, Hold::Since),
            clock_cost: self.0.clock_cost,
        }
    }

    /// The sums so far. Early on the samples may have seen fewer acquisitions than waited, all of
    /// which are counted: then there were as many.
    pub fn statistics(&self) -> LockStatistics {
        let mut statistics = LockStatistics::default();
        for (class, row) in statistics.table_mut().iter_mut().enumerate() {
            for (phase, sum) in row.iter_mut().enumerate() {
                for cpu in &self.0.cpus {
                    let totals = &cpu.0[class][phase];
                    sum.acquisitions += totals.acquisitions.load(Relaxed);
                    sum.contended += totals.contended.load(Relaxed);
                    sum.wait.0 += totals.wait.load(Relaxed);
                    sum.hold.0 += totals.hold.load(Relaxed);
                }
                sum.acquisitions = sum.acquisitions.max(sum.contended);
            }
        }
        statistics
    }
}

/// An acquisition to enter in the totals, as its drop does: when the lock is free again.
pub(crate) struct Note<'a> {
    totals: &'a Totals,
    waited: Option<Nanos>,
    hold: Hold,
    clock_cost: Nanos,
}

enum Hold {
    /// Not a sample.
    Untimed,
    /// A sample that has the lock since then.
    Since(Nanos),
    /// A sample that had it so long.
    Took(Nanos),
}

impl Note<'_> {
    /// The lock is about to be free.
    pub(crate) fn release(&mut self) {
        if let Hold::Since(taken) = self.hold {
            self.hold = Hold::Took(monotonic().since(taken));
        }
    }
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.waited {
            self.totals.contended.fetch_add(1, Relaxed);
            self.totals.wait.fetch_add(wait.0, Relaxed);
        }
        if let Hold::Took(time) = self.hold {
            let many = u64::from(LockTable::SAMPLE_EVERY);
            let time = time.since(self.clock_cost).0;
            self.totals.acquisitions.fetch_add(many, Relaxed);
            self.totals.hold.fetch_add(time * many, Relaxed);
        }
    }
}
