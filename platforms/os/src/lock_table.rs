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
//! keeps errno from its owner, so locks work inside malloc and in signal handlers. No lock: the
//! totals are atomics, on a cache line for each class and phase.

use crate::clock::monotonic;
use crate::phase;
use highwater_platform::{LockClass, LockRecord, LockStatistics, Phase};
use highwater_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The totals of a platform; clones share them.
#[derive(Clone)]
pub struct LockTable(Arc<Table>);

struct Table {
    totals: [[Totals; Phase::ALL.len()]; LockClass::ALL.len()],
    /// Locks made so far.
    locks: AtomicU32,
    /// What looking at the clock adds to a hold time.
    clock_cost: Nanos,
}

#[derive(Default)]
#[repr(align(64))]
struct Totals {
    acquisitions: AtomicU64,
    contended: AtomicU64,
    wait: AtomicU64,
    hold: AtomicU64,
}

impl Totals {
    /// Contended acquisitions are counted exactly, all of them by samples: early on the samples
    /// may have seen fewer.
    fn record(&self) -> LockRecord {
        let contended = self.contended.load(Relaxed);
        LockRecord {
            acquisitions: self.acquisitions.load(Relaxed).max(contended),
            contended,
            wait: Nanos(self.wait.load(Relaxed)),
            hold: Nanos(self.hold.load(Relaxed)),
        }
    }
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable(Arc::new(Table {
            totals: Default::default(),
            locks: AtomicU32::new(0),
            clock_cost: clock_cost(),
        }))
    }
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

    /// How many acquisitions away the first sample of a new lock is.
    pub(crate) fn first_sample(&self) -> u32 {
        1 + self.0.locks.fetch_add(1, Relaxed) % LockTable::SAMPLE_EVERY
    }

    /// What to enter of an acquisition by this thread, which has the lock now: how long it waited
    /// for it, if at all, and since when it has had it, if it is a sample.
    pub(crate) fn note(
        &self,
        class: LockClass,
        waited: Option<Nanos>,
        sampled: Option<Nanos>,
    ) -> Note<'_> {
        Note {
            totals: &self.0.totals[class as usize][phase::current() as usize],
            waited,
            hold: sampled.map_or(Hold::Untimed, Hold::Since),
            clock_cost: self.0.clock_cost,
        }
    }

    /// The sums so far.
    pub fn statistics(&self) -> LockStatistics {
        let mut statistics = LockStatistics::default();
        for class in LockClass::ALL {
            for phase in Phase::ALL {
                let totals = &self.0.totals[class as usize][phase as usize];
                *statistics.get_mut(class, phase) = totals.record();
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
