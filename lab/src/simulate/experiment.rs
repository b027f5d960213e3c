//! What a simulation runs, and why it may fail.

use super::settings::{BadSetting, Settings};
use crate::workload::history::History;
use crate::workload::outcome::Failure;
use crate::workload::{streams, usemem};
use highwater_sim::{Machine, Stuck, Traced};
use highwater_units::Nanos;
use std::fmt;
use std::time::Duration;

/// How long tasks run that would otherwise run endlessly, or nearly so.
pub(super) const TIME: Duration = Duration::from_secs(2);

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Tasks that read and write random words of a set larger than memory.
    Pmbench,
    /// Tasks that write all of the set once, in sequence.
    UsememSeq,
    /// Tasks that write random words of the set.
    UsememRand,
    /// Tasks that read pages that were swapped out, in the order of `pattern`.
    SwapIn,
    /// Tasks that read files from end to end.
    Streams,
    /// Tasks that map and unmap: objects from slabs.
    Mmap1,
    /// Groups of tasks that send each other messages: objects from slabs.
    Hackbench,
    /// Large blocks, while that many kernels are built.
    Highalloc,
}

impl Workload {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Pmbench => "pmbench",
            Workload::UsememSeq => "usemem-seq",
            Workload::UsememRand => "usemem-rand",
            Workload::SwapIn => "swapin",
            Workload::Streams => "streams",
            Workload::Mmap1 => "mmap1",
            Workload::Hackbench => "hackbench",
            Workload::Highalloc => "highalloc",
        }
    }

    /// Bytes of this machine's memory that record the contents that the set must have; for files
    /// also their contents and page tables.
    pub(super) fn bookkeeping_bytes(self, tasks: usize, pages: u64) -> u64 {
        match self {
            Workload::Pmbench => History::bytes(tasks, pages),
            Workload::UsememSeq | Workload::UsememRand | Workload::SwapIn => {
                usemem::bookkeeping_bytes(pages)
            }
            Workload::Streams | Workload::Highalloc => pages * streams::BOOKS_BYTES,
            Workload::Mmap1 | Workload::Hackbench => 0,
        }
    }

    /// Whether it allocates objects, not pages: there is then no manager.
    pub(super) fn is_of_objects(self) -> bool {
        matches!(self, Workload::Mmap1 | Workload::Hackbench)
    }
}

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The machine, whole.
    pub machine: Machine,
    /// What runs on it.
    pub workload: Workload,
    /// How many tasks.
    pub tasks: usize,
    /// Fixes contents, accesses, and all that the simulator draws.
    pub seed: u64,
    /// The longest time that the tasks run, in virtual time; `None`: 2 s, except for usemem-seq,
    /// whose short pass runs to its end.
    pub time: Option<Nanos>,
    /// Everything else.
    pub settings: Settings,
    /// Whether to keep a trace.
    pub traced: Traced,
}

impl Experiment {
    /// With warm-up and measured time divided by `by`.
    pub fn shortened(mut self, by: f64) -> Experiment {
        self.settings.warm_up /= by;
        self.time = self.time.map(|time| Nanos((time.0 as f64 / by) as u64));
        self
    }
}

/// Why there are no figures.
#[derive(Clone, Debug, PartialEq)]
pub enum RunError {
    /// The experiment cannot be made: what is wrong, and what to do.
    Setup(BadSetting),
    /// Contents were wrong, or a page could not be accessed.
    Failed(Failure),
    /// The simulation did not come to its end.
    Stuck(Stuck),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Setup(bad) => bad.fmt(f),
            RunError::Failed(failure) => failure.fmt(f),
            RunError::Stuck(stuck) => write!(f, "the simulation is stuck: {stuck}"),
        }
    }
}
