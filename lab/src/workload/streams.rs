//! Streams: tasks that read files from end to end in blocks of 4 MiB, as many dd do.
//!
//! ```text
//! set:   device 0: file 0 | file 1 | ...   device 1: ...   ...   anonymous   small
//! task t reads file t / devices of device t % devices: round robin; at its end, from its beginning
//! ReadPath::Cached  page by page, copied from memory that the manager keeps it in   read(2)
//!           Direct  a block at a time from the device into the task's own memory    O_DIRECT
//! Span::Filling  from the first block until pages are looked for to reclaim
//!      Full      from then on: warm-up, measured time
//!      Timed     warm-up, measured time, whatever memory is like: where counters are missing
//! ```
//! Beside them, where asked for: tasks whose anonymous pages are in use all the time, and a small
//! task that needs a page now and then, whose waits are recorded.
//!
//! Contents: the file pages of a set are of [`KINDS`] kinds, drawn by their number, so that the
//! files of a whole machine take little memory where they are simulated. Some words of every page
//! that is read are checked, and all words of the other pages at the end. Tasks share only their
//! positions, which are atomics.

use super::content::{Content, Mismatch};
use super::outcome::{Failure, Outcome, Pass};
use super::tally::Tally;
use super::ticks::Stopwatch;
use super::workers::{Workers, stretch};
use super::world::World;
use super::{Access, Intent, Service, Target, WORDS, Words};
use hdrhistogram::Histogram;
use highwater_mm::stats::Counter;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages in a block: 4 MiB.
pub const BLOCK_PAGES: u64 = 1024;
/// Bytes that a simulator keeps for each page of a file: slot, entry, page table.
pub const BOOKS_BYTES: u64 = 64;
/// Kinds of pages in files: a page taken for another is detected, except for one case in this many.
pub const KINDS: u64 = 4093;
/// Words of a file's page that are checked when it is read.
const CHECKED_WORDS: u64 = 4;
/// Tasks that use the anonymous working set.
pub const ANON_TASKS: usize = 4;
/// Pages between two pauses of such a task.
const ANON_BURST: u64 = 1024;
/// How long it pauses.
const PAUSE: Duration = Duration::from_millis(1);
/// How often the small task needs a page, in microseconds.
const SMALL_MICROS: u64 = 200;
/// Pages between two looks at the clock.
const CLOCK_PAGES: u64 = 16;

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// Through memory.
    Cached,
    /// Past it.
    Direct,
}

/// Which part of a run is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// After a warm-up, until the first page is scanned for reclaim, or time is up.
    Filling,
    /// After that, and a warm-up. Of direct reads, after the warm-up alone.
    Full,
    /// After the warm-up alone.
    Timed,
}

/// What the set consists of, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Devices with files.
    pub devices: usize,
    /// Pages of files on each.
    pub device_pages: u64,
    /// Anonymous pages in use meanwhile; 0: none, and no task.
    pub anon_pages: u64,
    /// Pages that the small task may come to need; 0: there is none.
    pub small_pages: u64,
}

impl Layout {
    /// Pages of all files.
    pub fn file_pages(&self) -> u64 {
        self.devices as u64 * self.device_pages
    }

    /// The pages behind those of the files, of tasks beside the streams.
    fn anon(&self) -> Range<u64> {
        self.file_pages()..self.file_pages() + self.anon_pages
    }

