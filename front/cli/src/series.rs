//! The figures of a run over time: the part `series` of the report. A sample covers an interval of
//! one or more looks (`look.rs`).
//!
//! ```text
//! Look --- record: increases since the look before ---> Sample --- push ---> Series
//!                                           full: pairs of samples become one
//! ```
//! A run may take days, so the number of samples is bounded, and not the length of their intervals.
//! Locks: none.

use crate::look::Look;
use highwater_mm::stats::Counter;
use highwater_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most samples.
const SAMPLES_MAX: usize = 600;

/// An interval of the run. Memory and processes: the largest value seen in it. Events: their number
/// in it, of all processes together, those included that have ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sample {
    /// End of the interval, in seconds since the start of the run; it begins where the one before
    /// ends.
    pub(crate) end_seconds: f64,
    /// Budget of all processes together, or of each.
    pub(crate) budget_bytes: u64,
    /// Pages in memory.
    pub(crate) resident_bytes: u64,
    /// Memory that counts towards the budget and cannot be paged; 0 where the budget is for pages
    /// alone.
    pub(crate) unpaged_bytes: u64,
    /// Swap slots in use.
    pub(crate) swap_used_bytes: u64,
    /// Processes that are served.
    pub(crate) processes: u64,
    /// Faults served from memory.
    pub(crate) faults_minor: u64,
    /// Faults that waited for a device read.
    pub(crate) faults_major: u64,
    /// Read from swap.
    pub(crate) swapped_in_bytes: u64,
    /// Written to swap.
    pub(crate) swapped_out_bytes: u64,
    /// Memory that kswapd freed.
    pub(crate) reclaimed_kswapd_bytes: u64,
    /// Memory that threads of the program freed themselves.
    pub(crate) reclaimed_direct_bytes: u64,
    /// Time in which a thread waited for memory or swap, summed over processes.
    pub(crate) stalled_some_seconds: f64,
    /// Time in which all threads that could have run waited, summed over processes.
    pub(crate) stalled_full_seconds: f64,
    /// Faults by latency: the key is a power of two of nanoseconds, the value counts faults that
    /// took as long, but less than twice as long. Key 0: less than 8 ns.
    pub(crate) fault_latency_ns: BTreeMap<u64, u64>,
}

impl Sample {
    /// Extends the interval by the next one.
    fn merge(&mut self, next: &Sample) {
        self.end_seconds = next.end_seconds;
        self.budget_bytes = self.budget_bytes.max(next.budget_bytes);
        self.resident_bytes = self.resident_bytes.max(next.resident_bytes);
        self.unpaged_bytes = self.unpaged_bytes.max(next.unpaged_bytes);
        self.swap_used_bytes = self.swap_used_bytes.max(next.swap_used_bytes);
        self.processes = self.processes.max(next.processes);
        self.faults_minor += next.faults_minor;
        self.faults_major += next.faults_major;
        self.swapped_in_bytes += next.swapped_in_bytes;
        self.swapped_out_bytes += next.swapped_out_bytes;
        self.reclaimed_kswapd_bytes += next.reclaimed_kswapd_bytes;
        self.reclaimed_direct_bytes += next.reclaimed_direct_bytes;
        self.stalled_some_seconds += next.stalled_some_seconds;
        self.stalled_full_seconds += next.stalled_full_seconds;
        for (least, faults) in &next.fault_latency_ns {
            *self.fault_latency_ns.entry(*least).or_default() += faults;
        }
    }
}

/// Samples in the order of time. All but the last one cover equal numbers of looks.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    samples: Vec<Sample>,
    /// How many looks a sample covers.
    looks: usize,
    /// How many looks the last sample covers so far.
    in_last: usize,
    counted: Counted,
}

impl Series {
    /// The empty series of a run that begins.
    pub(crate) fn new() -> Series {
        Series { samples: Vec::new(), looks: 1, in_last: 0, counted: Counted::default() }
    }

    /// The samples.
    pub(crate) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }

    /// Adds a look that was taken `at` after the start.
    pub(crate) fn record(&mut self, at: Duration, look: &Look) {
        let sample = self.counted.sample(at, look);
        self.push(sample);
    }

    fn push(&mut self, sample: Sample) {
        match self.samples.last_mut() {
            Some(last) if self.in_last < self.looks => {
                last.merge(&sample);
                self.in_last += 1;
            }
            _ => {
                if self.samples.len() == SAMPLES_MAX {
                    self.samples = in_pairs(&self.samples);
                    self.looks *= 2;
                }
                self.samples.push(sample);
                self.in_last = 1;
            }
        }
    }
}

fn in_pairs(samples: &[Sample]) -> Vec<Sample> {
    samples.chunks(2).map(merged).collect()
}

/// Several successive samples as one.
fn merged(samples: &[Sample]) -> Sample {
    let mut all = Sample::default();
    samples.iter().for_each(|sample| all.merge(sample));
    all
}

/// The samples in at most `most` groups of equal size, each group merged into one sample.
pub(crate) fn grouped(samples: &[Sample], most: usize) -> Vec<Sample> {
    samples.chunks(samples.len().div_ceil(most).max(1)).map(merged).collect()
}

const EVENTS: [Counter; 8] = [
    Counter::PgFault,
    Counter::PgMajFault,
    Counter::PswpIn,
    Counter::PswpOut,
    Counter::PgStealKswapd,
    Counter::PgStealDirect,
    Counter::PsiSomeMicros,
    Counter::PsiFullMicros,
];

/// The events that the samples so far have counted. If the figures of a process cannot be read at
/// one look, the sums fall there; when the process is back in the next look, its events must not
/// count twice.
#[derive(Clone, Debug, Default)]
struct Counted {
    events: [u64; EVENTS.len()],
    latency: BTreeMap<u64, u64>,
}

