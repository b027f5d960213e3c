//! usemem (vm-scalability): tasks that write memory once, or read back pages that were evicted.
//!
//! ```text
//! WriteSequential  ───────────────────> pass: every word of its part, once: swap-w-seq
//! WriteRandom      ───────────────────> pass: as many words, at random: swap-w-rand
//! SwapIn(pattern)  fill ─> push out ──> pass: reads what is out: case-swapin, or anywhere
//!                                        └─> sweep: every word written, or still zero
//! part: a stretch of the set for each task; SwapIn(Sequential) reads its first half, after the
//!       second was written once more
//! ```
//! Threads and clocks are those of the service's world. Parts are not shared; the marks of written
//! words are atomics.
//!
//! Departures from the original: a word's value follows the content model, and making it is part of
//! the pass; in sequential passes, all words of a page are one access; freeing is not timed,
//! because contents are checked before it.

use super::lcg::Lcg;
use super::outcome::{Failure, Outcome, Pass};
use super::pattern::{Pages, Pattern};
use super::tally::{Probe, TIMED_EVERY, TIMED_PER_BURST, Tally, Timed, Untimed};
use super::ticks::Stopwatch;
use super::workers::Workers;
use super::world::World;
use super::{Access, Intent, Service, Target, WORDS};
use highwater_units::Prng;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Accesses at random between two looks at the clock.
const BURST: u64 = (TIMED_EVERY * TIMED_PER_BURST) as u64;

/// What a task does in its pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes every word of its part once, in sequence.
    WriteSequential,
    /// Writes random words of its part, as many as the part has.
    WriteRandom,
    /// Reads what was written before. Sequential: every word of the first half of its part. Other
    /// patterns: as many words as the part has, on pages in the order of the pattern.
    SwapIn(Pattern),
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What each task does.
    pub kind: Kind,
    /// Tasks, at least 1.
    pub threads: usize,
    /// Time limit of a pass; none for no limit.
    pub time: Option<Duration>,
    /// Fixes contents and accesses.
    pub seed: u64,
}

/// Runs usemem on the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be accessed.
pub fn run<S: Service>(service: &S, config: &Config) -> Result<Outcome, Failure> {
    let workers = Workers::new(service, config.threads, config.seed);
    let (pages, threads) = (workers.target.pages(), config.threads);
    let usemem = Usemem { written: Written::new(pages), workers, config };
    let fill = usemem.prepare()?;
    let (done, measured) = usemem
        .workers
        .measure(service, |thread, watch| Task::new(&usemem, thread, watch).work())?;
    let sweep = usemem.sweep()?;
    let (tallies, passes): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let (passes, swept) = (Some(passes), pages);
    let done = Outcome::new(Tally::sum(tallies), measured);
    Ok(Outcome { pages, threads, fill, sweep, swept, passes, ..done })
}

/// Bytes of bookkeeping for a set.
pub fn bookkeeping_bytes(pages: u64) -> u64 {
    pages * WORDS as u64 / 8
}

/// Which words were written: a bit each.
struct Written {
    pages: Vec<[AtomicU64; WORDS / 64]>,
}

impl Written {
    /// None of `pages` pages.
    fn new(pages: u64) -> Written {
        Written { pages: (0..pages).map(|_| [const { AtomicU64::new(0) }; WORDS / 64]).collect() }
    }

    fn mark(&self, page: u64, word: usize) {
        self.pages[page as usize][word / 64].fetch_or(1 << (word % 64), Relaxed);
    }

    fn mark_all(&self, page: u64) {
        self.pages[page as usize].iter().for_each(|bits| bits.store(u64::MAX, Relaxed));
    }

    fn has(&self, page: u64, word: usize) -> bool {
        self.pages[page as usize][word / 64].load(Relaxed) >> (word % 64) & 1 == 1
    }
}

/// One run on one target, shared by its tasks.
struct Usemem<'a, T, W> {
    workers: Workers<'a, T, W>,
    config: &'a Config,
    written: Written,
}

impl<T: Target, W: World> Usemem<'_, T, W> {
    /// What comes before the passes: the time to write the whole set, where it is to be read.
    fn prepare(&self) -> Result<Option<Duration>, Failure> {
        let Kind::SwapIn(pattern) = self.config.kind else { return Ok(None) };
        let fill = self.workers.fill()?;
        (0..self.workers.target.pages()).for_each(|page| self.written.mark_all(page));
        if pattern == Pattern::Sequential {
            self.workers.write_all("push_out", |thread| {
                let part = self.workers.stretch(thread);
                first_half(&part).end..part.end
            })?;
        }
        Ok(Some(fill))
    }

    /// Checks every word, after the last write.
    fn sweep(&self) -> Result<Duration, Failure> {
        let workers = &self.workers;
        workers.each_page(
            "sweep",
            |thread| workers.stretch(thread),
            |access, page| {
                let words = access.page(page, Intent::Read).map_err(Failure::Denied)?;
                words.iter().enumerate().try_for_each(|(word, cell)| {
                    let found = cell.load(Relaxed);
                    if self.written.has(page, word) {
                        workers.check(page, word, 0..=0, found)
                    } else {
                        workers.check_untouched(page, word, found)
                    }
                })
            },
        )
    }
}

