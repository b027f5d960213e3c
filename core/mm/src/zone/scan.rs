//! What compaction remembers of a zone from one run to the next.
//!
//! ```text
//! Scanners -- migrate, free   where the two scanners go on (compact_cached_*_pfn)
//!          |- reset_after     when that, and the skip bits of pageblocks, may be forgotten again
//!          \- deferral        how compaction has fared: crate::compact::defer
//! ```
//! Threads change these words without a lock, as in the kernel: they are hints.

use highwater_platform::{Atomic, FrameRange, Platform};
use highwater_units::{Nanos, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// What is remembered is not forgotten more often: if allocations fail so fast, to look at all of
/// memory again and again does not help (the seed's 5 s).
const RESET_PERIOD: Nanos = Nanos(5_000_000_000);

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanner {
    /// Looks for pages that can move, upwards.
    Migrate = 0,
    /// Looks for free frames to move them to, downwards.
    Free = 1,
}

/// The words.
pub struct Scanners<P: Platform> {
    starts: [Pfn; 2],
    cached: [P::Atomic<u32>; 2],
    reset_after: P::Atomic<u64>,
    /// See [`crate::compact`].
    pub deferral: P::Atomic<u32>,
}

impl<P: Platform> Scanners<P> {
    /// At the ends of a zone whose last pageblock begins with `last`.
    pub(super) fn new(range: FrameRange, last: Pfn) -> Scanners<P> {
        let starts = [range.first, last];
        let cached = starts.map(|pfn| Atomic::new(pfn.0));
        Scanners { starts, cached, reset_after: Atomic::new(0), deferral: Atomic::new(0) }
    }

    /// Where a scanner starts that knows nothing.
    pub fn start(&self, scanner: Scanner) -> Pfn {
        self.starts[scanner as usize]
    }

    /// Where it goes on.
    pub fn cached(&self, scanner: Scanner) -> Pfn {
        Pfn(self.cached[scanner as usize].load(Relaxed))
    }

    /// It goes on there the next time.
    pub fn cache(&self, scanner: Scanner, pfn: Pfn) {
        self.cached[scanner as usize].store(pfn.0, Relaxed);
    }

    /// Scanners start at the ends again; returns whether it is time for that.
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
