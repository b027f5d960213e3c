//! What `bench faults` measured: a case for each pattern and number of threads.

use crate::commands::bench::common::name_of;
use clap::ValueEnum;
use highwater_command::{Unit, counted};
use highwater_lab::workload::figures::Figures;
use serde::Serialize;
use std::collections::BTreeMap;

/// A server of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Subject {
    /// The kernel, with swap on zram in a memory cgroup (needs root)
    Kernel,
    /// A separate program under `highwater run`, with default settings
    Program,
    /// Highwater as a library: the faulting thread serves its own faults
    InThread,
    /// Highwater as a library: handler threads serve faults
    Handlers,
    /// As in-thread, but swap is compressed with lz4 as the kernel's, not plain (1, 2 threads)
    Zram,
    /// Highwater, with pages reached through guards: no page faults at all (1, 2 threads)
    Os,
}

/// All cases.
#[derive(Debug, Serialize)]
pub(super) struct Matrix {
    pub(super) memory_bytes: u64,
    pub(super) set_bytes: u64,
    pub(super) read_percent: u32,
    pub(super) warm_up_seconds: u64,
    pub(super) rounds: u32,
    pub(super) seed: u64,
    /// The conditions of the subjects' runs, a line each.
    pub(super) conditions: Vec<String>,
    pub(super) cases: Vec<Case>,
}

/// One pattern with one number of threads.
#[derive(Debug, Serialize)]
pub(super) struct Case {
    pub(super) pattern: String,
    pub(super) threads: u32,
    pub(super) runs: BTreeMap<Subject, CaseRun>,
}

/// A subject's median run.
#[derive(Debug, Serialize)]
pub(super) struct CaseRun {
    pub(super) figures: Figures,
    /// accesses/s, to the kernel's.
    pub(super) accesses_ratio: Option<f64>,
    /// CPU time of the process per major fault, to the kernel's.
    pub(super) cpu_per_major_fault_ratio: Option<f64>,
}

impl Case {
    pub(super) fn new(pattern: String, threads: u32, figures: BTreeMap<Subject, Figures>) -> Case {
        let kernel = figures.get(&Subject::Kernel).cloned();
        let beside = |own: Option<f64>, figure: fn(&Figures) -> Option<f64>| {
            let kernel = kernel.as_ref().and_then(figure).filter(|figure| *figure > 0.0);
            own.zip(kernel).map(|(own, kernel)| own / kernel)
        };
        let run = |(subject, figures): (Subject, Figures)| {
            let accesses_ratio = beside(Some(figures.accesses_per_s), |f| Some(f.accesses_per_s));
            let cpu_per_major_fault_ratio =
                beside(figures.cpu_ns_per_major_fault, |f| f.cpu_ns_per_major_fault);
            (subject, CaseRun { figures, accesses_ratio, cpu_per_major_fault_ratio })
        };
        Case { pattern, threads, runs: figures.clone().into_iter().map(run).collect() }
    }

    /// A line while the others run.
    pub(super) fn progress(&self) -> String {
        let rate = |(subject, run): (&Subject, &CaseRun)| {
            let rate = Unit::Rate.show(Some(run.figures.accesses_per_s));
            format!("{} {rate}", name_of(subject))
        };
        let rates: Vec<_> = self.runs.iter().map(rate).collect();
        let threads = counted(self.threads.into(), "thread", "threads");
        format!("{}, {threads}: {} accesses/s", self.pattern, rates.join(", "))
    }
}
