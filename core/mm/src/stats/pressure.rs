//! Memory pressure: the share of time in which threads stall for lack of memory, averaged over 10,
//! 60 and 300 seconds, as in the kernel's pressure stall information (PSI, kernel/sched/psi.c).
//!
//! ```text
//! StallClock, per CPU   runs while at least one thread stalls that began its stall on the CPU:
//!                       in direct reclaim, throttled before it, or in a fault that reads a device
//! every 2 s   Reading: stall time, CPU time of reclaim in it, CPUs, their idle time
//!               -> shares of the time since the last Reading -> Averages -> Pressure
//! ```
//! A CPU is in use if it is busy, or idle only because a thread stalls. Pressure has two kinds:
//!
//! - some: the share of the time of CPUs in use in which a thread stalled;
//! - full: the share in which, besides, no thread of the program ran there.
//!
//! The manager does not know which CPU a stalled thread would have used, or what ran there
//! meanwhile. So it attributes idle time to stalls first. CPU time of direct reclaim counts as
//! full, because the program does not progress in it.
//!
//! Locking: a clock consists of atomic words that threads of one CPU use. The caller locks the
//! averages.

use highwater_units::Nanos;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Time between two updates of the averages (PSI_FREQ).
pub(crate) const UPDATE: Nanos = Nanos(2_000_000_000);

/// 1 in the fixed-point format of the averages (FIXED_1).
const ONE: u64 = 1 << 11;
/// The weight of the old average at an update: exp(-2 s / 10, 60, 300 s).
const DECAYS: [u64; 3] = [1677, 1981, 2034];

/// Low bits of a clock's word: the number of stalled threads. The others: when the first stalled.
const COUNT_BITS: u32 = 12;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// log2 of the unit of that time in nanoseconds.
const UNIT_BITS: u32 = 4;

/// The time in which at least one thread was stalled on a CPU.
pub(super) struct StallClock {
    word: AtomicU64,
    total: AtomicU64,
    reclaiming: AtomicU64,
}

impl StallClock {
    pub(super) fn new() -> StallClock {
        let [word, total, reclaiming] = [const { AtomicU64::new(0) }; 3];
        StallClock { word, total, reclaiming }
    }

    /// Begins the stall of one more thread.
    pub(super) fn begin(&self, now: Nanos) {
        let change = |word: u64| match word & COUNT {
            0 => Some(now.0 >> UNIT_BITS << COUNT_BITS | 1),
            // The count is full: this thread is not counted, so the clock may stop too early.
            COUNT => None,
            _ => Some(word + 1),
        };
        let _ = self.word.fetch_update(Relaxed, Relaxed, change);
    }

    /// Ends the stall of one thread, which used `reclaiming` of CPU time for reclaim.
    pub(super) fn end(&self, now: Nanos, reclaiming: Nanos) {
        let before = self.word.fetch_update(Relaxed, Relaxed, |word| Some(word.saturating_sub(1)));
        let word = before.unwrap_or(0);
        if word & COUNT == 1 {
            let since = word >> COUNT_BITS << UNIT_BITS;
            self.total.fetch_add(now.0.saturating_sub(since), Relaxed);
        }
        self.reclaiming.fetch_add(reclaiming.0, Relaxed);
    }

    /// The stall time so far, including the present stall, ns.
    fn total(&self, now: Nanos) -> u64 {
        let word = self.word.load(Relaxed);
        let present = match word & COUNT {
            0 => 0,
            _ => now.0.saturating_sub(word >> COUNT_BITS << UNIT_BITS),
        };
        self.total.load(Relaxed) + present
    }

    /// Adds the clock's times to `sum`.
    pub(super) fn add_to(&self, sum: &mut Stalled, now: Nanos) {
        sum.any.0 += self.total(now);
        sum.reclaiming.0 += self.reclaiming.load(Relaxed);
    }
}

/// Stall time of all CPUs, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalled {
    /// Time in which at least one thread of the CPU stalled.
    pub(crate) any: Nanos,
    /// CPU time that stalled threads used for reclaim.
    reclaiming: Nanos,
}

/// The inputs of the averages at one time; all but `cpus` grow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) now: Nanos,
    pub(crate) stalled: Stalled,
    /// The number of CPUs that threads may use.
    pub(crate) cpus: usize,
    /// Idle time of these CPUs, summed.
    pub(crate) idle: Nanos,
}

/// Pressure of one kind, in the form of /proc/pressure/memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Averages over 10, 60 and 300 s, in hundredths of a percent.
    pub averages: [u64; 3],
    /// Stall time since the manager started.
    pub total: Nanos,
}

/// The averages of both kinds, and the reading at their last update.
#[derive(Clone, Debug, Default)]
pub(crate) struct Averages {
    last: Reading,
    /// By kind (some, full) and period, in percent, fixed point.
    averages: [[u64; 3]; 2],
    totals: [Nanos; 2],
}

impl Averages {
    /// Averages of zero, from a first reading on.
    pub(crate) fn new(first: Reading) -> Averages {
        Averages { last: first, ..Averages::default() }
    }

    /// The time of the next update.
    pub(crate) fn due(&self) -> Nanos {
        Nanos(self.last.now.0 + UPDATE.0)
    }

