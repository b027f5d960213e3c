//! How many kswapd threads a node should have, where that is left to the manager: decided anew
//! every period, from what was seen in it.
//!
//! ```text
//! Sample (a period) -> Streaks: since when it is short, calm, squeezed -> decide: Sizing
//! ```
//! - short: there were direct reclaims, and to free what these freed, too, would have taken the
//!   threads all of the time or more; or they were at work all of the time, and yet the zone ended
//!   below low;
//! - calm: one thread less could have done all that work with ease;
//! - squeezed: there is hardly an idle CPU. What kswapd threads use they take from others then.
//!
//! That threads sleep does not say that they are enough: each direct reclaim frees more than it
//! takes, and brings the zone to its high mark now and then. In the published experiment kswapd is
//! at work for 99 % of the time as direct reclaims begin, for 51 % when they do most of the work.
//!
//! The objection to many threads was that they steal CPU time from working tasks. So no more are
//! added than CPUs idle, and when none does one is taken away. Pure.

use crate::config::KSWAPD_THREADS_MAX;
use highwater_units::Nanos;

/// Time between two decisions.
pub(super) const PERIOD: Nanos = Nanos(10_000_000);
/// How long it must be short before a thread is added: on a real system, idle time is counted in
/// ticks of 10 ms.
const SHORT_MIN: Nanos = Nanos(50_000_000);
/// How long it must be squeezed before one is taken away.
const SQUEEZED_MIN: Nanos = Nanos(100_000_000);
/// How long it must be calm before one is taken away.
pub(super) const EXCESS_MIN: Nanos = Nanos(500_000_000);

/// A thread that was at work for so much of a period, in thousandths, was so all the time.
const BUSY: u64 = 900;
/// The others may be at work for so much of a period without a thread that is taken away.
const EASY: u64 = 700;
/// Idle CPUs that stay idle when threads are added, in thousandths.
const IDLE_LEFT: u64 = 250;
/// Idle CPUs below which all are taken.
const IDLE_NONE: u64 = 100;

/// What was seen in a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// How long it was.
    pub(super) length: Nanos,
    /// Threads.
    pub(super) threads: usize,
    /// Time for which the laziest of them was at work.
    pub(super) least_busy: Nanos,
    /// Time for which they were at work, together.
    pub(super) busy: Nanos,
    /// Pages that kswapd freed, on all nodes.
    pub(super) freed: u64,
    /// Pages that tasks freed in direct reclaim, on all nodes.
    pub(super) freed_directly: u64,
    /// Direct reclaims, on all nodes.
    pub(super) stalls: u64,
    /// Frames free at its end.
    pub(super) free: u32,
    /// The low mark.
    pub(super) low: u32,
    /// Time for which CPUs idled that the threads may use; `None`: unknown.
    pub(super) idle: Option<Nanos>,
}

impl Sample {
    /// Thousandths of the period.
    fn share(&self, time: Nanos) -> u64 {
        time.0.saturating_mul(1000) / self.length.0.max(1)
    }

    /// For how long threads would have been at work if they had freed all that was freed.
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

/// What goes on, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Streaks {
    short: Option<Streak>,
    excess: Option<Streak>,
    squeezed: Option<Streak>,
}

/// A time over which something was seen in every period.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    length: Nanos,
    /// For which CPUs idled meanwhile.
    idle: Nanos,
    /// Threads that would have been at work all the time, in thousandths, in the period in which it
    /// was least.
    wanted: u64,
}

impl Streaks {
    /// One period more.
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

/// What happens to the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizing {
    /// So many more.
    Grow(usize),
    /// One less.
    Shrink,
    /// As many.
    Keep,
}

/// Decides.
pub(super) fn decide(threads: usize, streaks: &Streaks) -> Sizing {
    let lasts = |streak: Option<Streak>, min: Nanos| streak.is_some_and(|s| s.length >= min);
    let growth = streaks.short.filter(|s| s.length >= SHORT_MIN).map_or(0, |s| s.growth(threads));
    match () {
        () if threads > 1 && lasts(streaks.squeezed, SQUEEZED_MIN) => Sizing::Shrink,
        () if threads > 1 && lasts(streaks.excess, EXCESS_MIN) => Sizing::Shrink,
        () if growth > 0 => Sizing::Grow(growth),
        () => Sizing::Keep,
    }
}

impl Streak {
    /// How many threads are missing, as far as CPUs idle.
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

    /// Two threads that never sleep, a direct reclaim, three of four CPUs idle.
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

    /// What is decided after each of some equal periods.
    fn after(periods: u64, sample: Sample) -> Sizing {
        let mut streaks = Streaks::default();
        (0..periods).for_each(|_| streaks.extend(&sample));
        decide(sample.threads, &streaks)
    }

    #[test]
    fn more_threads_where_all_are_busy_memory_is_short_and_cpus_idle() {
        let part = |thousandths: u64| Nanos(PERIOD.0 * thousandths / 1000);
        let table = [
            (SHORT, Sizing::Grow(1)),
            (Sample { stalls: 0, ..SHORT }, Sizing::Keep),
            (Sample { stalls: 0, free: 99, ..SHORT }, Sizing::Grow(1)),
            (Sample { stalls: 0, free: 99, least_busy: part(899), ..SHORT }, Sizing::Keep),
            (Sample { busy: part(1799), ..SHORT }, Sizing::Keep),
            (Sample { busy: part(1800), ..SHORT }, Sizing::Grow(1)),
            // They did a tenth of the work, in a fifth of their time.
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
            assert_eq!(after(4, sample), Sizing::Keep, "it has not lasted: {sample:?}");
        }
    }

    #[test]
    fn fewer_threads_where_one_less_would_do_or_no_cpu_idles() {
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
    fn a_streak_ends_with_one_period_that_differs() {
        let mut streaks = Streaks::default();
        for period in 1..100 {
            let stalls = u64::from(period % 5 != 0);
            streaks.extend(&Sample { stalls, ..SHORT });
            assert_eq!(decide(2, &streaks), Sizing::Keep, "period {period}");
        }
    }
}
