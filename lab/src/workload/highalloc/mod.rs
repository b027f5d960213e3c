//! stress-highalloc (mmtests): large blocks are asked for while kernels are built.
//!
//! ```text
//! set: files of build 0 | of build 1 | ...    compiler 0 | compiler 1 | ...
//!      one device's file, in one space        a space each
//!      files: sources, read in order; objects, written, and read again when they are linked
//! seat b < builds: Build      unit after unit, until the builds are ended
//! the last seat:   Tester     pass 1, pass 2 beside the builds; they end, files go; pass 3: rested
//! ```
//! A unit reads sources, keeps kernel memory for the files that it opened, starts a compiler that
//! writes its memory, works, finds there what it wrote, writes an object and ends: all of its
//! memory is freed. A pass asks for as many blocks of 2 MiB as 95 % of memory would be, and keeps
//! what it gets until its end.
//!
//! Contents are checked as they are used: of sources some words, of compilers' pages and objects
//! the word that was written. Builds share nothing but the flag that ends them, and how many still
//! run.

mod build;
mod figures;
mod kernel;
mod tester;

pub use figures::{HighallocFigures, PassFigures, ScannerFigures};
pub use kernel::Share;

use super::crew::Crew;
use super::outcome::{Failure, Outcome};
use super::tally::Tally;
use super::{Arena, Service, Words};
use build::Build;
use hdrhistogram::Histogram;
use highwater_mm::Mobility;
use highwater_mm::stats::Snapshot;
use highwater_units::{Nanos, Order, Pfn};
use kernel::Kernel;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

/// How long is waited after an attempt: 2 MiB at 16 MiB/s (MS_DELAY).
pub const INTERVAL: Duration = Duration::from_millis(125);
/// What a compiler computes for each page that it touches first, on the whole machine: some 12,000
/// pages in a second.
pub const WORK: Nanos = Nanos(80_000);
/// Attempts of a pass, as the part of memory that they ask for.
const ASKED_PERCENT: u64 = 95;
/// What the kernel takes for itself when it starts: its image, frame records, hash tables.
const RESERVED_PERCENT: u64 = 3;
/// Of the files of a build, how much is sources.
const SOURCES_PERCENT: u64 = 75;
/// Intervals that builds run before the first pass (5 minutes are 2400).
const WARM_UP: u32 = 240;
/// Files of a build, at least: an object is written again only when it was linked.
pub const FILE_PAGES_MIN: u64 = 512;

/// What the set consists of, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Kernels that are built at once.
    pub builds: usize,
    /// Sources and objects of each.
    pub file_pages: u64,
    /// Memory of its compiler, at most.
    pub anon_pages: u64,
}

impl Layout {
    /// Pages of all files.
    pub fn files(&self) -> u64 {
        self.builds as u64 * self.file_pages
    }

    fn sources(&self, build: usize) -> Range<u64> {
        let first = build as u64 * self.file_pages;
        first..first + self.file_pages * SOURCES_PERCENT / 100
    }

    fn objects(&self, build: usize) -> Range<u64> {
        self.sources(build).end..(build as u64 + 1) * self.file_pages
    }

    fn compiler(&self, build: usize) -> Range<u64> {
        let first = self.files() + build as u64 * self.anon_pages;
        first..first + self.anon_pages
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What the set consists of.
    pub layout: Layout,
    /// Memory, in pages.
    pub memory: u64,
    /// Kernel memory that the builds hold together, in pages.
    pub kernel: Share,
    /// How long is waited after an attempt.
    pub interval: Duration,
    /// What a compiler computes for each page that it touches first.
    pub work: Nanos,
    /// How long builds run before the first pass, beside what they always do.
    pub warm_up: Duration,
    /// Fixes contents and all that is drawn.
    pub seed: u64,
}

impl Config {
    /// Attempts of a pass.
    pub fn attempts(&self) -> u64 {
        self.memory * ASKED_PERCENT / 100 / u64::from(Order::LARGE.frames())
    }
}

/// What a pass was like.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Blocks that were asked for.
    pub attempts: u64,
    /// Blocks that there were.
    pub successes: u64,
    /// How long an attempt took, in ticks.
    pub latency: Histogram<u64>,
    /// Counters when it began, and when it had ended.
    pub counters: [Snapshot; 2],
}

