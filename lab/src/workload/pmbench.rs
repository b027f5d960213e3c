//! pmbench (Yang and Seymour, 2018): threads that read and write random words of a large set.
//!
//! ```text
//! fill: every word, version 0, timed ─> run: threads for a time, every load checked
//!                                    ─> sweep: every word of every page against the history
//! ```
//! Threads and clocks are those of the service's world, so that the same code runs in virtual time.
//! No lock is held across an access; [`Bench::failure`] is set once and never waited for.
//!
//! Departures from the original: a word is 8 bytes and carries its version; a store goes to a word
//! of its thread's own (see `history`); one access in seven is timed, not all.

use super::content::{Content, Mismatch};
use super::history::{History, NextWrite};
use super::pattern::{Deed, Pattern, Seat, Stream};
use super::ticks::Stopwatch;
use super::world::{CpuUse, TASK, World};
use super::{Access, Denied, Intent, Service, Target, WORDS};
use hdrhistogram::Histogram;
use highwater_mm::stats::Snapshot;
use highwater_platform::LockStatistics;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// One access in this many is timed: odd, so that it beats with no run of pages.
const TIMED_EVERY: u32 = 7;
/// Timed accesses between two looks at the clock.
const TIMED_PER_BURST: u32 = 36;
/// Longest latency told apart, in ticks: half a minute.
const TICKS_MAX: u64 = 1 << 36;

/// Who uses which pages while the threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All threads use all pages.
    Shared,
    /// Each thread uses its own stretch ([`stretch`]), as processes of one thread do.
    Private,
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Threads, 1 to [`History::THREADS_MAX`].
    pub threads: usize,
    /// Of 100 accesses, how many are loads.
    pub read_percent: u32,
    /// The order of pages.
    pub pattern: Pattern,
    /// Who uses which pages.
    pub sharing: Sharing,
    /// How long the threads run.
    pub time: Duration,
    /// Fixes contents and accesses.
    pub seed: u64,
}

/// What ends a run early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Memory did not hold what was written.
    Mismatch(Mismatch),
    /// A page could not be had.
    Denied(Denied),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Mismatch(mismatch) => mismatch.fmt(f),
            Failure::Denied(denied) => denied.fmt(f),
        }
    }
}

/// What a run measured. All contents were right.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The set, in pages.
    pub pages: u64,
    /// Threads that ran.
    pub threads: usize,
    /// Time to write the whole set once.
    pub fill: Duration,
    /// From the first thread's start to the last one's end.
    pub run: Duration,
    /// CPU time during `run`: of workers, handlers, kswapd, and on this machine the kernel.
    pub cpu: CpuUse,
    /// Time to check every word of the set.
    pub sweep: Duration,
    /// Loads, each checked.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Latency of the timed accesses, in ticks.
    pub latency: Histogram<u64>,
    /// Nanoseconds per tick of `latency`.
    pub nanos_per_tick: f64,
    /// Counters when the threads started.
    pub before: Snapshot,
    /// Counters when they had ended.
    pub after: Snapshot,
    /// What locks cost during `run`, where they can be asked.
    pub locks: Option<LockStatistics>,
}

/// The pages of one of `threads` threads: all of them together are the set, once.
pub fn stretch(pages: u64, seat: usize, threads: usize) -> Range<u64> {
    let edge = |seat: usize| (u128::from(pages) * seat as u128 / threads as u128) as u64;
    edge(seat)..edge(seat + 1)
}

