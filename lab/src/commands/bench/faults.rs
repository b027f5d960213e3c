//! `highwater-lab bench faults`: what a page fault costs in the running program, beside the kernel's
//! swap on zram.
//!
//! ```text
//! each pattern, each number of threads:  kernel      a child in a memory cgroup   \
//!                                        in-thread   a child on uffd              > figures, ratios
//!                                        handlers    a child on uffd              /
//!                                        zram, os    children, up to 2 threads
//! ```
//! Each is a run of pmbench, so contents are checked. Runs of a case follow each other directly,
//! because a machine's speed changes over minutes.

mod table;

use super::common::{BenchError, Common, Mapping, Peer, Platform, json, name_of, size};
use super::job::{Pmbench, Visits};
use super::rounds;
use super::subject::Run;
use clap::{Args, ValueEnum};
use highwater_command::{Unit, counted, say};
use highwater_lab::workload::figures::Figures;
use highwater_mm::Config;
use highwater_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What only says where the time goes is run with few threads, to keep all below 12 minutes.
const FEW_THREADS: u32 = 2;

/// What serves the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// The kernel, with swap on zram in a memory cgroup (needs root)
    Kernel,
    /// Highwater, in the thread that faults
    InThread,
    /// Highwater, by handler threads
    Handlers,
    /// As in-thread, but compressed with lz4 as by the kernel, not in plain memory (1, 2 threads)
    Zram,
    /// Highwater, behind guards: no page faults at all (1, 2 threads)
    Os,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Faults {
    /// What serves the faults
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kernel,in-thread,handlers,zram,os"
    )]
    subject: Vec<Subject>,
    /// The order in which pages are visited
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform,normal,zipf")]
    pattern: Vec<Visits>,
    /// Numbers of threads
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,8,32",
          value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Vec<u32>,
    /// Budget
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "128M")]
    memory: Bytes,
    /// Memory the threads use
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "512M")]
    set: Bytes,
    /// Of 100 accesses, how many read
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100),
          default_value = "80")]
    read: u32,
    /// How long the threads of a run are measured
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400),
          default_value = "5")]
    time: u64,
    /// How long they run before that
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400),
          default_value = "3")]
    warm_up: u64,
    /// Swap device of Highwater, as of `highwater run`; by default a RAM device large enough
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// How often all run, in turn; the median by accesses/s counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99),
          default_value = "1")]
    rounds: u32,
    /// Fixes contents and order of accesses
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// All cases.
#[derive(Debug, Serialize)]
struct Matrix {
    memory_bytes: u64,
    set_bytes: u64,
    read_percent: u32,
    rounds: u32,
    seed: u64,
    /// What the subjects ran under, a line each.
    conditions: Vec<String>,
    cases: Vec<Case>,
}

/// One pattern with one number of threads.
#[derive(Debug, Serialize)]
struct Case {
    pattern: String,
    threads: u32,
    runs: BTreeMap<Subject, CaseRun>,
}

/// A subject's median run.
#[derive(Debug, Serialize)]
struct CaseRun {
    figures: Figures,
    /// accesses/s, to the kernel's.
    accesses_ratio: Option<f64>,
    /// CPU time of the process per major fault, to the kernel's.
    cpu_per_major_fault_ratio: Option<f64>,
}

impl Faults {
    /// Runs all cases, and gives what there is to print.
    pub(super) fn run(&self) -> Result<String, BenchError> {
        let mut subjects = self.subject.clone();
        subjects.sort_unstable();
        subjects.dedup();
        let mut conditions = vec![self.own_conditions()];
        let mut cases = Vec::new();
        for pattern in &self.pattern {
            for threads in &self.threads {
                let case = self.case(*pattern, *threads, &mut subjects, &mut conditions)?;
                say(case.progress());
                cases.push(case);
            }
        }
        let Faults { read, rounds, seed, .. } = *self;
        let matrix = Matrix {
            memory_bytes: self.memory.0,
            set_bytes: self.set.0,
            read_percent: read,
            rounds,
            seed,
            conditions,
            cases,
        };
        Ok(if self.json { json(&matrix) } else { table::table(&matrix) })
    }

