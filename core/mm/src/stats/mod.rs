//! What happened, counted: vmstat names where the kernel has one.
//!
//! ```text
//! Stats -- Shard per CPU: counters                            --- sums ---> Snapshot <---> words
//!                      \- latency of minor and of major faults
//! ```
//! No locks, and no cache line that CPUs share: relaxed adds to the CPU's own. So that no fault of
//! hundreds of CPUs waits for a line, reading costs a walk over all of them. A snapshot is not one
//! instant: counters that belong together may differ by what was under way. `words` is the form in
//! which a snapshot crosses to another process.

mod counter;
mod histogram;

pub use counter::{COUNTERS, Counter};
use histogram::Histogram;
pub use histogram::HistogramSnapshot;

use highwater_units::{CpuId, Nanos};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// First word of a snapshot: "HWSTAT" and a version; changed with any change of layout.
const MAGIC: u64 = 0x4857_5354_4154_0001;

/// What one CPU counts, on cache lines of its own.
#[repr(align(128))]
struct Shard {
    counters: [AtomicU64; COUNTERS],
    minor: Histogram,
    major: Histogram,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            minor: Histogram::new(),
            major: Histogram::new(),
        }
    }
}

/// All statistics of one manager.
pub struct Stats(Vec<Shard>);

impl Stats {
    /// Zeros, for `cpus` CPUs.
    pub fn new(cpus: usize) -> Stats {
        Stats((0..cpus).map(|_| Shard::new()).collect())
    }

    fn shard(&self, cpu: CpuId) -> &Shard {
        &self.0[usize::from(cpu.0)]
    }

    /// Adds to a counter, on the shard of `cpu`.
    pub fn add(&self, cpu: CpuId, counter: Counter, count: u64) {
        self.shard(cpu).counters[counter as usize].fetch_add(count, Relaxed);
    }

    /// Takes from a counter what this or another CPU added: on the shard of `cpu`, which may fall
    /// below zero, for only the sum is read.
    pub fn subtract(&self, cpu: CpuId, counter: Counter, count: u64) {
        self.shard(cpu).counters[counter as usize].fetch_sub(count, Relaxed);
    }

    /// Records how long a minor fault took, on the shard of `cpu`.
    pub fn minor_fault(&self, cpu: CpuId, took: Nanos) {
        self.shard(cpu).minor.record(took);
    }

    /// Records how long a major fault (with a device read) took, on the shard of `cpu`.
    pub fn major_fault(&self, cpu: CpuId, took: Nanos) {
        self.shard(cpu).major.record(took);
    }

    /// The sum of one counter over all CPUs.
    pub fn get(&self, counter: Counter) -> u64 {
        let values = self.0.iter().map(|shard| shard.counters[counter as usize].load(Relaxed));
        let sum = values.fold(0, u64::wrapping_add);
        // What was added on a CPU after it was looked at may be subtracted on one before.
        (sum as i64).max(0) as u64
    }

    /// Everything, as of about now.
    pub fn snapshot(&self) -> Snapshot {
        let mut counters = [0; COUNTERS];
        for counter in Counter::ALL {
            counters[counter as usize] = self.get(counter);
        }
        let mut sums = Snapshot { counters, ..Snapshot::empty() };
        for shard in &self.0 {
            shard.minor.add_to(&mut sums.minor);
            shard.major.add_to(&mut sums.major);
        }
        sums
    }
}

/// The statistics at one time, or their sum over processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// By [`Counter`] as index.
    pub counters: [u64; COUNTERS],
    /// Latency of minor faults: from the message of the fault to the page being mapped.
    pub minor: HistogramSnapshot,
    /// Latency of major faults.
    pub major: HistogramSnapshot,
}

impl Snapshot {
    /// Words in [`Snapshot::to_words`].
    pub const WORDS: usize = 1 + COUNTERS + 2 * HistogramSnapshot::WORDS;

    /// All zero.
    pub fn empty() -> Snapshot {
        let none = HistogramSnapshot::empty();
        Snapshot { counters: [0; COUNTERS], minor: none.clone(), major: none }
    }

    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Adds another process's statistics; gauges of peaks take the larger one.
    pub fn merge(&mut self, other: &Snapshot) {
        for counter in Counter::ALL {
            let (mine, theirs) = (&mut self.counters[counter as usize], other.get(counter));
            *mine = if counter.is_peak() { (*mine).max(theirs) } else { *mine + theirs };
        }
        self.minor.merge(&other.minor);
        self.major.merge(&other.major);
    }

    /// The latency of all faults, minor and major together.
    pub fn faults(&self) -> HistogramSnapshot {
        let mut all = self.minor.clone();
        all.merge(&self.major);
        all
    }

    /// As [`Snapshot::WORDS`] words, for a file or shared memory.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![MAGIC];
        words.extend(self.counters);
        words.extend(self.minor.words());
        words.extend(self.major.words());
        words
    }

    /// The inverse; `None` if the words are from another version or torn off.
    pub fn from_words(words: &[u64]) -> Option<Snapshot> {
        let words = words.get(..Self::WORDS)?;
        let (magic, rest) = words.split_first()?;
        let (counters, rest) = rest.split_at(COUNTERS);
        let (minor, major) = rest.split_at(HistogramSnapshot::WORDS);
        (*magic == MAGIC).then(|| Snapshot {
            counters: counters.try_into().expect("split at COUNTERS"),
            minor: HistogramSnapshot::from_words(minor),
            major: HistogramSnapshot::from_words(major),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_survives_its_words_and_sums_over_processes() {
        let stats = Stats::new(2);
        stats.add(CpuId(0), Counter::PgFault, 3);
        stats.add(CpuId(1), Counter::PgFault, 4);
        stats.add(CpuId(1), Counter::ResidentPeak, 9);
        stats.major_fault(CpuId(0), Nanos(1000));
        let one = stats.snapshot();
        assert_eq!(Snapshot::from_words(&one.to_words()), Some(one.clone()));
        assert_eq!(Snapshot::from_words(&one.to_words()[1..]), None);
        let mut sum = one.clone();
        sum.merge(&one);
        assert_eq!(sum.get(Counter::PgFault), 14);
        assert_eq!(sum.get(Counter::ResidentPeak), 9);
        assert_eq!(sum.faults().count(), 2);
    }

    #[test]
    fn what_one_cpu_added_another_may_subtract() {
        let stats = Stats::new(3);
        stats.add(CpuId(2), Counter::Resident, 5);
        stats.subtract(CpuId(0), Counter::Resident, 4);
        assert_eq!(stats.get(Counter::Resident), 1);
        stats.subtract(CpuId(0), Counter::Resident, 2);
        assert_eq!(stats.get(Counter::Resident), 0);
    }

    #[test]
    fn latencies_sum_over_cpus() {
        let stats = Stats::new(3);
        (0..3).for_each(|cpu| stats.minor_fault(CpuId(cpu), Nanos(100)));
        stats.major_fault(CpuId(1), Nanos(9000));
        let now = stats.snapshot();
        assert_eq!((now.minor.count(), now.major.count()), (3, 1));
        assert_eq!((now.minor.mean(), now.major.mean()), (Nanos(100), Nanos(9000)));
    }
}