    fn small(&self) -> Range<u64> {
        let first = self.anon().end;
        first..first + self.small_pages
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Streams, at least 1.
    pub threads: usize,
    /// What the set consists of.
    pub layout: Layout,
    /// How files are read.
    pub read_path: ReadPath,
    /// Which part is measured.
    pub span: Span,
    /// How long streams run before that.
    pub warm_up: Duration,
    /// How long they are measured, at most.
    pub time: Duration,
    /// Fixes contents.
    pub seed: u64,
}

/// Pages that a small task may come to need in a run of this length, in each of three phases.
pub fn small_pages(time: Duration) -> u64 {
    3 * (time.as_micros() as u64 / SMALL_MICROS + 100)
}

/// The kind of a page of the files.
pub fn kind_of(page: u64) -> u64 {
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % KINDS
}

/// A word of a page of a kind, with the contents of `seed`.
pub fn word_of(content: Content, kind: u64, word: usize) -> u64 {
    content.value(kind, word, 0)
}

/// Runs streams on the files and the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be accessed.
pub fn run<S: Service + Sync>(service: &S, config: &Config) -> Result<Outcome, Failure> {
    let Config { threads, layout, .. } = *config;
    let beside = if layout.anon_pages > 0 { ANON_TASKS } else { 0 };
    let small = usize::from(layout.small_pages > 0);
    let workers = Workers::new(service, threads + beside + small, config.seed);
    let counters: &(dyn Fn() -> u64 + Sync) = &|| {
        let now = service.counters();
        now.get(Counter::PgScanKswapd) + now.get(Counter::PgScanDirect)
    };
    let places = (0..threads).map(|thread| AtomicU64::new(file(config, thread).start)).collect();
    let bench =
        Bench { workers, config, beside, places, scanned: counters, ended: AtomicU64::new(0) };
    let fill = (layout.anon_pages > 0).then(|| bench.fill()).transpose()?;
    bench.warm_up()?;
    let (done, measured) = bench
        .workers
        .measure(service, |thread, watch| bench.task(thread, watch, &bench.measured()))?;
    let sweep = bench.sweep(fill.is_some())?;
    let mut waits = Tally::new().latency;
    let (mut passes, mut tallies) = (Vec::new(), Vec::new());
    for done in done {
        match done {
            Done::Streamed(tally, pass) => {
                tallies.push(tally);
                passes.push(pass);
            }
            Done::Beside(reads) => tallies.push(Tally { loads: reads, ..Tally::new() }),
            Done::Waited(histogram) => waits.add(&histogram).expect("equal bounds"),
        }
    }
    let pages = layout.file_pages() + layout.anon_pages;
    let (swept, small) = (layout.anon_pages, (small > 0).then_some(waits));
    let passes = Some(passes);
    let done = Outcome::new(Tally::sum(tallies), measured);
    Ok(Outcome { pages, threads, fill, sweep, swept, passes, small, ..done })
}

/// The pages of the file that a stream reads.
fn file(config: &Config, thread: usize) -> Range<u64> {
    let Config { threads, layout: Layout { devices, device_pages, .. }, .. } = *config;
    let first = (thread % devices) as u64 * device_pages;
    let part = stretch(device_pages, thread / devices, threads.div_ceil(devices));
    first + part.start..first + part.end
}

/// One run on one service, shared by its tasks.
struct Bench<'a, T, W> {
    workers: Workers<'a, T, W>,
    config: &'a Config,
    /// Tasks that use anonymous pages.
    beside: usize,
    /// The page that each stream reads next.
    places: Vec<AtomicU64>,
    /// Pages scanned for reclaim since the service began.
    scanned: &'a (dyn Fn() -> u64 + Sync),
    /// What ended the phase: all tasks end with the first that sees it.
    ended: AtomicU64,
}

/// When tasks stop.
#[derive(Clone, Copy)]
struct Until {
    time: Duration,
    scanning: Scanning,
    /// Marks the end of this phase.
    phase: u64,
}

/// Whether scans for reclaim end a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scanning {
    Nothing,
    /// The phase is over.
    Ends,
}

/// What a task has done.
enum Done {
    Streamed(Tally, Pass),
    /// How many words it has checked.
    Beside(u64),
    /// How long pages took that it needed, in ticks.
    Waited(Histogram<u64>),
}

