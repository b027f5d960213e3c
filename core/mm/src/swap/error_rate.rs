//! Whether so many of a device's writes fail that waiting for those that succeed is no use.
//!
//! ```text
//! first write of a window ... at least 2 s and 256 writes later: judge -> Works | Fails
//!                                                                next window
//! ```
//! A device that loses 99 of 100 writes still takes a page now and then: each allocation succeeds
//! after some rounds, and the program hardly moves.
//!
//! Locking: none. Both counts are in one word; the start of a window may be seen late, but no
//! window is judged before it has its writes. A device that was idle may have an old window; of its
//! few writes those that succeeded still speak for the device.

use highwater_units::Nanos;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long devices are seen to pause, at most: for less no device is given up, and no allocation
/// fails because of its writes.
pub const PAUSE_MAX: Nanos = Nanos(2_000_000_000);
/// Runs tried on a device that fails, after its first failure and in a round of an allocation.
pub const TRIES_PER_ROUND: u32 = 16;
/// The writes of a window, at least: as many as an allocation tries in all of its rounds. It gives
/// up on fewer only if they take longer than [`PAUSE_MAX`].
pub const WRITES_MIN: u32 = 256;

/// The verdict on a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has too few writes, or is too short.
    Open,
    /// A round of an allocation writes a run.
    Works,
    /// Most rounds of an allocation write nothing, as if every write failed.
    Fails,
}

/// Decides about a window with so many writes that lasted so long. A round that tries
/// [`TRIES_PER_ROUND`] runs must write one of them, on average.
fn judge(writes: u32, succeeded: u32, lasted: Nanos) -> Verdict {
    if writes < WRITES_MIN || lasted < PAUSE_MAX {
        Verdict::Open
    } else if succeeded >= writes / TRIES_PER_ROUND {
        Verdict::Works
    } else {
        Verdict::Fails
    }
}

/// The writes of a device in the present window.
#[derive(Debug, Default)]
pub(super) struct ErrorRate {
    /// When the first of them ended, in nanoseconds.
    began: AtomicU64,
    /// Writes in the lower half, those that succeeded in the upper one.
    counts: AtomicU64,
}

impl ErrorRate {
    /// Counts a write that has ended now. A window that is judged is over.
    pub(super) fn count(&self, result: Result<(), ()>, now: Nanos) -> Verdict {
        let one = 1 | u64::from(result.is_ok()) << 32;
        let counts = self.counts.fetch_add(one, Relaxed) + one;
        if counts == one {
            self.began.store(now.0, Relaxed);
        }
        let lasted = now.since(Nanos(self.began.load(Relaxed)));
        let verdict = judge(counts as u32, (counts >> 32) as u32, lasted);
        if verdict != Verdict::Open {
            self.forget();
        }
        verdict
    }

    /// Begins a window.
    pub(super) fn forget(&self) {
        self.counts.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Fails, Open, Works};

    #[test]
    fn a_window_is_judged_when_it_has_time_and_writes() {
        let short = Nanos(PAUSE_MAX.0 - 1);
        for (writes, succeeded, lasted, expected) in [
            (256, 0, PAUSE_MAX, Fails),
            (255, 0, PAUSE_MAX, Open),
            (9000, 0, short, Open),
            (256, 15, PAUSE_MAX, Fails),
            (256, 16, PAUSE_MAX, Works),
            (16_000, 999, PAUSE_MAX, Fails),
            (16_000, 1000, PAUSE_MAX, Works),
            (256, 256, PAUSE_MAX, Works),
        ] {
            let found = judge(writes, succeeded, lasted);
            assert_eq!(found, expected, "{succeeded} of {writes} in {lasted:?}");
        }
    }

    /// Verdicts on writes that end every 5 ms from `began` on, of which each `sound`-th succeeds.
    fn verdicts(rate: &ErrorRate, began: u64, sound: u64, writes: u64) -> Vec<(u64, Verdict)> {
        let count = |write: u64| {
            let result = if write.is_multiple_of(sound) { Ok(()) } else { Err(()) };
            (write, rate.count(result, Nanos(began + write * 5_000_000)))
        };
        (1..=writes).map(count).filter(|(_, verdict)| *verdict != Open).collect()
    }

    #[test]
    fn windows_follow_each_other_and_begin_with_a_write() {
        let rate = ErrorRate::default();
        // 2 s are 400 writes, from the first one on.
        assert_eq!(verdicts(&rate, 1 << 60, 100, 900), [(401, Fails), (802, Fails)]);
        rate.forget();
        assert_eq!(verdicts(&rate, 1 << 61, 10, 401), [(401, Works)]);
        // No window is open while the device is idle.
        assert_eq!(verdicts(&rate, 1 << 62, 100, 400), []);
    }
}