    /// Adds the time since the last update. After several missed periods, it assigns all stalls to
    /// the first one: a thread that ends a stall updates averages that are due, so nothing stalled
    /// later.
    pub(crate) fn update(&mut self, reading: Reading) {
        let last = std::mem::replace(&mut self.last, reading);
        let passed = reading.now.since(last.now);
        let missed = (passed.0 / UPDATE.0).saturating_sub(1);
        let period = Nanos(passed.0 - missed * UPDATE.0);
        let lengths = stalled_for(&last, &reading);
        for ((averages, total), stalled) in
            self.averages.iter_mut().zip(&mut self.totals).zip(lengths)
        {
            total.0 += stalled.0;
            let percent = (stalled.0 * 100 / period.0.max(1)).min(100);
            for (average, decay) in averages.iter_mut().zip(DECAYS) {
                *average = mix(*average, decay, percent * ONE);
                *average = *average * power(decay, missed) / ONE;
            }
        }
    }

    /// Pressure of both kinds; totals include the time up to `reading`.
    pub(crate) fn pressures(&self, reading: &Reading) -> [Pressure; 2] {
        let since = stalled_for(&self.last, reading);
        [0, 1].map(|kind| Pressure {
            averages: self.averages[kind].map(|average| average * 100 / ONE),
            total: Nanos(self.totals[kind].0 + since[kind].0),
        })
    }
}

/// The stall time between two readings, by kind.
fn stalled_for(from: &Reading, to: &Reading) -> [Nanos; 2] {
    let passed = to.now.since(from.now).0;
    let any = to.stalled.any.since(from.stalled.any).0;
    let reclaiming = to.stalled.reclaiming.since(from.stalled.reclaiming).0.min(any);
    let idle = to.idle.since(from.idle).0;
    let for_stalls = (any - reclaiming).min(idle);
    let used = (passed * to.cpus as u64).saturating_sub(idle) + for_stalls;
    let part = |stalled: u64| {
        let part = u128::from(stalled) * u128::from(passed) / u128::from(used.max(1));
        Nanos((part as u64).min(passed))
    };
    [part(any), part(reclaiming + for_stalls)]
}

/// Moves an average towards a sample (calc_load of the kernel). Rounds up while the average rises,
/// so that it reaches a constant sample.
fn mix(average: u64, decay: u64, sample: u64) -> u64 {
    let rounding = if sample >= average { ONE - 1 } else { 0 };
    (average * decay + sample * (ONE - decay) + rounding) / ONE
}

/// `decay` to the power of `times`, in fixed point.
fn power(decay: u64, times: u64) -> u64 {
    let (mut result, mut square, mut left) = (ONE, decay, times);
    while left > 0 && result > 0 {
        if left % 2 == 1 {
            result = result * square / ONE;
        }
        square = square * square / ONE;
        left /= 2;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A reading of 4 CPUs, in seconds: time, stall time, CPU time of reclaim, idle time.
    fn at(second: u64, stalled: u64, reclaiming: u64, idle: u64) -> Reading {
        let [any, reclaiming, idle] =
            [stalled, reclaiming, idle].map(|seconds| Nanos(seconds * SECOND));
        let stalled = Stalled { any, reclaiming };
        Reading { now: Nanos(second * SECOND), stalled, cpus: 4, idle }
    }

    #[test]
    fn stalls_count_by_the_cpus_in_use() {
        let parts = |reading: Reading| {
            stalled_for(&at(0, 0, 0, 0), &reading).map(|part| part.0 * 100 / (10 * SECOND))
        };
        // One thread waits for half of the time, and no other runs.
        assert_eq!(parts(at(10, 5, 0, 35)), [50, 50]);
        // Another thread runs meanwhile.
        assert_eq!(parts(at(10, 5, 0, 25)), [25, 25]);
        // All CPUs are busy with other threads while one thread waits.
        assert_eq!(parts(at(10, 10, 0, 0)), [25, 0]);
        // The thread reclaims instead of waiting.
        assert_eq!(parts(at(10, 5, 5, 30)), [50, 50]);
        assert_eq!(parts(at(10, 40, 0, 40)), [100, 100]);
        assert_eq!(parts(at(10, 0, 0, 0)), [0, 0]);
    }

    #[test]
    fn averages_rise_and_fall_as_the_kernel_s() {
        let mut averages = Averages::new(at(0, 0, 0, 0));
        let mut update = |second, stalled| {
            let reading = at(second, stalled, 0, second * 3 + stalled);
            averages.update(reading);
            averages.pressures(&reading)[0].averages.map(|average| average / 100)
        };
        // All the time: 1 - exp(-t / window).
        assert_eq!(update(2, 2), [18, 3, 0]);
        (4..=10).step_by(2).for_each(|second| {
            update(second, second);
        });
        assert_eq!(update(12, 12), [69, 18, 4]);
        (14..=600).step_by(2).for_each(|second| {
            update(second, second);
        });
        assert_eq!(update(602, 602), [100, 100, 87]);
        // No stall for 60 s, one update: 29 periods were missed.
        assert_eq!(update(662, 602)[..2], [0, 36]);
    }

    #[test]
    fn a_cpu_s_clock_runs_while_any_thread_stalls() {
        let clock = StallClock::new();
        let total = |now| {
            let mut sum = Stalled::default();
            clock.add_to(&mut sum, Nanos(now));
            (sum.any.0, sum.reclaiming.0)
        };
        clock.begin(Nanos(160));
        clock.begin(Nanos(320));
        assert_eq!(total(480), (320, 0));
        clock.end(Nanos(640), Nanos(7));
        assert_eq!(total(800), (640, 7));
        clock.end(Nanos(960), Nanos(0));
        assert_eq!(total(9999), (800, 7));
        clock.begin(Nanos(1600));
        clock.end(Nanos(1760), Nanos(1));
        assert_eq!(total(9999), (960, 8));
    }
}
