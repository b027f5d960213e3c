//! Large blocks beside objects: threads use, free and allocate objects of random orders; one more
//! thread allocates blocks of 2 MiB.
//!
//! ```text
//! set: stretch of thread 0 | of thread 1 | ...     chunks of 512 pages, each for one order
//! object: a page of 2^order pages, order 0 to 9, as much memory of each; all words are written
//! operation: checks a random object; then may rewrite it, or free it and allocate others
//! last thread: allocates a block after every OPERATIONS of all threads; frees its oldest block at
//!              random, and whenever it holds `held` blocks
//! ```
//! Operations are counted, not timed: one thread with one seed makes identical accesses whatever
//! the manager does. All words of an object are checked each time that it is drawn, and those of
//! all objects at the end. Threads share only the count of operations.

use super::outcome::Failure;
use super::tally::Tally;
use super::ticks::Stopwatch;
use super::workers::{Workers, stretch};
use super::world::World;
use super::{Folios, Intent, Service, Target, WORDS};
use hdrhistogram::Histogram;
use highwater_mm::Mobility;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_units::{Bytes, Order, Pfn, Prng};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Pages of a chunk: those of the largest object.
const CHUNK: u64 = 512;
/// Orders of objects: 0 to 9.
const ORDERS: usize = 10;
/// Operations of all threads between two attempts.
const OPERATIONS: u64 = 128;
/// One attempt in this many frees the oldest block first.
const FREED_EACH: u64 = 4;
/// The numbers of 100 operations that rewrite an object, and that free one.
const WRITES: u64 = 10;
const FREES: u64 = 25;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Threads with objects.
    pub threads: usize,
    /// Pages of all objects together.
    pub used: u64,
    /// Pages of objects at first; random objects are then freed, so that free frames are scattered.
    pub filled: u64,
    /// Blocks to allocate.
    pub attempts: u64,
    /// Blocks that are kept.
    pub held: usize,
    /// Fixes contents and operations.
    pub seed: u64,
}

impl Config {
    /// Pages that the set must have: room for objects of all orders, whichever are drawn.
    pub fn set(&self) -> u64 {
        2 * self.filled + self.threads as u64 * ORDERS as u64 * CHUNK
    }
}

/// The result. All contents were right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockFigures {
    /// Attempts to allocate a block.
    pub attempts: u64,
    /// Attempts that succeeded.
    pub successes: u64,
    /// Half of the attempts took at most this.
    pub p50_ns: u64,
    /// 99 % of them.
    pub p99_ns: u64,
    /// Bytes that were moved from frame to frame.
    pub moved_bytes: u64,
    /// `moved_bytes` for each successful attempt; `None` if none succeeded.
    pub moved_bytes_per_success: Option<f64>,
    /// Frames that both scanners scanned.
    pub scanned: u64,
    /// Objects whose pages could not be allocated contiguously.
    pub refused: u64,
    /// Words that were checked, at the end too.
    pub checked_words: u64,
    /// From the first operation to the last.
    pub seconds: f64,
    /// Operations in a second.
    pub deeds_per_s: f64,
}

impl BlockFigures {
    /// Successes of 100 attempts.
    pub fn percent(&self) -> f64 {
        self.successes as f64 * 100.0 / self.attempts.max(1) as f64
    }
}

/// Runs it on the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be accessed.
pub fn run<S: Folios + Sync>(service: &S, config: &Config) -> Result<BlockFigures, Failure> {
    let (threads, operations) = (config.threads, AtomicU64::new(0));
    let workers = Workers::new(service, threads + 1, config.seed);
    let bench = Bench { service, workers, config, operations: &operations };
    let set = service.target().pages();
    let own: Vec<_> =
        (0..threads).map(|thread| Mutex::new(Objects::new(config, set, thread))).collect();
    // The last thread has no objects; it allocates blocks.
    let worker = |thread: usize| own.get(thread).map(|own| Worker::new(&bench, own));
    bench
        .workers
        .on_all_threads("fill", |thread| worker(thread).map_or(Ok(()), |mut w| w.fill()))?;
    bench.workers.on_all_threads("thin", |thread| {
        let share = stretch(config.used, thread.min(threads - 1), threads);
        worker(thread).into_iter().for_each(|mut w| w.thin(share.end - share.start));
        Ok(())
    })?;
    let (done, measured) =
        bench.workers.measure(service, |thread, watch| match worker(thread) {
            Some(mut worker) => worker.work().map(|()| None),
            None => bench.allocate(watch).map(Some),
        })?;
    bench
        .workers
        .on_all_threads("sweep", |thread| worker(thread).map_or(Ok(()), |mut w| w.check_all()))?;
    let own = own.into_iter().map(|own| own.into_inner().expect("no thread panics with it"));
    let sums = own.map(|own| (own.checked, own.refused));
    let (checked_words, refused) = sums.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    let (successes, latency) =
        done.into_iter().flatten().next().expect("one thread allocates blocks");
    let nanos = |part| (latency.value_at_quantile(part) as f64 * measured.nanos_per_tick) as u64;
    let gained = |counter| gained(&measured.before, &measured.after, counter);
    let moved_bytes = Bytes::of_pages(gained(Counter::PgMigrateSuccess)).0;
    let seconds = measured.run.as_secs_f64();
    Ok(BlockFigures {
        attempts: config.attempts,
        successes,
        p50_ns: nanos(0.5),
        p99_ns: nanos(0.99),
        moved_bytes,
        moved_bytes_per_success: (successes > 0).then(|| moved_bytes as f64 / successes as f64),
        scanned: gained(Counter::CompactMigrateScanned) + gained(Counter::CompactFreeScanned),
        refused,
        checked_words,
        seconds,
        deeds_per_s: operations.load(Relaxed) as f64 / seconds,
    })
}

