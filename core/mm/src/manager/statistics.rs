//! What a manager says of itself: sums of parts that CPUs keep, as of about now. Locking: none.

use super::Manager;
use crate::space::Space;
use crate::stats::{Counter, Shortage, Snapshot as Statistics};
use highwater_platform::{LockStatistics, Platform};

impl<P: Platform> Manager<P> {
    /// Frames that are free, and slots that pages may go to: what could still be given out, in
    /// pages.
    pub fn capacity_left(&self) -> u64 {
        let frames = self.machine.frames.len() as u64 - u64::from(self.machine.resident());
        frames + self.machine.swap.room()
    }

    /// Number of frames.
    pub fn frames(&self) -> u64 {
        self.machine.frames.len() as u64
    }

    /// Adds to a counter that the caller keeps.
    pub fn count(&self, counter: Counter, count: u64) {
        self.machine.count(counter, count);
    }

    /// What the last failed allocation found, if one has failed.
    pub fn shortage(&self) -> Option<Shortage> {
        self.machine.stats.shortage()
    }

    /// What the manager's locks have cost so far.
    pub fn lock_statistics(&self) -> LockStatistics {
        self.platform().lock_statistics()
    }

    /// All statistics, as of about now.
    pub fn statistics(&self) -> Statistics {
        let mut now = self.machine.stats.snapshot();
        let (used, all) = self.machine.swap.usage();
        let gauges = [
            (Counter::Resident, u64::from(self.machine.resident())),
            (Counter::ResidentPeak, u64::from(self.machine.resident_peak())),
            (Counter::Frames, self.machine.frames.len() as u64),
            (Counter::SlotsUsed, used),
            (Counter::SlotsTotal, all),
            (Counter::KswapdPeak, self.kswapd.peak() as u64),
            (Counter::Dirty, self.machine.spaces().map(Space::dirty).sum()),
            (Counter::Processes, 1),
        ];
        let [some, full] = self.machine.pressures();
        let pressures = [
            (Counter::PsiSome10, some.averages[0]),
            (Counter::PsiSome60, some.averages[1]),
            (Counter::PsiSome300, some.averages[2]),
            (Counter::PsiSomeMicros, some.total.0 / 1000),
            (Counter::PsiFull10, full.averages[0]),
            (Counter::PsiFull60, full.averages[1]),
            (Counter::PsiFull300, full.averages[2]),
            (Counter::PsiFullMicros, full.total.0 / 1000),
        ];
        gauges
            .into_iter()
            .chain(pressures)
            .for_each(|(gauge, value)| now.counters[gauge as usize] = value);
        now
    }
}
