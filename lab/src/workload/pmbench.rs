//! pmbench (Yang and Seymour, 2018): threads that read and write random words of a large set.
//!
//! ```text
//! fill: every word, version 0, timed ─> warm-up, then run: threads for a time, loads checked
//!                                    ─> sweep: every word of every page against the history
//! ```
//! Threads and clocks are those of the service's world, so that the same code runs in virtual time.
//!
//! Departures from the original: a word is 8 bytes and carries its version; a store goes to a word
//! of its thread's own (see `history`); one access in seven is timed, not all.

use super::history::{History, NextWrite};
use super::outcome::{Failure, Outcome};
use super::pattern::{Operation, Pattern, Stream, ThreadIndex};
use super::tally::{Probe, TIMED_EVERY, TIMED_PER_BURST, Tally, Timed, Untimed};
use super::ticks::Stopwatch;
use super::workers::Workers;
use super::world::World;
use super::{Access, Intent, Service, Target};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Which pages each thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All threads use all pages.
    Shared,
    /// Each thread uses its own stretch of the set, as processes of one thread do.
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
    /// Which pages each thread uses.
    pub sharing: Sharing,
    /// How many accesses ahead each thread announces its pages for prefetch; 0: none.
    pub ahead: usize,
    /// How long the threads run before that is measured.
    pub warm_up: Duration,
    /// How long the threads run.
    pub time: Duration,
    /// Fixes contents and accesses.
    pub seed: u64,
}

/// Runs pmbench on the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be accessed.
pub fn run<S: Service>(service: &S, config: &Config) -> Result<Outcome, Failure> {
    let workers = Workers::new(service, config.threads, config.seed);
    let (pages, threads) = (workers.target.pages(), config.threads);
    let bench = Bench { workers, config, history: History::new(threads, pages) };
    let fill = bench.workers.fill()?;
    bench.warm_up()?;
    let (tallies, measured) = bench
        .workers
        .measure(service, |thread, watch| Worker::new(&bench, thread, watch).work(config.time))?;
    let sweep = bench.sweep()?;
    let (fill, swept) = (Some(fill), pages);
    let done = Outcome::new(Tally::sum(tallies), measured);
    Ok(Outcome { pages, threads, fill, sweep, swept, ..done })
}

/// One run on one target, shared by its threads.
struct Bench<'a, T, W> {
    workers: Workers<'a, T, W>,
    config: &'a Config,
    history: History,
}

impl<T: Target, W: World> Bench<'_, T, W> {
    /// Runs the measured load for a while, with other accesses.
    fn warm_up(&self) -> Result<(), Failure> {
        let Config { warm_up, seed, .. } = *self.config;
        if warm_up.is_zero() {
            return Ok(());
        }
        let watch = Stopwatch::start(self.workers.world);
        let config = Config { seed: !seed, ..*self.config };
        let work = |thread| Worker::with(self, &config, thread, &watch).work(warm_up);
        self.workers.on_all_threads("warm_up", work).map(drop)
    }

    /// Checks every word, after the last write.
    fn sweep(&self) -> Result<Duration, Failure> {
        self.workers.each_page(
            "sweep",
            |thread| self.workers.stretch(thread),
            |access, page| {
                let words = access.page(page, Intent::Read).map_err(Failure::Denied)?;
                for (word, cell) in words.iter().enumerate() {
                    let version = self.history.version(page, word);
                    self.workers.check(page, word, version..=version, cell.load(Relaxed))?;
                }
                Ok(())
            },
        )
    }
}

/// One thread at work.
struct Worker<'a, 'w, T: Target + 'a, W> {
    bench: &'a Bench<'a, T, W>,
    access: T::Access<'a>,
    thread: usize,
    /// The first page it uses; the stream counts from there.
    first: u64,
    stream: Stream,
    /// Drawn and announced for prefetch, but not made yet.
    soon: VecDeque<(u64, Operation)>,
    tally: Tally,
    watch: &'w Stopwatch<'w, W>,
}

impl<'a, 'w, T: Target, W: World> Worker<'a, 'w, T, W> {
    fn new(bench: &'a Bench<'a, T, W>, thread: usize, watch: &'w Stopwatch<'w, W>) -> Self {
        Worker::with(bench, bench.config, thread, watch)
    }

    /// A worker whose accesses are those of `config`.
    fn with(
        bench: &'a Bench<'a, T, W>,
        config: &Config,
        thread: usize,
        watch: &'w Stopwatch<'w, W>,
    ) -> Self {
        let Config { threads, read_percent, pattern, sharing, seed, .. } = *config;
        let pages = match sharing {
            Sharing::Shared => 0..bench.workers.target.pages(),
            Sharing::Private => bench.workers.stretch(thread),
        };
        let place = ThreadIndex { index: thread as u64, of: threads as u64 };
        let stream = Stream::new(pattern, pages.end - pages.start, read_percent, seed, place);
        let (access, first, tally) = (bench.workers.target.enter(), pages.start, Tally::new());
        let soon = VecDeque::with_capacity(config.ahead + 1);
        let mut worker = Worker { bench, access, thread, first, stream, soon, tally, watch };
        (0..config.ahead).for_each(|_| worker.look_ahead());
        worker
    }

    /// Draws an access and announces its page for prefetch.
    fn look_ahead(&mut self) {
        let (page, operation) = self.stream.draw();
        self.access.ahead(self.first + page);
        self.soon.push_back((page, operation));
    }

    /// The next access.
    fn next(&mut self) -> (u64, Operation) {
        match self.soon.pop_front() {
            None => self.stream.draw(),
            Some(next) => {
                self.look_ahead();
                next
            }
        }
    }

    /// Accesses until `time` is up or any thread has failed.
    fn work(mut self, time: Duration) -> Result<Tally, Failure> {
        loop {
            let elapsed = self.watch.elapsed();
            if elapsed >= time / 2 && self.tally.first_half.is_none() {
                self.tally.first_half = Some(self.tally.loads + self.tally.stores);
            }
            if elapsed >= time || self.bench.workers.failed() {
                return Ok(self.tally);
            }
            self.burst()?;
        }
    }

    /// Accesses between two looks at the clock.
    fn burst(&mut self) -> Result<(), Failure> {
        for _ in 0..TIMED_PER_BURST {
            self.step::<Timed>()?;
            for _ in 1..TIMED_EVERY {
                self.step::<Untimed>()?;
            }
        }
        Ok(())
    }

    /// One access.
    fn step<P: Probe>(&mut self) -> Result<(), Failure> {
        let (page, operation) = self.next();
        match operation {
            Operation::Load(word) => self.load::<P>(self.first + page, word),
            Operation::Store => self.store::<P>(self.first + page),
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
        let own = bench.history.lane_of(word) == self.thread;
        let latest = if own { known } else { u32::MAX };
        bench.workers.check(page, word, known..=latest, found.map_err(Failure::Denied)?)
    }

    fn store<P: Probe>(&mut self, page: u64) -> Result<(), Failure> {
        let Worker { bench, access, tally, watch, thread, .. } = self;
        let NextWrite { word, version } = bench.history.next_write(*thread, page);
        let value = bench.workers.content.value(page, word, version);
        P::time(tally, watch, || {
            access.page(page, Intent::Write).map(|words| words[word].store(value, Relaxed))
        })
        .map_err(Failure::Denied)?;
        tally.stores += 1;
        bench.history.wrote(*thread, page, version);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
