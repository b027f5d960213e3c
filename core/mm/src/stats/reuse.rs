//! How many frames more would have avoided a share of the reads from swap.
//!
//! Frames that are added work like a second cache behind the present one: it gets what that evicts,
//! and each read is an access to it. Of each access the reuse time is known, in pages evicted since
//! the page was. A page stays in a cache of `c` frames for the time T in which c pages come to it
//! that are not there: the integral from 0 to T of P(reuse time > t) is c (Hu et al., "Kinetic
//! Modeling of Data Eviction in Cache", USENIX ATC 2016). Pages that were never read again have an
//! infinite reuse time.

use super::Snapshot;
use super::counter::Counter;

/// Samples that an estimate needs.
const SAMPLES_MIN: u64 = 16;

impl Snapshot {
    /// The frames that would have avoided a share (0 to 1) of the reads from swap; `None` if there
    /// were too few.
    pub fn frames_to_avoid(&self, share: f64) -> Option<u64> {
        let samples = self.reuse.count();
        if samples < SAMPLES_MIN {
            return None;
        }
        let (read, evicted) = (self.get(Counter::PswpIn), self.evicted());
        let returning = (read as f64 / evicted.max(1) as f64).min(1.0);
        let end = self.reuse.value_at(share);
        let (mut seen, mut frames) = (0, 0.0);
        for (_, width, count) in self.reuse.buckets().take_while(|(least, ..)| *least <= end) {
            let returned = (seen as f64 + count as f64 / 2.0) / samples as f64;
            frames += (1.0 - returning * returned) * width as f64;
            seen += count;
        }
        Some(frames.ceil() as u64)
    }

    fn evicted(&self) -> u64 {
        self.get(Counter::PgStealAnon)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stats;
    use super::*;
    use highwater_units::CpuId;

    /// The statistics of `evicted` pages with reads at these distances.
    fn statistics(evicted: u64, distances: impl Iterator<Item = u64>) -> Snapshot {
        let stats = Stats::new(1);
        stats.add(CpuId(0), Counter::PgStealAnon, evicted);
        for distance in distances {
            stats.reuse(CpuId(0), distance);
            stats.add(CpuId(0), Counter::PswpIn, 64);
        }
        stats.snapshot()
    }

    #[test]
    fn a_cycle_needs_what_lies_between() {
        let cycle = statistics(64 * 1000, (0..1000).map(|_| 4000));
        let frames = cycle.frames_to_avoid(0.9).expect("samples");
        assert!((3800..4400).contains(&frames), "{frames}");
    }

    #[test]
    fn pages_in_random_order_need_what_is_missing() {
        // Each of 5000 pages that are missing is as likely to be next.
        let at = |rank: u64| (-5000.0 * (1.0 - (rank as f64 + 0.5) / 1000.0).ln()) as u64;
        let random = statistics(64 * 1000, (0..1000).map(at));
        let frames = random.frames_to_avoid(0.9).expect("samples");
        assert!((4200..5000).contains(&frames), "{frames}: nine tenths of 5000");
    }

    #[test]
    fn pages_that_never_return_take_frames_too() {
        // One in four returns, after 1000 evictions.
        let stream = statistics(64 * 4000, (0..1000).map(|_| 1000));
        let frames = stream.frames_to_avoid(0.9).expect("samples");
        assert!((950..1150).contains(&frames), "{frames}");
    }

    #[test]
    fn few_samples_say_nothing() {
        assert_eq!(statistics(1000, (0..15).map(|_| 100)).frames_to_avoid(0.9), None);
        assert_eq!(Snapshot::empty().frames_to_avoid(0.9), None);
    }
}
