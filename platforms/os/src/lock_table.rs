//! Statistics of a platform's locks, by class and phase.
//!
//! ```text
//! OsLock ── 1 acquisition in 31, or one that waited ──> Note ── after the release ──> totals
//! ```
//! One acquisition in 31 is a sample: it counts as 31 acquisitions with its hold time. 31 is prime,
//! so that a lock which phases take in turn, or in another short pattern, is not always sampled in
//! the same phase. The first sample of each lock is at a different count, so that thousands of
//! locks with a few acquisitions each add up correctly. Waits are recorded exactly: a waiter has
//! the time to read the clock.
//!
//! Nothing here allocates, blocks or changes errno, so that locks work inside malloc and in signal
//! handlers. Locking: none. The totals are atomics, and each CPU has its own, so that they are not
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
    /// Locks created so far.
    locks: AtomicU32,
    /// The time that reading the clock adds to a hold time.
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

/// The minimum time between two readings of the clock.
fn clock_cost() -> Nanos {
    let gap = |_| {
        let before = monotonic();
        monotonic().since(before)
    };
    (0..16).map(gap).min().unwrap_or_default()
}

impl LockTable {
    /// One acquisition in this many is a sample.
    pub(crate) const SAMPLE_EVERY: u32 = 31;

    /// A table without locks.
    pub fn new(topology: Topology) -> LockTable {
        let cpus = (0..topology.count()).map(|_| CpuTotals::default()).collect();
        let (locks, clock_cost) = (AtomicU32::new(0), clock_cost());
        LockTable(Arc::new(Table { topology, cpus, locks, clock_cost }))
    }

    /// The number of acquisitions until the first sample of a new lock.
    pub(crate) fn first_sample(&self) -> u32 {
        1 + self.0.locks.fetch_add(1, Relaxed) % LockTable::SAMPLE_EVERY
    }

    /// The record of an acquisition by this thread, which holds the lock now: the time that it
    /// waited, if it did, and the time at which it got the lock, if this is a sample.
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

    /// The sums so far. At first the samples may stand for fewer acquisitions than there were
    /// waits, which are counted exactly; then the waits are the number of acquisitions.
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

/// The record of an acquisition. Its drop, after the release, enters it in the totals.
pub(crate) struct Note<'a> {
    totals: &'a Totals,
    waited: Option<Nanos>,
    hold: Hold,
    clock_cost: Nanos,
}

enum Hold {
    /// Not a sample.
    Untimed,
    /// A sample that holds the lock since then.
    Since(Nanos),
    /// A sample, and its hold time.
    Took(Nanos),
}

impl Note<'_> {
    /// Takes the hold time, right before the release.
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
