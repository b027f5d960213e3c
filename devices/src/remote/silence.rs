//! How long a server has not answered.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The silence is common to all requests of a device: once one request has waited in vain, others
/// need not.
pub(super) struct Silence {
    base: Instant,
    /// Microseconds from `base` to the start of the silence, plus one; 0: the server answers.
    since: AtomicU64,
}

impl Silence {
    pub(super) fn new() -> Silence {
        Silence { base: Instant::now(), since: AtomicU64::new(0) }
    }

    /// Records that a request made at `asked` was not answered; returns how long the server has
    /// been silent.
    pub(super) fn lasts(&self, asked: Instant) -> Duration {
        let micros = |at: Instant| at.saturating_duration_since(self.base).as_micros() as u64 + 1;
        let (asked, now) = (micros(asked), micros(Instant::now()));
        let since = self.since.compare_exchange(0, asked, Relaxed, Relaxed);
        Duration::from_micros(now.saturating_sub(since.map_or_else(|since| since, |_| asked)))
    }

    /// Records that a request was answered.
    pub(super) fn end(&self) {
        if self.since.load(Relaxed) != 0 {
            self.since.store(0, Relaxed);
        }
    }
}