    /// Runs all subjects in turn, `--rounds` times. A kernel that cannot be asked leaves `subjects`.
    fn case(
        &self,
        pattern: Visits,
        threads: u32,
        subjects: &mut Vec<Subject>,
        conditions: &mut Vec<String>,
    ) -> Result<Case, BenchError> {
        let mut runs: BTreeMap<Subject, Vec<Run>> = BTreeMap::new();
        for _ in 0..self.rounds {
            for subject in subjects.clone() {
                let job = self.job(subject, pattern, threads);
                let run = match subject {
                    Subject::Kernel => match rounds::peer_run(&job, Peer::KernelSwap) {
                        Ok((run, under)) => {
                            note_once(conditions, format!("{under}, at T = {threads}"));
                            run
                        }
                        Err(BenchError::Setup(reason)) => {
                            note_once(conditions, format!("not compared: {reason}"));
                            subjects.retain(|other| *other != Subject::Kernel);
                            continue;
                        }
                        Err(error) => return Err(error),
                    },
                    Subject::Zram | Subject::Os if threads > FEW_THREADS => continue,
                    _ => rounds::own_run(&job)?,
                };
                runs.entry(subject).or_default().push(run);
            }
        }
        let figures = |(subject, runs)| (subject, rounds::median(runs).figures);
        Ok(Case::new(name_of(&pattern), threads, runs.into_iter().map(figures).collect()))
    }

    /// The run of a subject.
    fn job(&self, subject: Subject, pattern: Visits, threads: u32) -> Pmbench {
        let common = Common {
            platform: if subject == Subject::Os { Platform::Os } else { Platform::Uffd },
            in_thread: matches!(subject, Subject::InThread | Subject::Zram),
            memory: self.memory,
            set: self.set,
            threads,
            swap: if subject == Subject::Zram { vec![self.zram()] } else { self.swap.clone() },
            seed: self.seed,
            kswapd: Config::default().kswapd_threads,
            large_pages: false,
            khugepaged: None,
            mapping: Mapping::Auto,
            peer: Vec::new(),
            rounds: 1,
            // No file is made.
            dir: PathBuf::from("/var/tmp"),
            json: true,
            join_cgroup: None,
            swap_device: None,
        };
        Pmbench::new(common, (self.read, pattern), self.time, self.warm_up)
    }

    /// A compressing device with room for all pages, for they do not compress.
    fn zram(&self) -> String {
        format!("zram:{}M:lz4", (self.set.0 + self.set.0 / 8).div_ceil(1 << 20))
    }

    fn own_conditions(&self) -> String {
        let swap = match &self.swap[..] {
            [] => "plain memory".to_owned(),
            specs => specs.join(", "),
        };
        let zram = self.zram();
        format!("Highwater: budget {}, swap on {swap}, column zram on {zram}", self.memory)
    }
}

/// Keeps each line once: devices are numbered anew for each run.
fn note_once(conditions: &mut Vec<String>, line: String) {
    let text = |line: &str| line.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    if conditions.iter().all(|known| text(known) != text(&line)) {
        conditions.push(line);
    }
}

impl Case {
    fn new(pattern: String, threads: u32, figures: BTreeMap<Subject, Figures>) -> Case {
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
    fn progress(&self) -> String {
        let rate = |(subject, run): (&Subject, &CaseRun)| {
            let rate = Unit::Rate.show(Some(run.figures.accesses_per_s));
            format!("{} {rate}", name_of(subject))
        };
        let rates: Vec<_> = self.runs.iter().map(rate).collect();
        let threads = counted(self.threads.into(), "thread", "threads");
        format!("{}, {threads}: {} accesses/s", self.pattern, rates.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_differ_by_more_than_numbers() {
        let mut lines = Vec::new();
        for line in ["cgroup of 146 MiB, zram1", "cgroup of 161 MiB, zram2", "no"] {
            note_once(&mut lines, line.to_owned());
        }
        assert_eq!(lines, ["cgroup of 146 MiB, zram1", "no"]);
    }
}
