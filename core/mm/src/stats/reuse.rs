//! How many frames more would have avoided a share of the reads from swap, from a sample of reuse
//! times: pages evicted between a page's eviction and its read.
//!
//! ```text
//! if LRU decides       added frames work like a second cache behind the present one, which gets
//!                      the pages that the present one evicts. A page stays for the time T; the
//!                      number of added frames is the integral of P(reuse time > t) up to T
//!                      (Hu et al., "Kinetic Modeling of Data Eviction in Cache", 2016)
//! if chance decides    of M frames each is as likely to be evicted next, so a page that is used
//!                      every t evictions is resident for M/(M+t) of the time (Gelenbe, "A Unified
//!                      Approach to the Evaluation of a Class of Replacement Algorithms", 1973)
//! ```
//! Reclaim lies between the two, because it sees uses late. So the larger number is used, up to the
//! number of all pages. Evicted pages that were not read and are not absent now have been freed:
//! they only passed through.

use super::Snapshot;
use super::counter::Counter;
use super::histogram::HistogramSnapshot;

/// One slot in this many is sampled. A transfer has fewer pages, so at most one of its slots is
/// sampled.
pub const REUSE_SAMPLED: u32 = 64;

/// Watermarks keep about one frame in this many free.
const KEPT_FREE: u64 = 16;
/// Samples that an estimate needs.
const SAMPLES_MIN: u64 = 16;

impl Snapshot {
    /// The frames that would have avoided a share (0 to 1) of the reads from swap; `None` if there
    /// were too few samples.
    pub fn frames_to_avoid(&self, share: f64) -> Option<u64> {
        if self.reuse.count() < SAMPLES_MIN {
            return None;
        }
        let [read, evicted, frames, pages] =
            [Counter::PswpIn, Counter::PgStealAnon, Counter::ResidentPeak, Counter::PagedPeak]
                .map(|counter| self.get(counter));
        // Not every platform counts pages.
        let absent = if pages == 0 { u64::MAX } else { pages.saturating_sub(frames) };
        let part = |evicted: u64| (read as f64 / evicted.max(1) as f64).min(1.0);
        let lru = by_lru(&self.reuse, part(evicted), share);
        let returning = part(evicted.saturating_sub(absent));
        let more = lru.max(by_chance(&self.reuse, returning, share, frames as f64));
        let more = (more.ceil() as u64).min(absent);
        Some(more + more / KEPT_FREE)
    }
}

/// Frames to add if the least recently used page is evicted. `returning`: the part of the evicted
/// pages that is read again.
fn by_lru(reuse: &HistogramSnapshot, returning: f64, share: f64) -> f64 {
    let (samples, end) = (reuse.count() as f64, reuse.value_at(share));
    let (mut seen, mut frames) = (0, 0.0);
    for (_, width, count) in reuse.buckets().take_while(|(least, ..)| *least <= end) {
        let returned = (seen as f64 + count as f64 / 2.0) / samples;
        frames += (1.0 - returning * returned) * width as f64;
        seen += count;
    }
    frames
}

/// Frames to add to `frames` if every page is equally likely to be evicted.
fn by_chance(reuse: &HistogramSnapshot, returning: f64, share: f64, frames: f64) -> f64 {
    let samples = reuse.count() as f64;
    let mean = |of: &dyn Fn(f64) -> f64| {
        let at = |(least, width, count): (u64, u64, u64)| {
            of(least as f64 + width as f64 / 2.0) * count as f64
        };
        reuse.buckets().filter(|(.., count)| *count > 0).map(at).sum::<f64>() / samples
    };
    // A page stays for `stay` evictions at the present rate; now for as many as there are frames.
    let reads_left = |stay: f64| mean(&|time| (frames + time) / (stay + time));
    let (mut least, mut most) = (frames, frames.max(1.0) * 1e6);
    for _ in 0..64 {
        let stay = f64::midpoint(least, most);
        if reads_left(stay) > 1.0 - share {
            least = stay;
        } else {
            most = stay;
        }
    }
    let resident = returning * mean(&|time| (frames + time) * most / (most + time));
    resident + (1.0 - returning) * most - frames
}

#[cfg(test)]
mod tests {
    use super::super::Stats;
    use super::*;
    use highwater_units::CpuId;

    /// The statistics of `evicted` pages with reads at these distances, of 6000 pages in 1000
    /// frames.
    fn statistics(evicted: u64, distances: impl Iterator<Item = u64>) -> Snapshot {
        let stats = Stats::new(1);
        let counts = [
            (Counter::PgStealAnon, evicted),
            (Counter::ResidentPeak, 1000),
            (Counter::PagedPeak, 6000),
        ];
        counts.into_iter().for_each(|(counter, count)| stats.add(CpuId(0), counter, count));
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
        assert!((4000..4700).contains(&frames), "{frames}");
    }

    #[test]
    fn pages_in_random_order_need_what_is_missing() {
        // Each of the 5000 pages that are missing is equally likely to be next.
        let at = |rank: u64| (-5000.0 * (1.0 - (rank as f64 + 0.5) / 1000.0).ln()) as u64;
        let random = statistics(64 * 1000, (0..1000).map(at));
        let frames = random.frames_to_avoid(0.9).expect("samples");
        // 1 in 60 of 6000 pages may be missing: 100.
        assert!((4800..5320).contains(&frames), "{frames}");
    }

    #[test]
    fn no_more_is_needed_than_there_is() {
        // One page in four returns, after 1000 evictions: if chance decides, the others are in the
        // way.
        let stream = statistics(64 * 4000, (0..1000).map(|_| 1000));
        assert_eq!(stream.frames_to_avoid(0.9), Some(5000 + 5000 / 16));
    }

    #[test]
    fn few_samples_say_nothing() {
        assert_eq!(statistics(1000, (0..15).map(|_| 100)).frames_to_avoid(0.9), None);
        assert_eq!(Snapshot::empty().frames_to_avoid(0.9), None);
    }
}
