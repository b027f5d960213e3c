//! What happened, counted: vmstat names where the kernel has one.
//!
//! ```text
//! Stats --- one shard of counters per CPU, relaxed adds ---> Snapshot (sums) <---> words
//!       \-- fault latency: one histogram for minor, one for major faults
//! ```
//! No locks. A snapshot is not one instant: counters that belong together may differ by what was
//! under way. `words` is the form in which a snapshot crosses to another process.

mod counter;
mod histogram;

pub use counter::{COUNTERS, Counter};
pub use histogram::{Histogram, HistogramSnapshot};

use highwater_units::{CpuId, Nanos};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// First word of a snapshot: "HWSTAT" and a version; changed with any change of layout.
const MAGIC: u64 = 0x4857_5354_4154_0001;

/// One CPU's counters, on cache lines of their own.
#[repr(align(128))]
struct Shard([AtomicU64; COUNTERS]);

/// All statistics of one manager.
pub struct Stats {
    shards: Vec<Shard>,
    minor: Histogram,
    major: Histogram,
}

impl Stats {
    /// Zeros, for `cpus` CPUs.
    pub fn new(cpus: usize) -> Stats {
        let shard = |_| Shard([const { AtomicU64::new(0) }; COUNTERS]);
        Stats {
            shards: (0..cpus).map(shard).collect(),
            minor: Histogram::new(),
            major: Histogram::new(),
        }
    }

    /// Adds to a counter, on the shard of `cpu`.
    pub fn add(&self, cpu: CpuId, counter: Counter, count: u64) {
        self.shards[usize::from(cpu.0)].0[counter as usize].fetch_add(count, Relaxed);
    }

    /// Records how long a minor fault took.
    pub fn minor_fault(&self, took: Nanos) {
        self.minor.record(took);
    }

    /// Records how long a major fault (with a device read) took.
    pub fn major_fault(&self, took: Nanos) {
        self.major.record(took);
    }

    /// The sum of one counter over all CPUs.
    pub fn get(&self, counter: Counter) -> u64 {
        self.shards.iter().map(|shard| shard.0[counter as usize].load(Relaxed)).sum()
    }

    /// Everything, as of about now.
    pub fn snapshot(&self) -> Snapshot {
        let mut counters = [0; COUNTERS];
        for counter in Counter::ALL {
            counters[counter as usize] = self.get(counter);
        }
        Snapshot { counters, minor: self.minor.snapshot(), major: self.major.snapshot() }
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
        stats.major_fault(Nanos(1000));
        let one = stats.snapshot();
        assert_eq!(Snapshot::from_words(&one.to_words()), Some(one.clone()));
        assert_eq!(Snapshot::from_words(&one.to_words()[1..]), None);
        let mut sum = one.clone();
        sum.merge(&one);
        assert_eq!(sum.get(Counter::PgFault), 14);
        assert_eq!(sum.get(Counter::ResidentPeak), 9);
        assert_eq!(sum.faults().count(), 2);
    }
}
