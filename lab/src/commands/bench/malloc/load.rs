//! The load program of `bench malloc`: equal calls of malloc and free under every allocator.
//!
//! ```text
//! churn               one thread       replaces objects of its array at random
//! larson              threads          as churn; then new threads take over each other's arrays
//! mixed               threads          as churn, 16 bytes to 32 KiB
//! producer-consumer   pairs            one makes objects, the other frees the oldest
//! ```
//! An operation is a malloc and a free. Arrays are filled before the time is taken, so as many
//! objects as asked are alive throughout. Locks: none but those of the channels of pairs.

use super::heap::{Heap, Look, Object, Wrong};
use crate::commands::bench::common::{BenchError, size};
use crate::commands::number::number;
use clap::{Args, ValueEnum};
use highwater_units::{Bytes, Prng};
use procfs::process::Process;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::AddAssign;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often threads of `larson` end, and new ones take over.
const GENERATIONS: u64 = 16;
/// Objects that a producer hands over at once.
const BATCH: u64 = 256;
/// Batches on their way between two threads.
const CHANNEL: usize = 4;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    /// One thread replaces objects of 16 to 256 bytes
    Churn,
    /// Threads allocate objects of 16 to 256 bytes, and others free them
    ProducerConsumer,
    /// Threads replace objects of 16 to 256 bytes, then end and leave their objects to new threads
    Larson,
    /// Threads replace objects of 16 bytes to 32 KiB
    Mixed,
}

/// The load program: one load, in this process.
#[derive(Clone, Debug, Args)]
pub(in crate::commands::bench) struct LoadArgs {
    #[arg(long, value_enum)]
    pub(super) load: Load,
    /// The library whose malloc is used [default: this program's malloc]
    #[arg(long)]
    pub(super) library: Option<String>,
    #[arg(long, value_parser = size)]
    pub(super) set: Bytes,
    #[arg(long, value_parser = number::<u32>(1..=64))]
    pub(super) threads: u32,
    #[arg(long)]
    pub(super) operations: u64,
    #[arg(long)]
    pub(super) checked: u64,
    #[arg(long)]
    pub(super) seed: u64,
}

/// What came of a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::commands::bench) struct LoadFigures {
    /// Calls of malloc, and as many of free.
    pub(super) operations: u64,
    /// What they took a thread, or a pair of threads.
    pub(super) ns_per_operation: f64,
    /// CPU time of the whole process, filling and the end included, for each object it made.
    pub(super) cpu_ns_per_object: f64,
    /// Words that were compared, and right.
    pub(super) checked_words: u64,
    /// Resident before the first object was made.
    pub(super) base_bytes: u64,
    /// VmHWM.
    pub(super) peak_resident_bytes: u64,
    /// As the kernel counts them.
    pub(super) major_faults: u64,
}

/// Work that was done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    operations: u64,
    /// Of all threads, or pairs.
    time: Duration,
    words: u64,
}

impl AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        self.operations += other.operations;
        self.time += other.time;
        self.words += other.words;
    }
}

/// How large objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// 16 to 256 bytes, each as often.
    Small,
    /// 16 bytes to 32 KiB, each power of two as often.
    Mixed,
}

impl Sizes {
    fn draw(self, random: &mut Prng) -> u32 {
        match self {
            Sizes::Small => 16 + random.below(241) as u32,
            Sizes::Mixed => {
                let least = 16 << random.below(11);
                least + random.below(least.into()) as u32
            }
        }
    }

    fn mean(self) -> u64 {
        match self {
            Sizes::Small => 136,
            Sizes::Mixed => 16 * ((1 << 11) - 1) * 3 / 2 / 11,
        }
    }
}

impl LoadArgs {
    /// Carries it out.
    pub(in crate::commands::bench) fn run(&self) -> Result<LoadFigures, BenchError> {
        // A load that hangs is killed when its parent ends.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let base_bytes = memory()?.0;
        let began = cpu_time();
        let heap = self.library.as_deref().map_or_else(|| Ok(Heap::own()), Heap::of);
        let heap = heap.map_err(BenchError::Setup)?;
        let done = match self.load {
            Load::ProducerConsumer => self.hand_over(&heap),
            Load::Churn | Load::Larson | Load::Mixed => self.replace(&heap),
        };
        let done = done.map_err(|wrong| BenchError::Run(wrong.to_string()))?;
        let cpu = cpu_time() - began;
        let (_, peak_resident_bytes, major_faults) = memory()?;
        let made = done.operations + self.set.0 / self.sizes().mean();
        Ok(LoadFigures {
            operations: done.operations,
            ns_per_operation: done.time.as_nanos() as f64 / done.operations.max(1) as f64,
            cpu_ns_per_object: cpu.as_nanos() as f64 / made as f64,
            checked_words: done.words,
            base_bytes,
            peak_resident_bytes,
            major_faults,
        })
    }