/// Runs builds and passes on the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be had.
pub fn run<S: Arena + Sync>(service: &S, config: &Config) -> Result<Outcome, Failure> {
    let builds = config.layout.builds;
    let bench = Bench {
        service,
        crew: Crew::new(service, builds + 1, config.seed),
        config,
        kernels: (0..builds).map(|build| Mutex::new(Kernel::new(config, build))).collect(),
        ending: AtomicBool::new(false),
        running: AtomicUsize::new(builds),
    };
    let reserved = bench.reserve();
    let fill = Some(bench.fill()?);
    let (done, measured) = bench.crew.measure(service, |seat, watch| match seat {
        _ if seat < builds => Build::new(&bench, seat).work().map(Done::Built),
        _ => bench.test(watch).map(Done::Tested),
    })?;
    bench.kernels.iter().for_each(|kernel| lock(kernel).end(service));
    reserved.into_iter().for_each(|first| service.free_run(first));
    let (mut tally, mut highalloc) = (Tally::new(), None);
    for done in done {
        match done {
            Done::Built(built) => tally = Tally::sum([tally, built]),
            Done::Tested(passes) => highalloc = Some(passes),
        }
    }
    let pages = config.layout.files() + builds as u64 * config.layout.anon_pages;
    let threads = builds + 1;
    Ok(Outcome { pages, threads, fill, highalloc, ..Outcome::new(tally, measured) })
}

/// What a seat has done.
enum Done {
    Built(Tally),
    Tested(Vec<Pass>),
}

/// One run on one service.
struct Bench<'a, S: Service> {
    service: &'a S,
    crew: Crew<'a, S::Target, S::World>,
    config: &'a Config,
    /// Of each build.
    kernels: Vec<Mutex<Kernel>>,
    /// Builds are to end.
    ending: AtomicBool,
    /// How many have not.
    running: AtomicUsize,
}

/// A kernel, of which nobody else is using it: each seat has its own.
fn lock(kernel: &Mutex<Kernel>) -> std::sync::MutexGuard<'_, Kernel> {
    kernel.try_lock().expect("one seat uses it at a time")
}

impl<S: Arena + Sync> Bench<'_, S> {
    /// What is taken before anything else, in the largest blocks.
    fn reserve(&self) -> Vec<Pfn> {
        let blocks = self.config.memory * RESERVED_PERCENT / 100 / u64::from(Order::MAX.frames());
        let take = |_| self.service.alloc_run(Order::MAX, Mobility::Unmovable);
        (0..blocks).filter_map(take).collect()
    }

    /// One task puts all trees in their places, a file after the other: memory is full of pages of
    /// files then, and of what the kernel remembers of them.
    fn fill(&self) -> Result<Duration, Failure> {
        let watch = super::ticks::Stopwatch::start(self.crew.world);
        self.crew.on_all_threads("untar", |seat| match seat {
            0 => {
                (0..self.config.layout.builds).try_for_each(|build| Build::new(self, build).fill())
            }
            _ => Ok(()),
        })?;
        Ok(watch.elapsed())
    }
}

/// The kind of a page of the files, before it is written.
pub fn kind_of(page: u64) -> u64 {
    super::streams::kind_of(page)
}

/// Checks one word of a page of sources.
fn source_word(page: u64, words: &Words) -> (usize, u64) {
    let word = (page * 7 % super::WORDS as u64) as usize;
    (word, words[word].load(std::sync::atomic::Ordering::Relaxed))
}

#[cfg(test)]
mod tests;