fn gained(before: &Snapshot, after: &Snapshot, counter: Counter) -> u64 {
    after.get(counter).saturating_sub(before.get(counter))
}

/// One run on one service.
struct Bench<'a, S: Service> {
    service: &'a S,
    workers: Workers<'a, S::Target, S::World>,
    config: &'a Config,
    /// Of all threads, so far.
    operations: &'a AtomicU64,
}

impl<S: Folios + Sync> Bench<'_, S> {
    /// Allocates blocks; returns the number of successes and the latencies.
    fn allocate(&self, watch: &Stopwatch<'_, S::World>) -> Result<(u64, Histogram<u64>), Failure> {
        let (mut held, mut successes) = (VecDeque::<Pfn>::new(), 0);
        let (mut latency, mut random) = (Tally::new().latency, Prng::new(self.config.seed));
        for attempt in 1..=self.config.attempts {
            while self.operations.load(Relaxed) < attempt * OPERATIONS && !self.workers.failed() {
                self.workers.world.sleep(Duration::from_micros(20));
            }
            if held.len() == self.config.held || random.below(FREED_EACH) == 0 {
                held.pop_front().into_iter().for_each(|first| self.service.free_run(first));
            }
            let began = watch.ticks();
            let block = self.service.alloc_run(Order::LARGE, Mobility::Movable);
            latency.saturating_record(watch.ticks().saturating_sub(began));
            successes += u64::from(block.is_some());
            held.extend(block);
        }
        held.into_iter().for_each(|first| self.service.free_run(first));
        Ok((successes, latency))
    }
}

/// Pages that hold one version of their contents.
#[derive(Clone, Copy)]
struct Object {
    first: u64,
    order: usize,
    version: u32,
}

/// The objects of a thread.
struct Objects {
    random: Prng,
    objects: Vec<Object>,
    /// Pages of them, and how many there should be.
    pages: u64,
    share: u64,
    /// Where objects of an order can be, and where no chunk has been yet.
    free: [Vec<u64>; ORDERS],
    chunks: Range<u64>,
    versions: u32,
    /// Words.
    checked: u64,
    /// Objects that could not be allocated.
    refused: u64,
}

impl Objects {
    /// None yet.
    fn new(config: &Config, set: u64, thread: usize) -> Objects {
        let chunks = stretch(set / CHUNK, thread, config.threads);
        let share = stretch(config.filled, thread, config.threads);
        Objects {
            random: Prng::new(config.seed ^ ((thread as u64 + 1) << 40)),
            objects: Vec::new(),
            pages: 0,
            share: share.end - share.start,
            free: [const { Vec::new() }; ORDERS],
            chunks: chunks.start * CHUNK..chunks.end * CHUNK,
            versions: 0,
            checked: 0,
            refused: 0,
        }
    }

    /// A place for a new object of an order up to `most`, drawn so that each order gets as many
    /// pages; none if the share is used up.
    fn place(&mut self, most: usize) -> Option<Object> {
        let left = self.share.saturating_sub(self.pages).checked_ilog2()? as usize;
        let order = self.random.next_u64().trailing_zeros() as usize % ORDERS;
        let order = order.min(left).min(most);
        if self.free[order].is_empty() && !self.chunks.is_empty() {
            let chunk = self.chunks.start;
            self.chunks.start += CHUNK;
            self.free[order].extend((chunk..chunk + CHUNK).step_by(1 << order));
        }
        let choices = self.free[order].len() as u64;
        assert!(choices > 0, "the set is large enough for whatever is drawn");
        let at = self.random.below(choices) as usize;
        self.pages += 1 << order;
        Some(Object { first: self.free[order].swap_remove(at), order, version: 0 })
    }
}

/// A thread at work.
struct Worker<'a, S: Folios + 'a> {
    bench: &'a Bench<'a, S>,
    own: MutexGuard<'a, Objects>,
}

