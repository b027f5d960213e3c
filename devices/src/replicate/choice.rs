//! Decides which replica is read, and whether a write succeeded.

use crate::remote::LOST;
use highwater_platform::IoError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// One of this many reads goes to the slower replica, to measure whether it still is slower.
const PROBE: u64 = 128;
/// The weight of a new read in the average is one part in this many.
const WEIGHT: u64 = 8;
/// A failed read counts as one that takes this long.
pub(super) const FAILED_NANOS: u64 = 100_000_000;

/// A read that takes this many times as long as the average, within these bounds, is sent to the
/// other replica, too. That must be rare, because it gives up a connection.
const HEDGE_PACES: u64 = 16;
const HEDGE_MIN: Duration = Duration::from_millis(10);
const HEDGE_MAX: Duration = Duration::from_millis(100);

/// A replica whose read the other one answered first is not asked for this many reads: a new
/// connection to a server that is stopped would be waited for.
const REST_READS: u64 = 1024;

/// The time of a read, on average; 0: unknown.
#[derive(Default)]
pub(super) struct Pace(AtomicU64);

impl Pace {
    pub(super) fn nanos(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Records that a read took `nanos`. If several threads record at once, one value may be lost.
    pub(super) fn note(&self, nanos: u64) {
        let old = match self.nanos() {
            0 => nanos,
            old => old,
        };
        self.0.store((old * (WEIGHT - 1) + nanos.min(FAILED_NANOS)) / WEIGHT, Relaxed);
    }
}

/// A replica is not asked before the read with this number, because the other one answered one of
/// its reads first.
#[derive(Default)]
pub(super) struct Rest(AtomicU64);

impl Rest {
    pub(super) fn begin(&self, reads: u64) {
        self.0.store(reads + REST_READS, Relaxed);
    }

    /// The replica has answered.
    pub(super) fn end(&self) {
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    pub(super) fn lasts(&self, reads: u64) -> bool {
        reads < self.0.load(Relaxed)
    }
}

/// The replica for the next read, of those that have its pages: the faster one, or the first if
/// that is unknown.
pub(super) fn choose(has: [bool; 2], nanos: [u64; 2], reads: u64) -> Option<usize> {
    let faster = usize::from(nanos[1] < nanos[0]);
    match has {
        [false, false] => None,
        [true, false] => Some(0),
        [false, true] => Some(1),
        [true, true] if reads % PROBE == PROBE - 1 => Some(1 - faster),
        [true, true] => Some(faster),
    }
}

/// How long a read may take before the other replica is asked, too. Recent reads took `nanos` on
/// average.
pub(super) fn hedge_after(nanos: u64) -> Duration {
    Duration::from_nanos(nanos * HEDGE_PACES).clamp(HEDGE_MIN, HEDGE_MAX)
}

/// The outcome of a write with these outcomes on the replicas. If a replica has no room, another
/// device may have some; if a replica is busy, other slots may be used.
pub(super) fn written(results: [Result<(), IoError>; 2]) -> Result<(), IoError> {
    match results {
        [Ok(()), _] | [_, Ok(())] => Ok(()),
        [Err(IoError::Full), _] | [_, Err(IoError::Full)] => Err(IoError::Full),
        [Err(IoError::Busy), _] | [_, Err(IoError::Busy)] => Err(IoError::Busy),
        [Err(LOST), Err(error)] | [Err(error), Err(_)] => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_one_is_read_and_the_other_is_tried() {
        let both = [true; 2];
        for (has, nanos, reads, expected) in [
            (both, [0, 0], 0, Some(0)),
            (both, [9, 0], 1, Some(1)),
            (both, [9, 10], 2, Some(0)),
            (both, [9, 8], 3, Some(1)),
            (both, [9, 10], PROBE - 1, Some(1)),
            (both, [9, 8], 2 * PROBE - 1, Some(0)),
            ([true, false], [9, 8], 0, Some(0)),
            ([false, true], [8, 9], PROBE - 1, Some(1)),
            ([false, false], [8, 9], 0, None),
        ] {
            assert_eq!(choose(has, nanos, reads), expected, "{has:?} {nanos:?} {reads}");
        }
    }

    #[test]
    fn a_pace_follows_reads_and_failures() {
        let pace = Pace::default();
        pace.note(800);
        assert_eq!(pace.nanos(), 800);
        pace.note(1600);
        assert_eq!(pace.nanos(), 900);
        pace.note(FAILED_NANOS);
        assert!(pace.nanos() > 10_000_000);
        (0..200).for_each(|_| pace.note(800));
        assert!(pace.nanos() < 820, "{}", pace.nanos());
    }

    #[test]
    fn the_other_one_is_asked_after_many_times_the_average() {
        for (nanos, millis) in [(0, 10), (90_000, 10), (2_000_000, 32), (FAILED_NANOS, 100)] {
            assert_eq!(hedge_after(nanos), Duration::from_millis(millis));
        }
    }

    #[test]
    fn a_write_is_good_if_one_has_it() {
        let (eio, nomem) = (IoError::Failed(libc::EIO), IoError::Failed(libc::ENOMEM));
        for (results, expected) in [
            ([Ok(()), Ok(())], Ok(())),
            ([Ok(()), Err(eio)], Ok(())),
            ([Err(LOST), Ok(())], Ok(())),
            ([Err(eio), Err(IoError::Full)], Err(IoError::Full)),
            ([Err(IoError::Full), Err(eio)], Err(IoError::Full)),
            ([Err(IoError::Busy), Ok(())], Ok(())),
            ([Err(eio), Err(IoError::Busy)], Err(IoError::Busy)),
            ([Err(IoError::Busy), Err(IoError::Full)], Err(IoError::Full)),
            ([Err(LOST), Err(nomem)], Err(nomem)),
            ([Err(nomem), Err(LOST)], Err(nomem)),
            ([Err(eio), Err(nomem)], Err(eio)),
        ] {
            assert_eq!(written(results), expected, "{results:?}");
        }
    }
}
