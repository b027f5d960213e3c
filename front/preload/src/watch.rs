//! What malloc holds, for the statistics of the run: looked at now and then.
//!
//! ```text
//! hw-report, every 100 ms ── due? ── walk over all slabs ──> MallocStats { now, at_most }
//!                             ^── not before it has rested 128 times as long as that took
//! exit, _exit ────────────────────── walk ──/
//! ```
//! malloc and free count nothing for it: what an object is its mark says already. The walk is the
//! price, some ms for a million objects, so it may take 1 % of a CPU. It locks nothing of the heap,
//! and so never waits for a thread of the program.

use highwater_session::{MallocReport, MallocStats};
use std::time::Duration;

/// How many times as long as a look took it rests afterwards.
const REST: u32 = 128;

/// Why it is looked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is time to publish; whether to look depends on what that costs.
    IfDue,
    /// It is the last time.
    Now,
}

/// What was seen.
#[derive(Default)]
pub(crate) struct Watch {
    /// CPU time of looking that is still to be made up for.
    owed: Duration,
    seen: Option<MallocStats>,
}

impl Watch {
    /// Looks, if it is time to; `period` has passed since the last call. `gather` says how much
    /// CPU time it took, and nothing where there is no heap.
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