impl<T: Target, W: World> Bench<'_, T, W> {
    /// Writes the anonymous pages.
    fn fill(&self) -> Result<Duration, Failure> {
        let anon = self.config.layout.anon();
        let threads = self.workers.threads;
        let part = |thread| {
            let part = stretch(anon.end - anon.start, thread, threads);
            anon.start + part.start..anon.start + part.end
        };
        self.workers.write_all("fill", part)
    }

    /// Runs the measured load for a while; if memory must be full, this time begins when it is.
    fn warm_up(&self) -> Result<(), Failure> {
        let Config { warm_up, span, read_path, .. } = *self.config;
        let forever = Duration::MAX;
        let full = Until { time: forever, scanning: Scanning::Ends, phase: 1 };
        let warm = Until { time: warm_up, scanning: Scanning::Nothing, phase: 2 };
        let phases = match (span, read_path) {
            (Span::Full, ReadPath::Cached) => vec![full, warm],
            _ => vec![warm],
        };
        for until in phases.iter().filter(|until| !until.time.is_zero()) {
            let watch = Stopwatch::start(self.workers.world);
            self.workers.on_all_threads("warm_up", |thread| self.task(thread, &watch, until))?;
        }
        Ok(())
    }

    fn measured(&self) -> Until {
        let scanning = match self.config.span {
            Span::Filling => Scanning::Ends,
            Span::Full | Span::Timed => Scanning::Nothing,
        };
        Until { time: self.config.time, scanning, phase: 3 }
    }

    /// Whether a phase is over, for a task that looks now and then. The first task checks
    /// for all whether pages are reclaimed, because the check sums the counters of all CPUs.
    fn is_over(&self, thread: usize, watch: &Stopwatch<'_, W>, until: &Until) -> bool {
        if thread == 0 && until.scanning == Scanning::Ends && (self.scanned)() > 0 {
            self.ended.store(until.phase, Relaxed);
        }
        let ended = self.ended.load(Relaxed) >= until.phase;
        ended || watch.elapsed() >= until.time || self.workers.failed()
    }

    /// One task at work.
    fn task(
        &self,
        thread: usize,
        watch: &Stopwatch<'_, W>,
        until: &Until,
    ) -> Result<Done, Failure> {
        let streams = self.config.threads;
        match thread {
            _ if thread < streams => self.stream(thread, watch, until),
            _ if thread < streams + self.beside => self.use_anon(thread, watch, until),
            _ => self.need_pages(thread, watch, until),
        }
    }

    /// Reads a file, and begins anew at its end.
    fn stream(
        &self,
        thread: usize,
        watch: &Stopwatch<'_, W>,
        until: &Until,
    ) -> Result<Done, Failure> {
        let (own, file) = (Stopwatch::start(self.workers.world), file(self.config, thread));
        let (mut access, mut tally) = (self.workers.target.enter(), Tally::new());
        let (mut next, mut pages) = (self.places[thread].load(Relaxed), 0);
        while !self.is_over(thread, watch, until) {
            let block = next..file.end.min(next + BLOCK_PAGES);
            let began = watch.ticks();
            let read = match self.config.read_path {
                ReadPath::Direct => self.read_past(&mut access, block.clone())?,
                ReadPath::Cached => {
                    let over = || self.is_over(thread, watch, until);
                    self.read(&mut access, block.clone(), over)?
                }
            };
            if read == block.end - block.start {
                tally.latency.saturating_record(watch.ticks().saturating_sub(began));
            }
            pages += read;
            next = if next + read == file.end { file.start } else { next + read };
        }
        self.places[thread].store(next, Relaxed);
        tally.loads = pages * CHECKED_WORDS;
        let bytes = pages * (WORDS * size_of::<u64>()) as u64;
        Ok(Done::Streamed(tally, Pass { bytes, time: own.elapsed() }))
    }

    /// Reads a block page by page, until time is up; returns how many pages.
    fn read(
        &self,
        access: &mut T::Access<'_>,
        block: Range<u64>,
        is_over: impl Fn() -> bool,
    ) -> Result<u64, Failure> {
        for page in block.clone() {
            if page % CLOCK_PAGES == 0 && is_over() {
                return Ok(page - block.start);
            }
            let mut right = Ok(());
            let read = access.copy(page, &mut |words| right = self.check(page, words));
            read.map_err(Failure::Denied)?;
            right?;
        }
        Ok(block.end - block.start)
    }

    /// Reads a block at once.
    fn read_past(&self, access: &mut T::Access<'_>, block: Range<u64>) -> Result<u64, Failure> {
        let mut right = Ok(());
        let read = access.copy_past(block.clone(), &mut |page, words| {
            if right.is_ok() {
                right = self.check(page, words);
            }
        });
        read.map_err(Failure::Denied)?;
        right.map(|()| block.end - block.start)
    }

    /// Checks some words of a file's page: which ones differs from page to page.
    fn check(&self, page: u64, words: &Words) -> Result<(), Failure> {
        let (content, kind) = (self.workers.content, kind_of(page));
        (0..CHECKED_WORDS).try_for_each(|turn| {
            let word = ((page * 7 + turn * 131) % WORDS as u64) as usize;
            let (expected, found) = (word_of(content, kind, word), words[word].load(Relaxed));
            if found == expected {
                return Ok(());
            }
            let found_version = content.version(kind, word, found);
            let (version, seed) = (Some(0), content.seed());
            let wrong = Mismatch { page, word, version, expected, found, found_version, seed };
            Err(Failure::Mismatch(wrong))
        })
    }

    /// Goes round a part of the anonymous pages.
    fn use_anon(
        &self,
        thread: usize,
        watch: &Stopwatch<'_, W>,
        until: &Until,
    ) -> Result<Done, Failure> {
        let anon = self.config.layout.anon();
        let part = stretch(anon.end - anon.start, thread - self.config.threads, self.beside);
        let (mut access, mut turns) = (self.workers.target.enter(), 0);
        while !self.is_over(thread, watch, until) && part.end > part.start {
            let page = anon.start + part.start + turns % (part.end - part.start);
            let word = (turns % WORDS as u64) as usize;
            let held = access.page(page, Intent::Read).map_err(Failure::Denied)?;
            let found = held[word].load(Relaxed);
            drop(held);
            self.workers.check(page, word, 0..=0, found)?;
            turns += 1;
            if turns % ANON_BURST == 0 {
                self.workers.world.sleep(PAUSE);
            }
        }
        Ok(Done::Beside(turns))
    }

    /// Writes to a new page now and then and records the latency, until the phase is over or no new
    /// page is left.
    fn need_pages(
        &self,
        thread: usize,
        watch: &Stopwatch<'_, W>,
        until: &Until,
    ) -> Result<Done, Failure> {
        let small = self.config.layout.small();
        // Pages that were needed in an earlier phase are already in memory: each phase uses pages
        // after those.
        let third = (small.end - small.start) / 3;
        let mine = small.start + third * (until.phase - 1)..small.start + third * until.phase;
        let (mut access, mut waits) = (self.workers.target.enter(), Tally::new().latency);
        for page in mine {
            self.workers.world.sleep(Duration::from_micros(SMALL_MICROS));
            if self.is_over(thread, watch, until) {
                break;
            }
            let began = watch.ticks();
            let held = access.page(page, Intent::Write).map_err(Failure::Denied)?;
            held[0].store(self.workers.content.value(page, 0, 0), Relaxed);
            drop(held);
            waits.saturating_record(watch.ticks().saturating_sub(began));
        }
        Ok(Done::Waited(waits))
    }

    /// Checks every word of the anonymous pages, after the last stream.
    fn sweep(&self, filled: bool) -> Result<Duration, Failure> {
        let (anon, threads) = (self.config.layout.anon(), self.workers.threads);
        if !filled {
            return Ok(Duration::ZERO);
        }
        self.workers.each_page(
            "sweep",
            |thread| {
                let part = stretch(anon.end - anon.start, thread, threads);
                anon.start + part.start..anon.start + part.end
            },
            |access, page| {
                let words = access.page(page, Intent::Read).map_err(Failure::Denied)?;
                let mut cells = words.iter().enumerate();
                cells.try_for_each(|(word, cell)| {
                    self.workers.check(page, word, 0..=0, cell.load(Relaxed))
                })
            },
        )
    }
}

#[cfg(test)]
mod tests;
