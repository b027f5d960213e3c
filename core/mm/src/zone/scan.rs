//! The state that compaction keeps of a zone from one pass to the next.
//!
//! ```text
//! Scanners -- cached          where the two scanners of the next pass start (compact_cached_*_pfn)
//!          |- reset_after     when these positions and the skip bits may be reset again
//!          \- deferral        recent failures: crate::compact::defer
//! ```
//! Threads change these words without a lock, as in the kernel: they are hints.

use highwater_platform::{Atomic, FrameRange, Platform};
use highwater_units::{Nanos, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// The least time between resets, as in Linux 3.7: if allocations fail more often, repeated scans
/// of all memory do not help.
const RESET_PERIOD: Nanos = Nanos(5_000_000_000);

/// A compaction scanner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanner {
    /// Goes up through the zone, and isolates pages that can move.
    Migrate = 0,
    /// Goes down through the zone, and isolates free frames for these pages.
    Free = 1,
}

/// The words of a zone.
pub struct Scanners<P: Platform> {
    starts: [Pfn; 2],
    cached: [P::Atomic<u32>; 2],
    reset_after: P::Atomic<u64>,
    /// Packed by compact/defer.rs.
    pub deferral: P::Atomic<u32>,
}

impl<P: Platform> Scanners<P> {
    /// Positions at the ends of a zone whose last pageblock starts at `last`.
    pub(super) fn new(range: FrameRange, last: Pfn) -> Scanners<P> {
        let starts = [range.first, last];
        let cached = starts.map(|pfn| Atomic::new(pfn.0));
        Scanners { starts, cached, reset_after: Atomic::new(0), deferral: Atomic::new(0) }
    }

    /// The end of the zone at which a scanner starts.
    pub fn start(&self, scanner: Scanner) -> Pfn {
        self.starts[scanner as usize]
    }

    /// Where a scanner of the next pass starts.
    pub fn cached(&self, scanner: Scanner) -> Pfn {
        Pfn(self.cached[scanner as usize].load(Relaxed))
    }

    /// Sets where a scanner of the next pass starts.
    pub fn cache(&self, scanner: Scanner, pfn: Pfn) {
        self.cached[scanner as usize].store(pfn.0, Relaxed);
    }

    /// Resets the positions to the ends of the zone, unless the last reset was too recent; returns
    /// whether it did.
    pub(super) fn reset(&self, now: Nanos) -> bool {
        let after = self.reset_after.load(Relaxed);
        let next = now.0 + RESET_PERIOD.0;
        let due = now.0 >= after;
        if !due || self.reset_after.compare_exchange(after, next, Relaxed, Relaxed).is_err() {
            return false;
        }
        for scanner in [Scanner::Migrate, Scanner::Free] {
            self.cache(scanner, self.start(scanner));
        }
        true
    }
}
