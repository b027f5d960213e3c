//! Samples what malloc holds, for the statistics of the run.
//!
//! ```text
//! report, every 100 ms ── due? ── walk over all slabs ──> MallocStats { now, at_most }
//!                             ^── after a pause of 128 times the walk's CPU time
//! exit, _exit ────────────────────── walk ──/
//! ```
//! malloc and free count nothing: the mark of an object already shows whether it is in use. A
//! sample walks over all slabs, which takes milliseconds for a million objects, so it may use 1 %
//! of a CPU. It takes no lock of the heap, and never waits for a thread of the program.

use highwater_session::{MallocReport, MallocStats};
use std::time::Duration;

/// Pause after a sample, as a multiple of its CPU time.
const REST: u32 = 128;

/// Why a sample may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is time to publish; a sample is taken if the last one's cost is paid off.
    IfDue,
    /// This is the last publication.
    Now,
}

/// The samples of a process.
#[derive(Default)]
pub(crate) struct Watch {
    /// CPU time of the last sample, times [`REST`], that has not passed yet.
    owed: Duration,
    seen: Option<MallocStats>,
}

impl Watch {
    /// Takes a sample if it is due; `period` has passed since the last call. `gather` returns the
    /// sample and its CPU time, or nothing if there is no heap.
    pub(crate) fn look(
        &mut self,
        look: Look,
        period: Duration,
        gather: impl FnOnce() -> Option<(MallocReport, Duration)>,
    ) -> Option<&MallocStats> {
        self.owed = self.owed.saturating_sub(period);
        let gathered = (look == Look::Now || self.owed.is_zero()).then(gather).flatten();
        if let Some((report, took)) = gathered {
            self.owed = took * REST;
            self.seen.get_or_insert_default().note(report);
        }
        self.seen.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_take_long_are_seldom_and_the_last_one_is_not_spared() {
        let (period, mut looks) = (Duration::from_millis(100), 0);
        let mut watch = Watch::default();
        let mut look = |how| {
            let gather = || {
                looks += 1;
                let now = MallocReport { large_blocks: looks, ..MallocReport::default() };
                Some((now, Duration::from_millis(2)))
            };
            watch.look(how, period, gather).expect("there is a heap").now.large_blocks
        };
        let seen: Vec<u64> = (0..7).map(|_| look(Look::IfDue)).collect();
        assert_eq!(seen, [1, 1, 1, 2, 2, 2, 3], "256 ms are rested after each");
        assert_eq!(look(Look::Now), 4);
    }

    #[test]
    fn without_a_heap_nothing_is_seen() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(Look::Now, Duration::ZERO, || None), None);
    }
}
