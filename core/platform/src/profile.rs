//! What locks cost: by class, and by what the thread was doing.
//!
//! ```text
//! LockStatistics[class][phase] = { acquisitions, contended, wait, hold }
//! ```
//! The lock tables of the seeds ("7.91% _raw_spin_lock.swapcache_free") are sums of these.

use crate::LockClass;
use highwater_units::Nanos;

/// What a thread is doing for the manager; the innermost counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The program's own work.
    Program,
    /// A fault, but for what follows.
    Fault,
    /// Getting and giving back frames.
    Alloc,
    /// Scanning lists, deciding, unmapping: kswapd or direct reclaim.
    Reclaim,
    /// Taking slots and writing pages to them.
    SwapOut,
    /// Reading pages, and letting go of their slots.
    SwapIn,
    /// Dropping and moving ranges, copying spaces.
    Range,
    /// Moving pages so that free frames come together.
    Compact,
}

impl Phase {
    /// All of them, in the order of their values.
    pub const ALL: [Phase; 8] = [
        Phase::Program,
        Phase::Fault,
        Phase::Alloc,
        Phase::Reclaim,
        Phase::SwapOut,
        Phase::SwapIn,
        Phase::Range,
        Phase::Compact,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Program => "program",
            Phase::Fault => "fault",
            Phase::Alloc => "alloc",
            Phase::Reclaim => "reclaim",
            Phase::SwapOut => "swap_out",
            Phase::SwapIn => "swap_in",
            Phase::Range => "range",
            Phase::Compact => "compact",
        }
    }
}

/// What became of one lock, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockRecord {
    /// Times it was taken.
    pub acquisitions: u64,
    /// How many of these had to wait.
    pub contended: u64,
    /// Time they waited.
    pub wait: Nanos,
    /// Time it was held.
    pub hold: Nanos,
}

impl LockRecord {
    fn combine(self, other: LockRecord, with: impl Fn(u64, u64) -> u64) -> LockRecord {
        LockRecord {
            acquisitions: with(self.acquisitions, other.acquisitions),
            contended: with(self.contended, other.contended),
            wait: Nanos(with(self.wait.0, other.wait.0)),
            hold: Nanos(with(self.hold.0, other.hold.0)),
        }
    }
}

/// Lock records by class and phase. Exact on the simulator; sampled where counting would cost more
/// than the locks (there, numbers below some dozens a lock say little).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockStatistics([[LockRecord; Phase::ALL.len()]; LockClass::ALL.len()]);

impl LockStatistics {
    /// The record of a class in a phase.
    pub fn get(&self, class: LockClass, phase: Phase) -> &LockRecord {
        &self.0[class as usize][phase as usize]
    }

    /// The same, to add to.
    pub fn get_mut(&mut self, class: LockClass, phase: Phase) -> &mut LockRecord {
        &mut self.0[class as usize][phase as usize]
    }

    /// The sum over all phases.
    pub fn class(&self, class: LockClass) -> LockRecord {
        let all = self.0[class as usize].iter();
        all.fold(LockRecord::default(), |sum, record| sum.combine(*record, |a, b| a + b))
    }

    /// What was gained since `earlier`, statistics of the same locks.
    pub fn since(&self, earlier: &LockStatistics) -> LockStatistics {
        let mut gained = self.clone();
        for (row, before) in gained.0.iter_mut().zip(&earlier.0) {
            for (record, before) in row.iter_mut().zip(before) {
                *record = record.combine(*before, u64::saturating_sub);
            }
        }
        gained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_indices() {
        assert!(Phase::ALL.iter().enumerate().all(|(index, phase)| *phase as usize == index));
        assert!(LockClass::ALL.iter().enumerate().all(|(index, class)| *class as usize == index));
    }

    #[test]
    fn classes_sum_over_phases_and_differences_over_time() {
        let mut early = LockStatistics::default();
        early.get_mut(LockClass::Zone, Phase::Alloc).acquisitions = 3;
        let mut late = early.clone();
        late.get_mut(LockClass::Zone, Phase::Alloc).acquisitions += 4;
        late.get_mut(LockClass::Zone, Phase::Reclaim).wait = Nanos(7);
        let gained = late.since(&early).class(LockClass::Zone);
        assert_eq!((gained.acquisitions, gained.wait), (4, Nanos(7)));
    }
}
