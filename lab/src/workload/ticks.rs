//! A clock cheap enough to time single accesses: the time stamp counter, scaled over the run.

use std::time::{Duration, Instant};

/// Counts ticks from now on; their length follows from the time the run took.
pub(crate) struct Stopwatch {
    began: Instant,
    first: u64,
}

impl Stopwatch {
    /// Starts counting.
    pub(crate) fn start() -> Stopwatch {
        let mut watch = Stopwatch { began: Instant::now(), first: 0 };
        watch.first = watch.ticks();
        watch
    }

    /// The counter: nanoseconds where there is no cheaper one.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn ticks(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The counter. Not serialising: off by some dozen cycles, which a fault's length hides.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn ticks(&self) -> u64 {
        // SAFETY: every x86_64 has the instruction, and it touches no memory.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Nanoseconds per tick, over the time since the start.
    pub(crate) fn scale(&self) -> f64 {
        let ticks = self.ticks().saturating_sub(self.first).max(1);
        self.began.elapsed().as_nanos() as f64 / ticks as f64
    }
}
