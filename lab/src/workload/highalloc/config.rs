//! What stress-highalloc runs, and what a pass measures.

use hdrhistogram::Histogram;
use highwater_mm::stats::Snapshot;
use highwater_units::{Nanos, Order};
use std::ops::Range;
use std::time::Duration;

/// The wait after an attempt: 2 MiB at 16 MiB/s (MS_DELAY).
pub const INTERVAL: Duration = Duration::from_millis(125);
/// What a compiler computes for each page that it touches first, on the whole machine: some 12,000
/// pages in a second.
pub const WORK: Nanos = Nanos(80_000);
/// Attempts of a pass, as the part of memory that they ask for.
const ASKED_PERCENT: u64 = 95;
/// Of the files of a build, how much is sources.
const SOURCES_PERCENT: u64 = 75;
/// Intervals that builds run before the first pass (5 minutes are 2400).
pub(super) const WARM_UP: u32 = 240;
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

    pub(super) fn sources(&self, build: usize) -> Range<u64> {
        let first = build as u64 * self.file_pages;
        first..first + self.file_pages * SOURCES_PERCENT / 100
    }

    pub(super) fn objects(&self, build: usize) -> Range<u64> {
        self.sources(build).end..(build as u64 + 1) * self.file_pages
    }

    pub(super) fn compiler(&self, build: usize) -> Range<u64> {
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
    /// The wait after an attempt.
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
    /// Attempts to allocate a block.
    pub attempts: u64,
    /// Attempts that got a block.
    pub successes: u64,
    /// How long an attempt took, in ticks.
    pub latency: Histogram<u64>,
    /// Counters when it began, and when it had ended.
    pub counters: [Snapshot; 2],
}

/// Pages of the kernel's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// While kernels are built, all builds together.
    pub pages: u64,
    /// Of 100 of its allocations, how many are left when the files are gone.
    pub left_percent: u64,
}
