//! How many kswapd threads a node should have in automatic mode, decided every period. Pure.
//!
//! ```text
//! Sample (a period) -> Streaks: since when short, in excess, squeezed -> decide: Sizing
//! ```
//! - short: there were direct reclaims, and freeing their pages, too, would have taken the threads
//!   all of their time or more; or the threads worked all of the time, and the zone still ended
//!   below low;
//! - in excess: one thread fewer could easily have done all the work;
//! - squeezed: hardly a CPU idles, so kswapd threads take CPU time from other threads.
//!
//! Sleeping threads do not mean that there are enough: a direct reclaim frees more than it needs,
//! which sometimes brings the zone to its high watermark. In the published experiment kswapd works
//! for 99 % of the time when direct reclaims begin, and for 51 % when they do most of the work.
//!
//! The objection to many threads was that they take CPU time from the tasks. So threads are added
//! for idle CPUs only, and one is removed when no CPU idles.

use crate::config::KSWAPD_THREADS_MAX;
use highwater_units::Nanos;

/// Time between two decisions.
pub(super) const PERIOD: Nanos = Nanos(10_000_000);
/// How long a node must be short before threads are added. Real systems count idle time in ticks of
/// 10 ms.
const SHORT_MIN: Nanos = Nanos(50_000_000);
/// How long it must be squeezed before a thread is removed.
const SQUEEZED_MIN: Nanos = Nanos(100_000_000);
/// How long threads must be in excess before one is removed.
pub(super) const EXCESS_MIN: Nanos = Nanos(500_000_000);

/// Part of a period, in thousandths, from which on a thread counts as working all of the time.
const BUSY: u64 = 900;
/// Part of a period that the remaining threads may work after one is removed.
const EASY: u64 = 700;
/// Idle CPUs, in thousandths, that are left when threads are added.
pub(super) const IDLE_LEFT: u64 = 250;
/// Idle CPUs, in thousandths, below which the machine is squeezed.
pub(super) const IDLE_NONE: u64 = 100;

/// The measurements of a period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Its length.
    pub(super) length: Nanos,
    /// Threads.
    pub(super) threads: usize,
    /// Time that the least busy of them worked.
    pub(super) least_busy: Nanos,
    /// Time that all of them worked.
    pub(super) busy: Nanos,
    /// Pages that kswapd freed, on all nodes.
    pub(super) freed: u64,
    /// Pages freed in direct reclaim, on all nodes.
    pub(super) freed_directly: u64,
    /// Direct reclaims, on all nodes.
    pub(super) stalls: u64,
    /// Free frames at its end.
    pub(super) free: u32,
    /// The low watermark.
    pub(super) low: u32,
    /// Idle time of the CPUs that the threads may use; `None`: unknown.
    pub(super) idle: Option<Nanos>,
}

impl Sample {
    /// A time in thousandths of the period.
    fn share(&self, time: Nanos) -> u64 {
        time.0.saturating_mul(1000) / self.length.0.max(1)
    }

    /// Time that the threads would have worked if they had freed all pages themselves.
    fn wanted(&self) -> Nanos {
        let all = u128::from(self.freed + self.freed_directly);
        let wanted = u128::from(self.busy.0) * all / u128::from(self.freed.max(1));
        Nanos(u64::try_from(wanted).unwrap_or(u64::MAX / 1000))
    }

    fn is_short(&self) -> bool {
        let overloaded = self.share(self.wanted()) >= BUSY * self.threads as u64;
        let lags = self.free < self.low && self.share(self.least_busy) >= BUSY;
        self.freed > 0 && (self.stalls > 0 && overloaded || lags)
    }

    fn is_excess(&self) -> bool {
        self.share(self.wanted()) <= EASY * (self.threads as u64).saturating_sub(1)
    }

    fn is_squeezed(&self) -> bool {
        self.idle.is_some_and(|idle| self.share(idle) < IDLE_NONE)
    }
}

/// The conditions that hold now, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Streaks {
    short: Option<Streak>,
    excess: Option<Streak>,
    squeezed: Option<Streak>,
}

/// Consecutive periods in which a condition held.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    length: Nanos,
    /// Idle CPU time in them.
    idle: Nanos,
    /// Threads that would have worked all of the time, in thousandths: the least of all periods.
    wanted: u64,
}

impl Streaks {
    /// Adds a period.
    pub(super) fn extend(&mut self, sample: &Sample) {
        let longer = |streak: Option<Streak>, goes_on: bool| {
            let wanted = sample.share(sample.wanted());
            let Streak { length, idle, wanted: least } =
                streak.unwrap_or(Streak { wanted, ..Streak::default() });
            let idle = Nanos(idle.0 + sample.idle.unwrap_or_default().0);
            let (length, wanted) = (Nanos(length.0 + sample.length.0), wanted.min(least));
            goes_on.then_some(Streak { length, idle, wanted })
        };
        self.short = longer(self.short, sample.is_short());
        self.excess = longer(self.excess, sample.is_excess());
        self.squeezed = longer(self.squeezed, sample.is_squeezed());
    }
}

/// The change of the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizing {
    /// Add threads.
    Grow(usize),
    /// Remove one.
    Shrink,
    /// No change.
    Keep,
}