/// Runs pmbench on the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be had.
pub fn run<S: Service>(service: &S, config: &Config) -> Result<Outcome, Failure> {
    let (target, world) = (service.target(), service.world());
    let bench = Bench {
        content: Content::new(config.seed),
        history: History::new(config.threads, target.pages()),
        failure: OnceLock::new(),
        target,
        world,
        config,
    };
    let fill = bench.fill()?;
    let (before, locks_before) = (service.counters(), service.locks());
    let (watch, cpu_before) = (Stopwatch::start(world), world.cpu_use());
    let tallies = bench.on_all_threads(TASK, |seat| Worker::new(&bench, seat, &watch).work())?;
    let (run, nanos_per_tick) = (watch.elapsed(), watch.scale());
    let cpu = world.cpu_use().since(&cpu_before);
    let after = service.counters();
    let locks_after = service.locks();
    let locks = locks_after.zip(locks_before).map(|(after, before)| after.since(&before));
    let sweep = bench.sweep()?;
    let mut all = Tally::new();
    tallies.into_iter().for_each(|tally| all.merge(tally));
    let (pages, threads) = (target.pages(), config.threads);
    let Tally { loads, stores, latency } = all;
    Ok(Outcome {
        pages,
        threads,
        fill,
        run,
        cpu,
        sweep,
        loads,
        stores,
        latency,
        nanos_per_tick,
        before,
        after,
        locks,
    })
}

/// One run on one target, shared by its threads.
struct Bench<'a, T, W> {
    target: &'a T,
    world: &'a W,
    config: &'a Config,
    content: Content,
    history: History,
    /// The first one ends all threads.
    failure: OnceLock<Failure>,
}

