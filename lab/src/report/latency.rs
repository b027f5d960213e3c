//! How long accesses took, in powers of two:
//!
//! ```text
//!    128 ns        256 ns     61.20%  ##############################
//!   16.4 us       32.8 us     30.11%  ###############
//! ```

use hdrhistogram::Histogram;
use highwater_command::Unit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Columns of the longest bar.
const BAR: f64 = 40.0;

/// Latencies from a power of two to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// From this many nanoseconds on.
    pub from_ns: u64,
    /// Below this many.
    pub below_ns: u64,
    /// Accesses whose latency lies in the bucket.
    pub count: u64,
}

/// The buckets from the first that is not empty to the last.
pub fn buckets(latency: &Histogram<u64>, nanos_per_tick: f64) -> Vec<LatencyBucket> {
    let mut counts = BTreeMap::new();
    for step in latency.iter_recorded() {
        let nanos = (step.value_iterated_to() as f64 * nanos_per_tick) as u64;
        *counts.entry(nanos.max(1).ilog2()).or_insert(0) += step.count_at_value();
    }
    let bounds = counts.first_key_value().zip(counts.last_key_value());
    let Some(((first, _), (last, _))) = bounds else { return Vec::new() };
    let bucket = |exponent| LatencyBucket {
        from_ns: 1_u64 << exponent,
        below_ns: 2_u64 << exponent,
        count: counts.get(&exponent).copied().unwrap_or(0),
    };
    (*first..=*last).map(bucket).collect()
}

/// A line for each bucket, with a bar.
pub fn bars(buckets: &[LatencyBucket]) -> String {
    let all: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let mut text = String::new();
    for LatencyBucket { from_ns, below_ns, count } in buckets {
        let [from, below] = [from_ns, below_ns].map(|ns| Unit::Time.show(Some(*ns as f64)));
        let share = Unit::Share.show(Some(*count as f64 / all as f64));
        let bar = "#".repeat((*count as f64 / most as f64 * BAR).round() as usize);
        let line = format!("{from:>9} {below:>13} {share:>10}  {bar}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: &[(u64, u64)]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 36, 2).expect("bounds");
        values.iter().for_each(|(value, n)| histogram.record_n(*value, *n).expect("in bounds"));
        histogram
    }

    #[test]
    fn latencies_lie_between_their_powers_of_two() {
        let found = buckets(&histogram(&[(200, 10), (300, 5), (1100, 1)]), 0.5);
        let found: Vec<_> = found.iter().map(|b| (b.from_ns, b.below_ns, b.count)).collect();
        assert_eq!(found, [(64, 128, 10), (128, 256, 5), (256, 512, 0), (512, 1024, 1)]);
        assert_eq!(buckets(&histogram(&[]), 1.0), []);
    }

    #[test]
    fn the_longest_bar_is_the_fullest_bucket() {
        let text = bars(&buckets(&histogram(&[(70, 3), (1000, 1)]), 1.0));
        let lengths = |line: &str| line.chars().filter(|c| *c == '#').count();
        assert_eq!(text.lines().map(lengths).collect::<Vec<_>>(), [40, 0, 0, 13]);
        assert!(text.starts_with("  64.0 ns        128 ns     75.00%  ##"), "{text}");
    }
}