impl Counted {
    /// The sample of one look: the events that have not been counted yet, and the memory now.
    fn sample(&mut self, at: Duration, look: &Look) -> Sample {
        let mut increases = [0; EVENTS.len()];
        for ((counted, counter), increase) in self.events.iter_mut().zip(EVENTS).zip(&mut increases)
        {
            *increase = gain(counted, look.all.get(counter));
        }
        let [faults, faults_major, pages_in, pages_out, kswapd, direct, some, full] = increases;
        let bytes = |pages| Bytes::of_pages(pages).0;
        Sample {
            end_seconds: at.as_secs_f64(),
            budget_bytes: look.budget.0,
            resident_bytes: look.resident().0,
            unpaged_bytes: look.unpaged.0,
            swap_used_bytes: look.swap_used().0,
            processes: look.living.len() as u64,
            faults_minor: faults.saturating_sub(faults_major),
            faults_major,
            swapped_in_bytes: bytes(pages_in),
            swapped_out_bytes: bytes(pages_out),
            reclaimed_kswapd_bytes: bytes(kswapd),
            reclaimed_direct_bytes: bytes(direct),
            stalled_some_seconds: some as f64 / 1e6,
            stalled_full_seconds: full as f64 / 1e6,
            fault_latency_ns: self.latencies(look),
        }
    }

    fn latencies(&mut self, look: &Look) -> BTreeMap<u64, u64> {
        let faults = look.all.faults();
        let powers = faults.by_power_of_two().filter(|(_, count)| *count > 0);
        let gains = powers
            .map(|(least, count)| (least.0, gain(self.latency.entry(least.0).or_default(), count)));
        gains.filter(|(_, gain)| *gain > 0).collect()
    }
}

/// The excess of `now` over the events counted, which is added to them.
fn gain(counted: &mut u64, now: u64) -> u64 {
    let gain = now.saturating_sub(*counted);
    *counted += gain;
    gain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::look;
    use highwater_mm::stats::Stats;
    use highwater_platform::testing::seeds;
    use highwater_units::{CpuId, Nanos};

    /// A sample made up from its number and random bits.
    fn drawn(number: u64, random: u64) -> Sample {
        Sample {
            end_seconds: number as f64 / 4.0,
            budget_bytes: random % 7,
            resident_bytes: random % 1009,
            faults_minor: random % 13,
            stalled_some_seconds: (random % 5) as f64,
            fault_latency_ns: [(1 << (random % 20), random % 3 + 1)].into(),
            ..Sample::default()
        }
    }

    /// The naive model: all looks, in groups of the length that makes them fit.
    fn model(looks: &[Sample]) -> Vec<Sample> {
        let mut length = 1;
        while looks.len().div_ceil(length) > SAMPLES_MAX {
            length *= 2;
        }
        looks.chunks(length).map(merged).collect()
    }

    #[test]
    fn a_full_series_halves_its_resolution_and_loses_no_event() {
        seeds(3, |seed| {
            let (mut series, mut looks, mut random) = (Series::new(), Vec::new(), seed | 1);
            for number in 1..=5000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                let sample = drawn(number, random >> 33);
                looks.push(sample.clone());
                series.push(sample);
                if [1, 599, 600, 601, 602, 1199, 1200, 1201, 2401, 4999].contains(&number) {
                    assert_eq!(&series.samples[..], model(&looks), "seed {seed}, look {number}");
                }
            }
            assert_eq!(grouped(&series.samples, 10_000), series.samples[..]);
            let few = grouped(&series.samples, 50);
            assert!(few.len() <= 50 && merged(&few) == merged(&looks), "seed {seed}");
        });
    }

    #[test]
    fn a_sample_has_the_increase_and_the_memory_of_now() {
        let stats = Stats::new(1);
        let mut series = Series::new();
        let mut record = |counts: &[(Counter, u64)], seconds| {
            counts.iter().for_each(|(counter, count)| stats.add(CpuId(0), *counter, *count));
            stats.major_fault(CpuId(0), Nanos(1500));
            series.record(Duration::from_secs(seconds), &look(7, &stats.snapshot()));
        };
        let counts = [(Counter::PgFault, 10), (Counter::PgMajFault, 4), (Counter::Resident, 2)];
        record(&counts, 1);
        record(&[(Counter::PgFault, 5), (Counter::PswpOut, 3), (Counter::Resident, 6)], 2);
        let [first, second] = &series.samples[..] else { panic!("two samples") };
        assert_eq!((first.faults_minor, first.faults_major, first.resident_bytes), (6, 4, 8192));
        assert_eq!((second.faults_minor, second.faults_major), (5, 0));
        assert_eq!((second.swapped_out_bytes, second.resident_bytes), (12_288, 32_768));
        assert_eq!((second.end_seconds, second.processes), (2.0, 1));
        assert_eq!(second.fault_latency_ns, [(1024, 1)].into());
    }

    #[test]
    fn figures_that_are_missing_at_one_look_count_once() {
        let stats = Stats::new(1);
        stats.add(CpuId(0), Counter::PgFault, 10);
        stats.minor_fault(CpuId(0), Nanos(100));
        let (there, gone) = (look(7, &stats.snapshot()), look(7, &Stats::new(1).snapshot()));
        let mut series = Series::new();
        for look in [&there, &gone, &there] {
            series.record(Duration::from_secs(1), look);
        }
        let faults: Vec<u64> = series.samples.iter().map(|it| it.faults_minor).collect();
        assert_eq!(faults, [10, 0, 0]);
        assert_eq!(merged(&series.samples).fault_latency_ns, [(64, 1)].into());
    }
}