impl<T: Target, W: World> Bench<'_, T, W> {
    /// Runs `body` on every thread and collects what they return.
    fn on_all_threads<R: Send>(
        &self,
        role: &str,
        body: impl Fn(usize) -> Result<R, Failure> + Sync,
    ) -> Result<Vec<R>, Failure> {
        let guarded = |seat| body(seat).map_err(|failure| drop(self.failure.set(failure))).ok();
        let results = self.world.on_threads(self.config.threads, role, &guarded);
        match self.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    /// The pages of one thread, where each has its own.
    fn stretch(&self, seat: usize) -> Range<u64> {
        stretch(self.target.pages(), seat, self.config.threads)
    }

    /// Calls `each` for all pages, each thread with a stretch of its own; returns the time it took.
    fn each_page(
        &self,
        role: &str,
        each: impl Fn(&mut T::Access<'_>, u64) -> Result<(), Failure> + Sync,
    ) -> Result<Duration, Failure> {
        let watch = Stopwatch::start(self.world);
        self.on_all_threads(role, |seat| {
            let mut access = self.target.enter();
            for page in self.stretch(seat).take_while(|_| self.failure.get().is_none()) {
                each(&mut access, page)?;
            }
            Ok(())
        })?;
        Ok(watch.elapsed())
    }

    /// Writes version 0 of every word.
    fn fill(&self) -> Result<Duration, Failure> {
        self.each_page("fill", |access, page| {
            let words = access.page(page, Intent::Write).map_err(Failure::Denied)?;
            for (word, cell) in words.iter().enumerate() {
                cell.store(self.content.value(page, word, 0), Relaxed);
            }
            Ok(())
        })
    }

    /// Checks every word, when nobody writes.
    fn sweep(&self) -> Result<Duration, Failure> {
        self.each_page("sweep", |access, page| {
            let words = access.page(page, Intent::Read).map_err(Failure::Denied)?;
            for (word, cell) in words.iter().enumerate() {
                let version = self.history.version(page, word);
                self.check(page, word, version..=version, cell.load(Relaxed))?;
            }
            Ok(())
        })
    }

    /// Checks that `found` is a value of this word and of one of `versions`.
    fn check(
        &self,
        page: u64,
        word: usize,
        versions: RangeInclusive<u32>,
        found: u64,
    ) -> Result<(), Failure> {
        let found_version = self.content.version(page, word, found);
        if found_version.is_some_and(|version| versions.contains(&version)) {
            return Ok(());
        }
        let version = *versions.start();
        let expected = self.content.value(page, word, version);
        let seed = self.content.seed();
        let mismatch = Mismatch { page, word, version, expected, found, found_version, seed };
        Err(Failure::Mismatch(mismatch))
    }
}

/// What a thread did.
struct Tally {
    loads: u64,
    stores: u64,
    latency: Histogram<u64>,
}

impl Tally {
    fn new() -> Tally {
        let latency = Histogram::new_with_bounds(1, TICKS_MAX, 2).expect("bounds in order");
        Tally { loads: 0, stores: 0, latency }
    }

    fn merge(&mut self, other: Tally) {
        self.loads += other.loads;
        self.stores += other.stores;
        self.latency.add(&other.latency).expect("equal bounds");
    }
}

/// Takes the time of one access, or does not.
trait Probe {
    fn time<W: World, R>(
        tally: &mut Tally,
        watch: &Stopwatch<'_, W>,
        access: impl FnOnce() -> R,
    ) -> R;
}

/// Records the access's latency.
struct Timed;

impl Probe for Timed {
    fn time<W: World, R>(
        tally: &mut Tally,
        watch: &Stopwatch<'_, W>,
        access: impl FnOnce() -> R,
    ) -> R {
        let began = watch.ticks();
        let result = access();
        tally.latency.saturating_record(watch.ticks().saturating_sub(began));
        result
    }
}

/// Records nothing.
struct Untimed;

impl Probe for Untimed {
    fn time<W: World, R>(_: &mut Tally, _: &Stopwatch<'_, W>, access: impl FnOnce() -> R) -> R {
        access()
    }
}

/// One thread at work.
struct Worker<'a, T: Target + 'a, W> {
    bench: &'a Bench<'a, T, W>,
    access: T::Access<'a>,
    seat: usize,
    /// The first page it uses; the stream counts from there.
    first: u64,
    stream: Stream,
    tally: Tally,
    watch: &'a Stopwatch<'a, W>,
}

impl<'a, T: Target, W: World> Worker<'a, T, W> {
    fn new(bench: &'a Bench<'a, T, W>, seat: usize, watch: &'a Stopwatch<'a, W>) -> Self {
        let Config { threads, read_percent, pattern, sharing, seed, .. } = *bench.config;
        let pages = match sharing {
            Sharing::Shared => 0..bench.target.pages(),
            Sharing::Private => bench.stretch(seat),
        };
        let place = Seat { index: seat as u64, of: threads as u64 };
        let stream = Stream::new(pattern, pages.end - pages.start, read_percent, seed, place);
        let (access, first, tally) = (bench.target.enter(), pages.start, Tally::new());
        Worker { bench, access, seat, first, stream, tally, watch }
    }

    /// Accesses until time is up or any thread has failed.
    fn work(mut self) -> Result<Tally, Failure> {
        while self.watch.elapsed() < self.bench.config.time && self.bench.failure.get().is_none() {
            for _ in 0..TIMED_PER_BURST {
                self.step::<Timed>()?;
                for _ in 1..TIMED_EVERY {
                    self.step::<Untimed>()?;
                }
            }
        }
        Ok(self.tally)
    }

    /// One access.
    fn step<P: Probe>(&mut self) -> Result<(), Failure> {
        let (page, deed) = self.stream.draw();
        match deed {
            Deed::Load(word) => self.load::<P>(self.first + page, word),
            Deed::Store => self.store::<P>(self.first + page),
        }
    }

    /// The count comes before the load: a version below it is a lost write.
    fn load<P: Probe>(&mut self, page: u64, word: usize) -> Result<(), Failure> {
        let Worker { bench, access, tally, watch, .. } = self;
        let known = bench.history.version(page, word);
        let found = P::time(tally, watch, || {
            access.page(page, Intent::Read).map(|words| words[word].load(Relaxed))
        });
        tally.loads += 1;
        let own = bench.history.lane_of(word) == self.seat;
        let latest = if own { known } else { u32::MAX };
        bench.check(page, word, known..=latest, found.map_err(Failure::Denied)?)
    }

    fn store<P: Probe>(&mut self, page: u64) -> Result<(), Failure> {
        let Worker { bench, access, tally, watch, seat, .. } = self;
        let NextWrite { word, version } = bench.history.next_write(*seat, page);
        let value = bench.content.value(page, word, version);
        P::time(tally, watch, || {
            access.page(page, Intent::Write).map(|words| words[word].store(value, Relaxed))
        })
        .map_err(Failure::Denied)?;
        tally.stores += 1;
        bench.history.wrote(*seat, page, version);
        Ok(())
    }
}

/// Words in a set: what a sweep checks.
pub fn words(pages: u64) -> u64 {
    pages * WORDS as u64
}

#[cfg(test)]
mod tests;
