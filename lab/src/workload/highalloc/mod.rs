//! stress-highalloc (mmtests): large blocks are allocated while kernels are built.
//!
//! ```text
//! set: files of build 0 | of build 1 | ...    compiler 0 | compiler 1 | ...
//!      one device's file, in one space        a space each
//!      files: sources, read in order; objects, written, and read again when they are linked
//! thread b < builds: Build      unit after unit, until the builds are ended
//! the last thread:   Tester     pass 1, pass 2 beside the builds; builds end, files go; pass 3
//! ```
//! A unit reads sources, keeps kernel memory for the files that it opened, and starts a compiler,
//! which writes its memory, computes, checks what it wrote, writes an object and ends; all memory
//! of the compiler is then freed. A pass tries to allocate as many blocks of 2 MiB as 95 % of
//! memory holds, and keeps the blocks that it gets until its end.
//!
//! Contents are checked as they are used: some words of sources, and the written word of compilers'
//! pages and objects. Builds share only the flag that ends them, and the number of builds that
//! still run.

mod bench;
mod build;
mod config;
mod figures;
mod kernel;
mod tester;

pub use bench::kind_of;
pub use config::{Config, FILE_PAGES_MIN, INTERVAL, Layout, Pass, Share, WORK};
pub use figures::{HighallocFigures, PassFigures, ScannerFigures};

use super::Arena;
use super::outcome::{Failure, Outcome};
use super::tally::Tally;
use super::ticks::Stopwatch;
use super::workers::Workers;
use bench::{Bench, lock};
use build::Build;
use highwater_mm::Mobility;
use highwater_units::{Order, Pfn};
use kernel::Kernel;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

/// The part of memory that the kernel takes for itself when it starts: its image, frame records,
/// hash tables.
const RESERVED_PERCENT: u64 = 3;

/// Runs builds and passes on the memory of `service`.
///
/// # Errors
/// The first mismatch, or the first page that could not be accessed.
pub fn run<S: Arena + Sync>(service: &S, config: &Config) -> Result<Outcome, Failure> {
    let builds = config.layout.builds;
    let bench = Bench {
        service,
        workers: Workers::new(service, builds + 1, config.seed),
        config,
        kernels: (0..builds).map(|build| Mutex::new(Kernel::new(config, build))).collect(),
        ending: AtomicBool::new(false),
        running: AtomicUsize::new(builds),
    };
    let reserved = bench.reserve();
    let fill = Some(bench.fill()?);
    let (done, measured) = bench.workers.measure(service, |thread, watch| match thread {
        _ if thread < builds => Build::new(&bench, thread).work().map(Done::Built),
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

/// What a thread has done.
enum Done {
    Built(Tally),
    Tested(Vec<Pass>),
}

impl<S: Arena + Sync> Bench<'_, S> {
    /// Takes the memory of the kernel before anything else, in the largest blocks.
    fn reserve(&self) -> Vec<Pfn> {
        let blocks = self.config.memory * RESERVED_PERCENT / 100 / u64::from(Order::MAX.frames());
        let take = |_| self.service.alloc_run(Order::MAX, Mobility::Unmovable);
        (0..blocks).filter_map(take).collect()
    }

    /// One task reads all trees, one file after the other. Memory is then full of file pages, and
    /// of the kernel's records of the files.
    fn fill(&self) -> Result<Duration, Failure> {
        let watch = Stopwatch::start(self.workers.world);
        self.workers.on_all_threads("untar", |thread| match thread {
            0 => {
                (0..self.config.layout.builds).try_for_each(|build| Build::new(self, build).fill())
            }
            _ => Ok(()),
        })?;
        Ok(watch.elapsed())
    }
}

#[cfg(test)]
mod tests;
