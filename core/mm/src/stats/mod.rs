//! Counters, latency histograms and pressure of a manager.
//!
//! ```text
//! Stats -- Shard per CPU: counters                            --- sums ---> Snapshot <---> words
//!                      |- latency of minor and of major faults, of direct reclaims
//!                      |- reuse distances of pages
//!                      \- StallClock                      --- sums ---> Averages (pressure)
//! ```
//! Counting is a relaxed add to a shard of the CPU: faults of hundreds of CPUs share no cache line.
//! Reading sums over all shards. A snapshot is not of one instant: counters that belong together
//! may differ by the events in progress. `words` is the form in which a snapshot crosses to another
//! process.
//!
//! Locking: one lock for the averages, taken about every 2 s, and one for the last shortage; both
//! are taken alone.

mod counter;
mod histogram;
mod pressure;
mod reuse;
mod shortage;

pub use counter::{COUNTERS, Counter};
use histogram::Histogram;
pub use histogram::HistogramSnapshot;
pub use pressure::Pressure;
pub(crate) use pressure::{Reading, Stalled};
pub use reuse::REUSE_SAMPLED;
pub use shortage::Shortage;

use highwater_units::{CpuId, Nanos};
use pressure::{Averages, StallClock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The first word of a snapshot; it differs between layouts.
const MAGIC: u64 = 0x4857_5354_4154_0003 ^ Counter::NAMES_HASH;

/// The counters of one CPU, on cache lines of their own.
#[repr(align(128))]
struct Shard {
    counters: [AtomicU64; COUNTERS],
    minor: Histogram,
    major: Histogram,
    reclaims: Histogram,
    reuse: Histogram,
    stalls: StallClock,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            minor: Histogram::new(),
            major: Histogram::new(),
            reclaims: Histogram::new(),
            reuse: Histogram::new(),
            stalls: StallClock::new(),
        }
    }
}

/// All statistics of one manager.
pub struct Stats {
    shards: Vec<Shard>,
    averages: Mutex<Averages>,
    /// When the averages are due for an update, ns; read without the lock.
    due: AtomicU64,
    shortage: Mutex<Option<Shortage>>,
}

impl Stats {
    /// Creates statistics of zeros for `cpus` CPUs.
    pub fn new(cpus: usize) -> Stats {
        let shards = (0..cpus).map(|_| Shard::new()).collect();
        let (averages, due) = (Mutex::default(), AtomicU64::new(u64::MAX));
        Stats { shards, averages, due, shortage: Mutex::default() }
    }

    fn shard(&self, cpu: CpuId) -> &Shard {
        &self.shards[usize::from(cpu.0)]
    }

    /// Adds to a counter on the shard of `cpu`.
    pub fn add(&self, cpu: CpuId, counter: Counter, count: u64) {
        self.shard(cpu).counters[counter as usize].fetch_add(count, Relaxed);
    }

    /// Subtracts from a counter on the shard of `cpu`. Another CPU may have added the count, so a
    /// shard may fall below zero; only the sum is read.
    pub fn subtract(&self, cpu: CpuId, counter: Counter, count: u64) {
        self.shard(cpu).counters[counter as usize].fetch_sub(count, Relaxed);
    }

    /// Records the latency of a minor fault.
    pub fn minor_fault(&self, cpu: CpuId, took: Nanos) {
        self.shard(cpu).minor.record(took);
    }

    /// Records the latency of a major fault, which read from a device.
    pub fn major_fault(&self, cpu: CpuId, took: Nanos) {
        self.shard(cpu).major.record(took);
    }

    /// Records the duration of a direct reclaim.
    pub fn direct_reclaim(&self, cpu: CpuId, took: Nanos) {
        self.shard(cpu).reclaims.record(took);
    }

    /// Records that a page was read, and the number of pages evicted since the page was evicted.
    pub(crate) fn reuse(&self, cpu: CpuId, distance: u64) {
        self.shard(cpu).reuse.record_value(distance);
    }

    /// Records that a thread on a CPU begins to stall for lack of memory.
    pub(crate) fn stall_begins(&self, cpu: CpuId, now: Nanos) {
        self.shard(cpu).stalls.begin(now);
    }

    /// Records that a thread's stall ended: it began on `cpu`, and used `reclaiming` of CPU time.
    pub(crate) fn stall_ends(&self, cpu: CpuId, now: Nanos, reclaiming: Nanos) {
        self.shard(cpu).stalls.end(now, reclaiming);
    }

    /// Records a failed allocation.
    pub(crate) fn note_shortage(&self, shortage: Shortage) {
        *self.shortage.lock().expect("no panic") = Some(shortage);
    }

    /// Whether writes failed or were refused at the last failed allocation, and none has succeeded
    /// since.
    pub(crate) fn writes_failed(&self, written: u64) -> bool {
        let last = self.shortage.lock().expect("no panic");
        last.as_ref().is_some_and(|shortage| shortage.persists(written))
    }

    /// The state of memory at the last failed allocation, if one failed.
    pub fn shortage(&self) -> Option<Shortage> {
        self.shortage.lock().expect("no panic").clone()
    }

    /// The stall time of all CPUs so far.
    pub(crate) fn stalled(&self, now: Nanos) -> Stalled {
        let mut sum = Stalled::default();
        self.shards.iter().for_each(|shard| shard.stalls.add_to(&mut sum, now));
        sum
    }

    /// Begins to average pressure.
    pub(crate) fn begin_pressure(&self, first: Reading) {
        let averages = Averages::new(first);
        self.due.store(averages.due().0, Relaxed);
        *self.averages.lock().expect("no panic") = averages;
    }