    fn sizes(&self) -> Sizes {
        match self.load {
            Load::Churn | Load::ProducerConsumer | Load::Larson => Sizes::Small,
            Load::Mixed => Sizes::Mixed,
        }
    }

    fn worker<'a>(&self, heap: &'a Heap, number: u64) -> Worker<'a> {
        let random = Prng::new(self.seed.wrapping_add(number << 32));
        Worker { heap, sizes: self.sizes(), random, checked: self.checked, words: 0 }
    }

    /// Threads with an array each, in generations.
    fn replace(&self, heap: &Heap) -> Result<Done, Wrong> {
        let (threads, generations) = match self.load {
            Load::Churn => (1, 1),
            Load::Larson => (u64::from(self.threads), GENERATIONS),
            Load::Mixed | Load::ProducerConsumer => (u64::from(self.threads), 1),
        };
        let worker =
            |generation: u64, index: usize| self.worker(heap, generation * threads + index as u64);
        let objects = self.set.0 / threads / self.sizes().mean();
        let mut arrays: Vec<Vec<Object>> = (0..threads).map(|_| Vec::new()).collect();
        on_threads(&mut arrays, |index, array| worker(0, index).fill(array, objects.max(1)))?;
        let mut all = Done::default();
        for generation in 1..=generations {
            arrays.rotate_left(1);
            let operations = (self.operations / threads / generations).max(1);
            all += on_threads(&mut arrays, |index, array| {
                worker(generation, index).replace(array, operations)
            })?;
        }
        let mut last = self.worker(heap, 0);
        arrays.into_iter().flatten().try_for_each(|object| last.release(object))?;
        all.words += last.words;
        Ok(all)
    }

    /// Pairs of threads.
    fn hand_over(&self, heap: &Heap) -> Result<Done, Wrong> {
        let pairs = u64::from(self.threads / 2).max(1);
        let kept = (self.set.0 / pairs / BATCH / Sizes::Small.mean()).max(1);
        let batches = kept + (self.operations / pairs / BATCH).max(1);
        thread::scope(|scope| {
            let pair = |number| {
                let (sender, receiver) = sync_channel(CHANNEL);
                let [mut makes, mut frees] =
                    [2 * number, 2 * number + 1].map(|seed| self.worker(heap, seed));
                let producer = scope.spawn(move || makes.produce(batches, &sender));
                let consumer = scope.spawn(move || frees.consume(kept as usize, &receiver));
                (producer, consumer)
            };
            let all: Vec<_> = (0..pairs).map(pair).collect();
            let mut done = Done::default();
            for (producer, consumer) in all {
                done += consumer.join().expect("a panic aborts")?;
                producer.join().expect("a panic aborts")?;
            }
            Ok(done)
        })
    }
}

/// Runs `body` for each array on a thread of its own; of one, on this thread, so that a program
/// of one thread is measured as one.
fn on_threads(
    arrays: &mut [Vec<Object>],
    body: impl Fn(usize, &mut Vec<Object>) -> Result<Done, Wrong> + Sync,
) -> Result<Done, Wrong> {
    if let [array] = arrays {
        return body(0, array);
    }
    thread::scope(|scope| {
        let body = &body;
        let start = |(index, array)| scope.spawn(move || body(index, array));
        let threads: Vec<_> = arrays.iter_mut().enumerate().map(start).collect();
        let mut all = Done::default();
        for thread in threads {
            all += thread.join().expect("a panic aborts")?;
        }
        Ok(all)
    })
}

/// What a thread works with.
struct Worker<'a> {
    heap: &'a Heap,
    sizes: Sizes,
    random: Prng,
    /// Percent of objects that are looked at.
    checked: u64,
    /// Words that were right.
    words: u64,
}

