//! A histogram of latencies or distances, with log-linear buckets: 8 per power of two, at most
//! 12.5% wide.
//!
//! It is not the HDR library's, because recording must be two atomic adds, by any thread and in a
//! signal handler.

use highwater_units::Nanos;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// log2 of the buckets per power of two.
const SUB_BITS: u32 = 3;
/// Values up to 2^40 ns (18 minutes); larger ones go into the last bucket.
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) << SUB_BITS;

/// A histogram that the threads on one CPU record into.
pub(super) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }

    /// Counts one latency.
    pub(super) fn record(&self, value: Nanos) {
        self.record_value(value.0);
    }

    /// Counts one value.
    pub(super) fn record_value(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Adds the present counts to `sum`.
    pub(super) fn add_to(&self, sum: &mut HistogramSnapshot) {
        for (total, count) in sum.buckets.iter_mut().zip(&self.buckets) {
            *total += count.load(Relaxed);
        }
        sum.sum += self.sum.load(Relaxed);
    }
}

/// The bucket of a value: values below 8 have one each, then 8 per power of two.
fn bucket_of(value: u64) -> usize {
    let shift = (64 - SUB_BITS - 1).saturating_sub(value.leading_zeros());
    let bucket = (shift << SUB_BITS) as usize + (value >> shift) as usize;
    bucket.min(BUCKETS - 1)
}

/// The smallest value of a bucket.
fn least_of(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1) as u32;
    ((bucket as u64) - (u64::from(shift) << SUB_BITS)) << shift
}

/// The counts of a histogram, or of several, summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: Vec<u64>,
    sum: u64,
}

impl HistogramSnapshot {
    pub(super) const WORDS: usize = BUCKETS + 1;

    pub(super) fn empty() -> HistogramSnapshot {
        HistogramSnapshot { buckets: vec![0; BUCKETS], sum: 0 }
    }

    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().copied().chain([self.sum])
    }

    pub(super) fn from_words(words: &[u64]) -> HistogramSnapshot {
        HistogramSnapshot { buckets: words[..BUCKETS].to_vec(), sum: words[BUCKETS] }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum += other.sum;
    }

    /// The difference to `earlier`, a snapshot of the same histogram.
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let gained = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now - then);
        HistogramSnapshot { buckets: gained.collect(), sum: self.sum - earlier.sum }
    }

    /// The number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The least value and the count of each power of two; the first one begins at 0.
    pub fn by_power_of_two(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        let powers = self.buckets.chunks_exact(1 << SUB_BITS).enumerate();
        powers.map(|(power, buckets)| (Nanos(least_of(power << SUB_BITS)), buckets.iter().sum()))
    }

    /// The least value, the width and the count of each bucket, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let counts = self.buckets.iter().enumerate();
        counts.map(|(at, count)| (least_of(at), least_of(at + 1) - least_of(at), *count))
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> Nanos {
        Nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// The value that a share (0 to 1) of all values do not exceed, rounded up to the end of its
    /// bucket; 0 without values.
    pub fn quantile(&self, share: f64) -> Nanos {
        Nanos(self.value_at(share))
    }

    /// [`HistogramSnapshot::quantile`] of values that are not latencies.
    pub fn value_at(&self, share: f64) -> u64 {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        reached.map_or(0, |bucket| least_of(bucket + 1) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (0..5000).chain((13..40).map(|bits| (1 << bits) + 7)) {
            let bucket = bucket_of(value);
            assert!(least_of(bucket) <= value && value < least_of(bucket + 1), "{value}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let histogram = Histogram::new();
        (1..=1000).for_each(|value| histogram.record(Nanos(value * 100)));
        let mut snapshot = HistogramSnapshot::empty();
        histogram.add_to(&mut snapshot);
        for (share, exact) in [(0.5, 50_000.0), (0.99, 99_000.0)] {
            let found = snapshot.quantile(share).0 as f64;
            assert!((1.0..1.13).contains(&(found / exact)), "{share}: {found}");
        }
        assert_eq!(snapshot.mean(), Nanos(50_050));
        let powers: Vec<_> = snapshot.by_power_of_two().filter(|(_, count)| *count > 0).collect();
        assert_eq!((powers[0], powers[1]), ((Nanos(64), 1), (Nanos(128), 1)));
        assert_eq!(powers.last(), Some(&(Nanos(65_536), 345)));
        assert_eq!(snapshot.by_power_of_two().next(), Some((Nanos(0), 0)));
        assert_eq!(HistogramSnapshot::empty().quantile(0.5), Nanos(0));
    }
}
