//! Everything that `--set` can change.

use crate::workload::pattern::Pattern;
use crate::workload::streams::{ReadPath, Span};
use highwater_mm::Config;
use highwater_platform::Recency;
use highwater_sim::Policy;
use highwater_units::Nanos;
use std::fmt;

/// How much of a machine's memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A 64th, or less so that memory is at most 1 GiB, where the machine allows it.
    Auto,
    /// One part in N.
    By(u64),
}

/// Whose memory the tasks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// All tasks are threads of one process, and use all of its memory.
    One,
    /// Each task is a process and has an equal part of the set.
    PerTask,
}

/// All settings of a simulated workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The manager's; `min_free` and `watermark_scale` are those below.
    pub config: Config,
    /// Frames kept free; none for those of the whole machine (`Machine::watermarks`).
    pub min_free: Option<u32>,
    /// Gaps between the watermarks, in 10000ths of a node; none for those of the whole machine.
    pub watermark_scale: Option<u32>,
    /// The number of loads in 100 accesses.
    pub read_percent: u32,
    /// The order of pages.
    pub pattern: Pattern,
    /// The set, in parts of memory.
    pub set: f64,
    /// Seconds that pmbench runs before it is measured.
    pub warm_up: f64,
    /// How many accesses ahead pmbench announces its pages for prefetch.
    pub ahead: usize,
    /// How streams read files.
    pub read_path: ReadPath,
    /// Which part of streams is measured.
    pub span: Span,
    /// Anonymous pages that are in use beside streams, in parts of memory.
    pub anon: f64,
    /// Whether a small task beside streams needs pages.
    pub small: bool,
    /// The time of an operation in workloads of objects, beside its objects; `None`: the workload's
    /// own value.
    pub work: Option<Nanos>,
    /// Milliseconds from one end of a grace period to the next.
    pub grace: f64,
    /// Memory of all compilers beside large blocks, at most, in parts of memory.
    pub compilers: f64,
    /// The kernel's memory for their builds, in parts of memory.
    pub kernel: f64,
    /// The percentage of the kernel's memory that stays when the builds have ended.
    pub kernel_left: u64,
    /// Whose it is.
    pub processes: Processes,
    /// How much memory.
    pub scale: Scale,
    /// Which CPU runs next.
    pub policy: Policy,
    /// How accesses are noticed, and how pages are reached: through guards, or through page tables.
    pub recency: Recency,
    /// Names of swap devices; none for all that the machine has for swap.
    pub devices: Option<Vec<String>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            config: Config::default(),
            min_free: None,
            watermark_scale: None,
            read_percent: 80,
            pattern: Pattern::Uniform,
            set: 2.0,
            warm_up: 0.0,
            ahead: 0,
            read_path: ReadPath::Cached,
            span: Span::Full,
            anon: 0.0,
            small: false,
            work: None,
            grace: 10.0,
            compilers: 0.2,
            kernel: 0.1,
            kernel_left: 10,
            processes: Processes::PerTask,
            scale: Scale::Auto,
            policy: Policy::SmallestClock,
            recency: Recency::AccessedBit,
            devices: None,
        }
    }
}

/// A setting that is not possible: what is wrong, and what to do. Each is part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}