impl<'a, S: Folios + Sync> Worker<'a, S> {
    fn new(bench: &'a Bench<'a, S>, own: &'a Mutex<Objects>) -> Worker<'a, S> {
        let own = own.lock().expect("no thread panics with it");
        Worker { bench, own }
    }

    /// Makes objects until there are enough. After one that cannot be allocated
    /// contiguously, the next is smaller.
    fn fill(&mut self) -> Result<(), Failure> {
        let mut most = ORDERS - 1;
        while let Some(object) = self.own.place(most) {
            most = match self.write(object) {
                Ok(object) => {
                    self.own.objects.push(object);
                    ORDERS - 1
                }
                Err(Failure::Denied(_)) if object.order > 0 => {
                    self.own.refused += 1;
                    self.free(object);
                    object.order - 1
                }
                Err(failure) => return Err(failure),
            };
        }
        Ok(())
    }

    /// Frees objects until at most `share` pages are left.
    fn thin(&mut self, share: u64) {
        self.own.share = share;
        while self.own.pages > share {
            let choices = self.own.objects.len() as u64;
            let at = self.own.random.below(choices) as usize;
            let object = self.own.objects.swap_remove(at);
            self.free(object);
        }
    }

    /// This thread's share of all operations.
    fn work(&mut self) -> Result<(), Failure> {
        let all = self.bench.config.attempts * OPERATIONS;
        for _ in 0..all.div_ceil(self.bench.config.threads as u64) {
            if self.bench.workers.failed() {
                break;
            }
            let choices = self.own.objects.len() as u64;
            let at = self.own.random.below(choices) as usize;
            let object = self.own.objects[at];
            self.check(object)?;
            match self.own.random.below(100) {
                drawn if drawn < WRITES => self.own.objects[at] = self.write(object)?,
                drawn if drawn < WRITES + FREES => {
                    self.own.objects.swap_remove(at);
                    self.free(object);
                    self.fill()?;
                }
                _ => {}
            }
            self.bench.operations.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn free(&mut self, Object { first, order, .. }: Object) {
        self.bench.service.drop_folio(first, Order(order as u8));
        self.own.pages -= 1 << order;
        self.own.free[order].push(first);
    }

    /// Writes all words of an object, as a new version.
    fn write(&mut self, object: Object) -> Result<Object, Failure> {
        self.own.versions += 1;
        let (version, content) = (self.own.versions, self.bench.workers.content);
        let order = Order(object.order as u8);
        let written =
            self.bench.service.folio(object.first, order, Intent::Write, &mut |page, w| {
                let cells = w.iter().enumerate();
                cells.for_each(|(word, cell)| {
                    cell.store(content.value(page, word, version), Relaxed)
                });
            });
        written.map_err(Failure::Denied)?;
        Ok(Object { version, ..object })
    }

    /// Checks all words of an object.
    fn check(&mut self, Object { first, order, version }: Object) -> Result<(), Failure> {
        self.own.checked += (WORDS as u64) << order;
        let (mut found, order) = (Ok(()), Order(order as u8));
        let read = self.bench.service.folio(first, order, Intent::Read, &mut |page, words| {
            let mut cells = words.iter().enumerate();
            let mut check = |(word, cell): (usize, &AtomicU64)| {
                self.bench.workers.check(page, word, version..=version, cell.load(Relaxed))
            };
            if found.is_ok() {
                found = cells.try_for_each(&mut check);
            }
        });
        read.map_err(Failure::Denied)?;
        found
    }

    fn check_all(&mut self) -> Result<(), Failure> {
        (0..self.own.objects.len()).try_for_each(|at| self.check(self.own.objects[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::heap::{Fault, Heap};
    use super::*;

    const CONFIG: Config =
        Config { threads: 2, used: 3000, filled: 3300, attempts: 40, held: 3, seed: 9 };

    fn heap(fault: Fault) -> Heap {
        Heap::new(CONFIG.set() as usize, fault)
    }

    #[test]
    fn blocks_are_allocated_beside_objects_and_freed() {
        let heap = heap(Fault::None);
        let figures = run(&heap, &CONFIG).expect("all is as it must be");
        assert_eq!((figures.attempts, figures.successes), (40, 30), "three of four");
        assert_eq!(heap.runs(), (40, 0));
        assert!(figures.checked_words > 3000 * 512, "all at the end: {figures:?}");
        assert!(figures.p50_ns <= figures.p99_ns);
        assert_eq!(figures.percent(), 75.0);
    }

    #[test]
    fn one_thread_makes_the_same_objects_again() {
        let words = |seed| {
            let config = Config { threads: 1, seed, ..CONFIG };
            run(&heap(Fault::None), &config).expect("all is as it must be").checked_words
        };
        assert_eq!(words(3), words(3));
        assert_ne!(words(3), words(4));
    }

    #[test]
    fn what_goes_wrong_is_found() {
        let page = CHUNK + 1;
        for fault in [
            Fault::LosesStores { page, after: 0 },
            Fault::WrongPage { page, instead: page + 1, after: 4000 },
            Fault::Denies { page, after: 0 },
        ] {
            let found = run(&heap(fault), &CONFIG).expect_err("it is found");
            match (found, fault) {
                (Failure::Denied(_), Fault::Denies { .. }) => {}
                (Failure::Mismatch(wrong), _) => assert!([page, page + 1].contains(&wrong.page)),
                (other, _) => panic!("{other}"),
            }
        }
    }
}