    /// Whether the last update of the averages was at least 2 s ago.
    pub(crate) fn pressure_is_due(&self, now: Nanos) -> bool {
        now.0 >= self.due.load(Relaxed)
    }

    /// Updates the averages, unless another thread did.
    pub(crate) fn update_pressure(&self, reading: Reading) {
        let mut averages = self.averages.lock().expect("no panic");
        if reading.now >= averages.due() {
            averages.update(reading);
            self.due.store(averages.due().0, Relaxed);
        }
    }

    /// Pressure of kinds some and full. Averages are those of the last update; totals are current.
    pub(crate) fn pressures(&self, reading: &Reading) -> [Pressure; 2] {
        self.averages.lock().expect("no panic").pressures(reading)
    }

    /// The sum of one counter over all CPUs.
    pub fn get(&self, counter: Counter) -> u64 {
        let values = self.shards.iter().map(|shard| shard.counters[counter as usize].load(Relaxed));
        let sum = values.fold(0, u64::wrapping_add);
        // A CPU may add after its shard was read, and a CPU read later may subtract the same.
        (sum as i64).max(0) as u64
    }

    /// The present values of everything.
    pub fn snapshot(&self) -> Snapshot {
        let mut counters = [0; COUNTERS];
        for counter in Counter::ALL {
            counters[counter as usize] = self.get(counter);
        }
        let mut sums = Snapshot { counters, ..Snapshot::empty() };
        for shard in &self.shards {
            shard.minor.add_to(&mut sums.minor);
            shard.major.add_to(&mut sums.major);
            shard.reclaims.add_to(&mut sums.reclaims);
            shard.reuse.add_to(&mut sums.reuse);
        }
        sums
    }
}

/// The statistics at one time, or their sum over processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Values, with [`Counter`] as index.
    pub counters: [u64; COUNTERS],
    /// Latency of minor faults, from the start of the manager's work until the page is mapped.
    pub minor: HistogramSnapshot,
    /// Latency of major faults.
    pub major: HistogramSnapshot,
    /// Durations of direct reclaims.
    pub reclaims: HistogramSnapshot,
    /// For a sample of the pages read from swap: the number of pages evicted since each of them was
    /// evicted.
    pub reuse: HistogramSnapshot,
}

impl Snapshot {
    /// The number of words in [`Snapshot::to_words`].
    pub const WORDS: usize = 1 + COUNTERS + 4 * HistogramSnapshot::WORDS;

    /// The index of a counter in [`Snapshot::to_words`].
    pub const fn word_of(counter: Counter) -> usize {
        1 + counter as usize
    }

    /// A snapshot of zeros.
    pub fn empty() -> Snapshot {
        let none = HistogramSnapshot::empty();
        Snapshot {
            counters: [0; COUNTERS],
            minor: none.clone(),
            major: none.clone(),
            reclaims: none.clone(),
            reuse: none,
        }
    }

    /// The value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Adds the statistics of another process; of peaks, keeps the larger one.
    pub fn merge(&mut self, other: &Snapshot) {
        for counter in Counter::ALL {
            let (mine, theirs) = (&mut self.counters[counter as usize], other.get(counter));
            *mine = if counter.is_peak() { (*mine).max(theirs) } else { *mine + theirs };
        }
        self.minor.merge(&other.minor);
        self.major.merge(&other.major);
        self.reclaims.merge(&other.reclaims);
        self.reuse.merge(&other.reuse);
    }

    /// The latency of all faults, minor and major.
    pub fn faults(&self) -> HistogramSnapshot {
        let mut all = self.minor.clone();
        all.merge(&self.major);
        all
    }

    /// Encodes the snapshot in [`Snapshot::WORDS`] words, for a file or shared memory.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![MAGIC];
        words.extend(self.counters);
        words.extend(self.minor.words());
        words.extend(self.major.words());
        words.extend(self.reclaims.words());
        words.extend(self.reuse.words());
        words
    }

    /// Decodes a snapshot; `None` if the words are too few, or from a version with another layout.
    pub fn from_words(words: &[u64]) -> Option<Snapshot> {
        let words = words.get(..Self::WORDS)?;
        let (magic, rest) = words.split_first()?;
        let (counters, rest) = rest.split_at(COUNTERS);
        let (minor, rest) = rest.split_at(HistogramSnapshot::WORDS);
        let (major, rest) = rest.split_at(HistogramSnapshot::WORDS);
        let (reclaims, reuse) = rest.split_at(HistogramSnapshot::WORDS);
        (*magic == MAGIC).then(|| Snapshot {
            counters: counters.try_into().expect("split at COUNTERS"),
            minor: HistogramSnapshot::from_words(minor),
            major: HistogramSnapshot::from_words(major),
            reclaims: HistogramSnapshot::from_words(reclaims),
            reuse: HistogramSnapshot::from_words(reuse),
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
        stats.direct_reclaim(CpuId(1), Nanos(9));
        stats.reuse(CpuId(0), 70_000);
        let one = stats.snapshot();
        assert_eq!(Snapshot::from_words(&one.to_words()), Some(one.clone()));
        assert_eq!(Snapshot::from_words(&one.to_words()[1..]), None);
        let mut sum = one.clone();
        sum.merge(&one);
        assert_eq!(sum.get(Counter::PgFault), 14);
        assert_eq!(sum.get(Counter::ResidentPeak), 9);
        assert_eq!((sum.faults().count(), sum.reclaims.count(), sum.reuse.count()), (2, 2, 2));
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
