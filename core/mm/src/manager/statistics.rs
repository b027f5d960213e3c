//! Statistics of a manager. Values are sums over CPUs, read one after the other while the CPUs go
//! on counting, so they do not show a single instant. Locking: none.

use super::Manager;
use crate::alloc;
use crate::space::Space;
use crate::stats::{Counter, Shortage, Snapshot as Statistics};
use crate::swap::SwapUse;
use crate::zone::{Watermarks, Zone};
use highwater_platform::{LockStatistics, Platform};
use highwater_units::Nanos;

impl<P: Platform> Manager<P> {
    /// Returns how many more pages can be stored: frames that are free or could be borrowed, and
    /// free slots of devices with room.
    pub fn capacity_left(&self) -> u64 {
        self.machine.capacity_left()
    }

    /// Returns whether memory and swap can hold `pages` more, for a front end that refuses larger
    /// requests; counts a refusal.
    pub fn can_commit(&self, pages: u64) -> bool {
        let can = pages <= self.capacity_left();
        self.count(Counter::CommitRefused, u64::from(!can));
        can
    }

    /// Returns the number of frames, without those of the balloon.
    pub fn frames(&self) -> u64 {
        self.machine.present() as u64
    }

    /// Takes up to `frames` free frames out of use, for other managers that share memory with this
    /// one; wakes kswapd, which frees more for the next call. Returns how many.
    pub fn inflate(&self, frames: u32) -> u32 {
        alloc::inflate(&self.machine, frames)
    }

    /// Makes up to `frames` frames usable again that [`Manager::inflate`] took; returns how many.
    pub fn deflate(&self, frames: u32) -> u32 {
        alloc::deflate(&self.machine, frames)
    }

    /// Returns the free frames above the high watermark, which kswapd need not replace if they are
    /// taken.
    pub fn spare(&self) -> u32 {
        let of = |zone: &Zone<P>| zone.free_frames().saturating_sub(zone.marks().high);
        self.machine.nodes.iter().map(|node| of(&node.zone)).sum()
    }

    /// Returns the time so far in which threads stalled for lack of memory, summed over CPUs.
    pub fn stalled(&self) -> Nanos {
        self.machine.stats.stalled(self.machine.platform.now()).any
    }

    /// Returns the value of a counter.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.machine.stats.get(counter)
    }

    /// Adds `count` to a counter that a front end maintains.
    pub fn count(&self, counter: Counter, count: u64) {
        self.machine.count(counter, count);
    }

    /// Returns the swap devices that this manager writes to, with their numbers (/proc/swaps).
    /// Those that were removed, or not added yet, have no pages.
    pub fn swaps(&self) -> Vec<(u8, SwapUse)> {
        self.machine.swap.swaps().collect()
    }

    /// Returns the state of memory at the last failed allocation; `None` if none has failed.
    pub fn shortage(&self) -> Option<Shortage> {
        self.machine.stats.shortage()
    }

    /// Returns the costs of the manager's locks so far, by class and phase.
    pub fn lock_statistics(&self) -> LockStatistics {
        self.platform().lock_statistics()
    }

    /// Returns all counters and latency histograms. Updates pressure first, if that is due.
    pub fn statistics(&self) -> Statistics {
        let mut now = self.machine.stats.snapshot();
        let (used, all) = self.machine.swap.usage();
        let zones = || self.machine.nodes.iter().map(|node| &node.zone);
        let mark =
            |of: fn(Watermarks) -> u32| zones().map(|zone| u64::from(of(zone.marks()))).sum();
        let gauges = [
            (Counter::Free, zones().map(|zone| u64::from(zone.free_frames())).sum()),
            (Counter::WatermarkMin, mark(|marks| marks.min)),
            (Counter::WatermarkLow, mark(|marks| marks.low)),
            (Counter::WatermarkHigh, mark(|marks| marks.high)),
            (Counter::Resident, u64::from(self.machine.resident())),
            (Counter::ResidentPeak, u64::from(self.machine.resident_peak())),
            (Counter::Frames, self.machine.present() as u64),
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