impl Worker<'_> {
    fn make(&mut self) -> Result<Object, Wrong> {
        let bytes = self.sizes.draw(&mut self.random);
        self.heap.make(bytes, self.random.next_u64() as u32)
    }

    fn release(&mut self, object: Object) -> Result<(), Wrong> {
        let look = if self.random.percent(self.checked) { Look::Compare } else { Look::Skip };
        self.words += self.heap.release(object, look)?;
        Ok(())
    }

    fn fill(&mut self, array: &mut Vec<Object>, objects: u64) -> Result<Done, Wrong> {
        array.reserve_exact(objects as usize);
        for _ in 0..objects {
            array.push(self.make()?);
        }
        Ok(Done::default())
    }

    fn replace(&mut self, array: &mut [Object], operations: u64) -> Result<Done, Wrong> {
        let began = Instant::now();
        for _ in 0..operations {
            let index = self.random.below(array.len() as u64) as usize;
            let new = self.make()?;
            self.release(std::mem::replace(&mut array[index], new))?;
        }
        Ok(Done { operations, time: began.elapsed(), words: self.words })
    }

    fn produce(&mut self, batches: u64, to: &SyncSender<Vec<Object>>) -> Result<(), Wrong> {
        for _ in 0..batches {
            let batch = (0..BATCH).map(|_| self.make()).collect::<Result<_, _>>()?;
            if to.send(batch).is_err() {
                // The consumer has found wrong contents and reports them.
                break;
            }
        }
        Ok(())
    }

    /// Keeps `kept` batches alive, frees the oldest beyond; the clock starts once it has them.
    fn consume(&mut self, kept: usize, from: &Receiver<Vec<Object>>) -> Result<Done, Wrong> {
        let mut batches = VecDeque::with_capacity(kept + 1);
        let (mut operations, mut began) = (0, None);
        for batch in from {
            batches.push_back(batch);
            if batches.len() > kept {
                began.get_or_insert_with(Instant::now);
                let oldest = batches.pop_front().expect("it keeps one at least");
                operations += oldest.len() as u64;
                oldest.into_iter().try_for_each(|object| self.release(object))?;
            }
        }
        let time = began.map_or(Duration::ZERO, |began| began.elapsed());
        batches.into_iter().flatten().try_for_each(|object| self.release(object))?;
        Ok(Done { operations, time, words: self.words })
    }
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes of this process that are resident, and were at most; and its major faults.
fn memory() -> Result<(u64, u64, u64), BenchError> {
    let read = || -> procfs::ProcResult<(u64, u64, u64)> {
        let process = Process::myself()?;
        let status = process.status()?;
        let bytes = |kib: Option<u64>| kib.unwrap_or(0) << 10;
        Ok((bytes(status.vmrss), bytes(status.vmhwm), process.stat()?.majflt))
    };
    read().map_err(|error| BenchError::Setup(format!("/proc/self: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(load: Load) -> LoadArgs {
        let set = Bytes(1 << 20);
        LoadArgs { load, library: None, set, threads: 4, operations: 9_000, checked: 100, seed: 3 }
    }

    #[test]
    fn every_load_makes_its_operations_and_looks_at_all() {
        for (load, least) in [
            (Load::Churn, 9_000),
            (Load::Larson, 8_900),
            (Load::Mixed, 9_000),
            (Load::ProducerConsumer, 8_500),
        ] {
            let done = args(load).run().unwrap();
            assert!((least..=9_000).contains(&done.operations), "{load:?}: {done:?}");
            assert!(done.checked_words >= done.operations * 2, "{load:?}: {done:?}");
            assert!(done.ns_per_operation > 0.0 && done.cpu_ns_per_object > 0.0, "{load:?}");
            assert!(done.peak_resident_bytes >= done.base_bytes, "{load:?}");
        }
    }

    #[test]
    fn as_many_are_looked_at_as_asked() {
        let words = |checked| {
            let args = LoadArgs { checked, ..args(Load::Larson) };
            args.run().unwrap().checked_words
        };
        let (all, some) = (words(100), words(10));
        assert_eq!(words(0), 0);
        assert!(some * 5 < all && some * 20 > all, "{some} of {all}");
    }

    #[test]
    fn sizes_are_as_large_as_said() {
        for (sizes, range) in [(Sizes::Small, 16..=256), (Sizes::Mixed, 16..=32_767)] {
            let mut random = Prng::new(1);
            let drawn: Vec<u32> = (0..100_000).map(|_| sizes.draw(&mut random)).collect();
            assert!(drawn.iter().all(|bytes| range.contains(bytes)), "{sizes:?}");
            let mean = drawn.iter().map(|bytes| u64::from(*bytes)).sum::<u64>() / 100_000;
            assert!(mean.abs_diff(sizes.mean()) * 50 < mean, "{sizes:?}: {mean}");
        }
    }
}