/// Decides the change for a node with `threads` threads.
pub(super) fn decide(threads: usize, streaks: &Streaks) -> Sizing {
    let lasts = |streak: Option<Streak>, min: Nanos| streak.is_some_and(|s| s.length >= min);
    let growth = streaks.short.filter(|s| s.length >= SHORT_MIN).map_or(0, |s| s.growth(threads));
    let surplus = lasts(streaks.squeezed, SQUEEZED_MIN) || lasts(streaks.excess, EXCESS_MIN);
    if threads > 1 && surplus {
        Sizing::Shrink
    } else if growth > 0 {
        Sizing::Grow(growth)
    } else {
        Sizing::Keep
    }
}

impl Streak {
    /// Threads that are missing and for which there are idle CPUs.
    fn growth(&self, threads: usize) -> usize {
        let missing = (self.wanted.div_ceil(1000) as usize).saturating_sub(threads).max(1);
        let idle = self.idle.0 * 1000 / self.length.0.max(1);
        let room = (idle.saturating_sub(IDLE_LEFT) / 1000) as usize;
        missing.min(room).min(KSWAPD_THREADS_MAX - threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that never sleep, one direct reclaim, three of four CPUs idle.
    const SHORT: Sample = Sample {
        length: PERIOD,
        threads: 2,
        least_busy: PERIOD,
        busy: Nanos(2 * PERIOD.0),
        freed: 1000,
        freed_directly: 0,
        stalls: 1,
        free: 100,
        low: 100,
        idle: Some(Nanos(3 * PERIOD.0)),
    };

    /// The decision after a number of equal periods.
    fn after(periods: u64, sample: Sample) -> Sizing {
        let mut streaks = Streaks::default();
        (0..periods).for_each(|_| streaks.extend(&sample));
        decide(sample.threads, &streaks)
    }

    #[test]
    fn threads_are_added_if_memory_is_short_and_cpus_idle() {
        let part = |thousandths: u64| Nanos(PERIOD.0 * thousandths / 1000);
        let table = [
            (SHORT, Sizing::Grow(1)),
            (Sample { stalls: 0, ..SHORT }, Sizing::Keep),
            (Sample { stalls: 0, free: 99, ..SHORT }, Sizing::Grow(1)),
            (Sample { stalls: 0, free: 99, least_busy: part(899), ..SHORT }, Sizing::Keep),
            (Sample { busy: part(1799), ..SHORT }, Sizing::Keep),
            (Sample { busy: part(1800), ..SHORT }, Sizing::Grow(1)),
            // They did a tenth of the work in a fifth of their time.
            (Sample { busy: part(400), freed_directly: 9000, ..SHORT }, Sizing::Grow(2)),
            (Sample { freed_directly: 2001, ..SHORT }, Sizing::Grow(2)),
            (Sample { freed_directly: 2001, idle: Some(part(99_000)), ..SHORT }, Sizing::Grow(5)),
            (
                Sample { freed_directly: 1 << 40, idle: Some(part(99_000)), ..SHORT },
                Sizing::Grow(14),
            ),
            (Sample { busy: part(400), freed_directly: 3000, ..SHORT }, Sizing::Keep),
            (Sample { freed: 0, ..SHORT }, Sizing::Keep),
            (Sample { idle: Some(part(1249)), ..SHORT }, Sizing::Keep),
            (Sample { idle: Some(part(1250)), ..SHORT }, Sizing::Grow(1)),
            (Sample { idle: None, ..SHORT }, Sizing::Keep),
            (Sample { threads: 1, ..SHORT }, Sizing::Grow(1)),
            (Sample { threads: KSWAPD_THREADS_MAX, ..SHORT }, Sizing::Keep),
        ];
        for (sample, expected) in table {
            assert_eq!(after(5, sample), expected, "{sample:?}");
            assert_eq!(after(4, sample), Sizing::Keep, "too short a streak: {sample:?}");
        }
    }

    #[test]
    fn a_thread_is_removed_if_fewer_would_do_or_no_cpu_idles() {
        let excess = Sample { busy: Nanos(PERIOD.0 * 7 / 10), stalls: 0, ..SHORT };
        let taken = Sample { idle: Some(Nanos(PERIOD.0 / 11)), ..SHORT };
        let table = [
            (excess, 49, Sizing::Keep),
            (excess, 50, Sizing::Shrink),
            (Sample { busy: Nanos(PERIOD.0 * 8 / 10), ..excess }, 1000, Sizing::Keep),
            (Sample { freed_directly: 10, ..excess }, 1000, Sizing::Keep),
            (Sample { threads: 1, busy: Nanos(0), ..excess }, 1000, Sizing::Keep),
            (taken, 9, Sizing::Keep),
            (taken, 10, Sizing::Shrink),
            (Sample { threads: 1, ..taken }, 1000, Sizing::Keep),
        ];
        for (sample, periods, expected) in table {
            assert_eq!(after(periods, sample), expected, "{periods} periods of {sample:?}");
        }
    }

    #[test]
    fn one_different_period_ends_a_streak() {
        let mut streaks = Streaks::default();
        for period in 1..100 {
            let stalls = u64::from(period % 5 != 0);
            streaks.extend(&Sample { stalls, ..SHORT });
            assert_eq!(decide(2, &streaks), Sizing::Keep, "period {period}");
        }
    }
}
