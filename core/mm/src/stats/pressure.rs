//! Pressure: for which part of the time threads could not go on for lack of memory, averaged over
//! 10, 60 and 300 seconds, as the kernel's pressure stall information (kernel/sched/psi.c).
//!
//! ```text
//! StallClock (a CPU's)   runs while a thread that was on it stalls: in direct reclaim, held up
//!                        before one, or in a fault on a page that is on a device
//! Window (2 s): stalled, of it reclaiming; CPUs and their idle time  -> shares -> Averages
//! ```
//! some: part of the time of CPUs in use for which a thread stalled; full: for which nothing else
//! ran there. A CPU is in use if it works, or idles only because a thread stalls. Which CPU a
//! stalled thread would have used is not known, nor what else ran there meanwhile: so idle time is
//! first put down to stalls. A thread that reclaims works, but not for the program.
//!
//! Locking: clocks are a word of a CPU's own; averages are the caller's to lock.

use highwater_units::Nanos;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Time between two updates of the averages (PSI_FREQ).
pub(crate) const UPDATE: Nanos = Nanos(2_000_000_000);

/// 1 in the averages' fixed point.
const ONE: u64 = 1 << 11;
/// What is left of an average after an update: exp(-2 s / 10, 60, 300 s).
const DECAYS: [u64; 3] = [1677, 1981, 2034];

/// Bits of a clock's word that count threads; the others are the time of the first one's stall.
const COUNT_BITS: u32 = 12;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Unit of that time, as a power of two of nanoseconds.
const UNIT_BITS: u32 = 4;

/// Time for which threads stalled on a CPU: as one, however many they were.
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

    /// A thread on the CPU stalls from now on.
    pub(super) fn begin(&self, now: Nanos) {
        let change = |word: u64| match word & COUNT {
            0 => Some(now.0 >> UNIT_BITS << COUNT_BITS | 1),
            // More than the word can count: the stall ends too soon.
            COUNT => None,
            _ => Some(word + 1),
        };
        let _ = self.word.fetch_update(Relaxed, Relaxed, change);
    }

    /// It goes on, having used CPU time for reclaim.
    pub(super) fn end(&self, now: Nanos, reclaiming: Nanos) {
        let before = self.word.fetch_update(Relaxed, Relaxed, |word| Some(word.saturating_sub(1)));
        let word = before.unwrap_or(0);
        if word & COUNT == 1 {
            let since = word >> COUNT_BITS << UNIT_BITS;
            self.total.fetch_add(now.0.saturating_sub(since), Relaxed);
        }
        self.reclaiming.fetch_add(reclaiming.0, Relaxed);
    }

    /// So far; the present stall included.
    fn total(&self, now: Nanos) -> u64 {
        let word = self.word.load(Relaxed);
        let present = match word & COUNT {
            0 => 0,
            _ => now.0.saturating_sub(word >> COUNT_BITS << UNIT_BITS),
        };
        self.total.load(Relaxed) + present
    }

    /// Adds what it says to `sum`.
    pub(super) fn add_to(&self, sum: &mut Stalled, now: Nanos) {
        sum.any.0 += self.total(now);
        sum.reclaiming.0 += self.reclaiming.load(Relaxed);
    }
}

/// Stall time of all CPUs, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalled {
    /// For which threads stalled.
    any: Nanos,
    /// CPU time that they used for reclaim meanwhile.
    reclaiming: Nanos,
}

/// What grows, at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) now: Nanos,
    pub(crate) stalled: Stalled,
    /// CPUs that threads may use.
    pub(crate) cpus: usize,
    /// For how long these idled, together.
    pub(crate) idle: Nanos,
}

/// Pressure as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Over 10, 60 and 300 s, in hundredths of a percent.
    pub averages: [u64; 3],
    /// Since the manager was started.
    pub total: Nanos,
}

/// The averages, and when they were updated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Averages {
    last: Reading,
    /// Of some and full, in percent, fixed point.
    averages: [[u64; 3]; 2],
    totals: [Nanos; 2],
}

impl Averages {
    /// From a first reading on.
    pub(crate) fn new(first: Reading) -> Averages {
        Averages { last: first, ..Averages::default() }
    }

    /// When they should be updated next.
    pub(crate) fn due(&self) -> Nanos {
        Nanos(self.last.now.0 + UPDATE.0)
    }

    /// Takes in what was since the last update. If that is long ago, nothing stalled meanwhile but
    /// at first: a thread that ends a stall updates averages that are due.
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

    /// Some and full; totals up to a reading.
    pub(crate) fn pressures(&self, reading: &Reading) -> [Pressure; 2] {
        let since = stalled_for(&self.last, reading);
        [0, 1].map(|kind| Pressure {
            averages: self.averages[kind].map(|average| average * 100 / ONE),
            total: Nanos(self.totals[kind].0 + since[kind].0),
        })
    }
}

/// For how much of the time between two readings some, and all, stalled.
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

/// The kernel's calc_load: rounds up while it rises, so that it reaches what it is given.
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

    /// A reading at a second: stalled, reclaiming, of 4 CPUs' idle time, in seconds.
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
        // One thread waits for half of the time, and nothing else is there.
        assert_eq!(parts(at(10, 5, 0, 35)), [50, 50]);
        // Another thread works meanwhile.
        assert_eq!(parts(at(10, 5, 0, 25)), [25, 25]);
        // All CPUs are busy with something else while one thread waits.
        assert_eq!(parts(at(10, 10, 0, 0)), [25, 0]);
        // It reclaims instead of waiting.
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
        // Never again, seen once: 30 updates are missed but one.
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
