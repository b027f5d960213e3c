//! What a workload measured, or why it ended early.

use super::Denied;
use super::content::Mismatch;
use super::highalloc::Pass as HighallocPass;
use super::tally::Tally;
use super::world::{CpuUse, KernelCounts};
use hdrhistogram::Histogram;
use highwater_mm::slab::CacheReport;
use highwater_mm::stats::Snapshot;
use highwater_platform::LockStatistics;
use std::fmt;
use std::time::Duration;

/// What ends a run early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Memory did not hold what was written.
    Mismatch(Mismatch),
    /// A page could not be accessed.
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
    /// Time to write the whole set once before, where the workload does.
    pub fill: Option<Duration>,
    /// Time to check every word of the set.
    pub sweep: Duration,
    /// Pages of which every word was checked at the end.
    pub swept: u64,
    /// What the threads did.
    pub tally: Tally,
    /// The passes of the tasks, where the workload is a pass of each task.
    pub passes: Option<Vec<Pass>>,
    /// How long a small task beside them waited for pages, in ticks, where there is one.
    pub small: Option<Histogram<u64>>,
    /// What caches of objects held at the end, and did from the start, where there are any; and
    /// how often each refilled a CPU's list from another node.
    pub slabs: Option<Vec<(CacheReport, u64)>>,
    /// The passes that asked for large blocks, where there are some.
    pub highalloc: Option<Vec<HighallocPass>>,
    /// What was measured meanwhile.
    pub measured: Measured,
}

impl Outcome {
    /// A run without fill, sweep or passes; callers that have these set the fields.
    pub(crate) fn new(tally: Tally, measured: Measured) -> Outcome {
        Outcome {
            pages: 0,
            threads: 0,
            fill: None,
            sweep: Duration::ZERO,
            swept: 0,
            tally,
            passes: None,
            small: None,
            slabs: None,
            highalloc: None,
            measured,
        }
    }
}

/// What was measured while the threads ran.
#[derive(Clone, Debug)]
pub struct Measured {
    /// From the first thread's start to the last one's end.
    pub run: Duration,
    /// CPU time: of workers, handlers, kswapd, and on this machine the kernel.
    pub cpu: CpuUse,
    /// Counts of the kernel.
    pub kernel: KernelCounts,
    /// System calls for pages, where there are some.
    pub calls: Option<u64>,
    /// Nanoseconds per tick of latencies.
    pub nanos_per_tick: f64,
    /// Counters when the threads started.
    pub before: Snapshot,
    /// Counters when they had ended.
    pub after: Snapshot,
    /// Statistics of locks, where they are measured.
    pub locks: Option<LockStatistics>,
}

/// What one task did before it ended or time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// 8 for each access, whatever page it was in.
    pub bytes: u64,
    /// From its start to its end.
    pub time: Duration,
}

impl Pass {
    /// KiB per second, which usemem calls KB/s.
    pub fn kib_per_s(&self) -> f64 {
        self.bytes as f64 / 1024.0 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