fn first_half(part: &Range<u64>) -> Range<u64> {
    part.start..part.start + (part.end - part.start).div_ceil(2)
}

/// One task at work.
struct Task<'a, 'w, T: Target + 'a, W> {
    usemem: &'a Usemem<'a, T, W>,
    access: T::Access<'a>,
    part: Range<u64>,
    random: Prng,
    tally: Tally,
    watch: &'w Stopwatch<'w, W>,
    /// What is stored next, or was loaded last.
    values: Box<[u64; WORDS]>,
}

impl<'a, 'w, T: Target, W: World> Task<'a, 'w, T, W> {
    fn new(usemem: &'a Usemem<'a, T, W>, thread: usize, watch: &'w Stopwatch<'w, W>) -> Self {
        let seed = usemem.config.seed ^ (thread as u64).wrapping_mul(0xd134_2543_de82_ef95);
        Task {
            usemem,
            access: usemem.workers.target.enter(),
            part: usemem.workers.stretch(thread),
            random: Prng::new(seed),
            tally: Tally::new(),
            watch,
            values: Box::new([0; WORDS]),
        }
    }

    /// The pass.
    fn work(mut self) -> Result<(Tally, Pass), Failure> {
        let own = Stopwatch::start(self.usemem.workers.world);
        let (read, write) = (Self::read::<Timed>, Self::write::<Timed>);
        match self.usemem.config.kind {
            Kind::WriteSequential => self.in_sequence(self.part.clone(), write)?,
            Kind::WriteRandom => {
                self.at_random(Pattern::Uniform, write, Self::write::<Untimed>)?;
            }
            Kind::SwapIn(Pattern::Sequential) => self.in_sequence(first_half(&self.part), read)?,
            Kind::SwapIn(pattern) => self.at_random(pattern, read, read)?,
        }
        let bytes = (self.tally.loads + self.tally.stores) * size_of::<u64>() as u64;
        Ok((self.tally, Pass { bytes, time: own.elapsed() }))
    }

    /// Visits all words of these pages, one page after the other.
    fn in_sequence(
        &mut self,
        pages: Range<u64>,
        visit: impl Fn(&mut Self, u64, Range<usize>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for page in pages {
            if self.is_over() {
                break;
            }
            visit(self, page, 0..WORDS)?;
        }
        Ok(())
    }

    /// Visits random words, as many as the part has; most of them untimed.
    fn at_random(
        &mut self,
        pattern: Pattern,
        timed: impl Fn(&mut Self, u64, Range<usize>) -> Result<(), Failure>,
        untimed: impl Fn(&mut Self, u64, Range<usize>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let pages = self.part.end - self.part.start;
        if pages == 0 {
            return Ok(());
        }
        let mut lcg = || Lcg::new(self.random.next_u64());
        let (mut places, mut words) = (Pages::new(pattern, pages, lcg(), 0, 1), lcg());
        for turn in 0..pages * WORDS as u64 {
            if turn % BURST == 0 && self.is_over() {
                break;
            }
            let page = self.part.start + places.draw();
            let word = words.below(WORDS as u64) as usize;
            match turn % u64::from(TIMED_EVERY) {
                0 => timed(self, page, word..word + 1)?,
                _ => untimed(self, page, word..word + 1)?,
            }
        }
        Ok(())
    }

    /// Whether time is up, or any task has failed.
    fn is_over(&self) -> bool {
        let late = |time| self.watch.elapsed() >= time;
        self.usemem.workers.failed() || self.usemem.config.time.is_some_and(late)
    }

    /// Writes words of a page, by one access to it.
    fn write<P: Probe>(&mut self, page: u64, words: Range<usize>) -> Result<(), Failure> {
        let Task { usemem, access, tally, watch, values, .. } = self;
        for word in words.clone() {
            values[word] = usemem.workers.content.value(page, word, 0);
        }
        P::time(tally, watch, || {
            let held = access.page(page, Intent::Write)?;
            words.clone().for_each(|word| held[word].store(values[word], Relaxed));
            Ok(())
        })
        .map_err(Failure::Denied)?;
        tally.stores += words.len() as u64;
        match words.len() {
            WORDS => usemem.written.mark_all(page),
            _ => words.for_each(|word| usemem.written.mark(page, word)),
        }
        Ok(())
    }

    /// Reads words of a page, by one access to it, and checks them.
    fn read<P: Probe>(&mut self, page: u64, mut words: Range<usize>) -> Result<(), Failure> {
        let Task { usemem, access, tally, watch, values, .. } = self;
        P::time(tally, watch, || {
            let held = access.page(page, Intent::Read)?;
            words.clone().for_each(|word| values[word] = held[word].load(Relaxed));
            Ok(())
        })
        .map_err(Failure::Denied)?;
        tally.loads += words.len() as u64;
        words.try_for_each(|word| usemem.workers.check(page, word, 0..=0, values[word]))
    }
}

#[cfg(test)]
mod tests;
