//! `highwater-lab bench faults`: what a page fault of a running program costs, beside the kernel's
//! swap on zram.
//!
//! ```text
//! each pattern, each number of threads:  kernel      a child in a cgroup         \
//!                                        program     a child of `highwater run`   |
//!                                        in-thread   a child on uffd               > figures,
//!                                        handlers    a child on uffd              |  ratios
//!                                        zram, os    children, up to 2 threads   /
//! ```
//! Each is a run of pmbench, so contents are checked. Runs of a case follow each other directly,
//! because a machine's speed changes over minutes.

mod figures;
mod table;

use super::common::{BenchError, Common, Mapping, Peer, Platform, json, name_of, size};
use super::job::{Job, Pmbench, Visits};
use super::rounds;
use super::subject::Run;
use crate::commands::number::number;
use clap::Args;
use figures::{Case, Matrix, Subject};
use highwater_command::say;
use highwater_devices::Seal;
use highwater_mm::Config;
use highwater_units::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Most threads of the subjects zram and os, so that all cases take less than 12 minutes.
const FEW_THREADS: u32 = 2;
/// The kernel's OOM killer ends some runs in a cgroup although swap is free (Linux 6.18: one in six
/// on a busy machine of 2 CPUs). So often a run is tried.
const ATTEMPTS: u32 = 5;

#[derive(Clone, Debug, Args)]
pub(super) struct Faults {
    /// The servers of faults to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kernel,program,in-thread,handlers,zram,os"
    )]
    subject: Vec<Subject>,
    /// The order in which pages are visited
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform,normal,zipf")]
    pattern: Vec<Visits>,
    /// Numbers of threads, each measured in turn
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,8,32",
          value_parser = number::<u32>(1..=512))]
    threads: Vec<u32>,
    /// Memory budget
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "128M")]
    memory: Bytes,
    /// Memory the threads use
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "512M")]
    set: Bytes,
    /// Percentage of accesses that are reads
    #[arg(long, value_name = "PERCENT", value_parser = number::<u32>(0..=100),
          default_value = "80")]
    read: u32,
    /// How long the threads of a run are measured
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(1..=86_400),
          default_value = "5")]
    time: u64,
    /// How long the threads run before the measurement starts
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(0..=86_400),
          default_value = "3")]
    warm_up: u64,
    /// Swap device of Highwater, as for `highwater run`; by default a RAM device large enough
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Number of rounds in which all run in turn; the median by accesses/s is reported
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=99),
          default_value = "1")]
    rounds: u32,
    /// Seed of contents and order of accesses
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
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
        let Faults { read, warm_up, rounds, seed, .. } = *self;
        let matrix = Matrix {
            memory_bytes: self.memory.0,
            set_bytes: self.set.0,
            read_percent: read,
            warm_up_seconds: warm_up,
            rounds,
            seed,
            conditions,
            cases,
        };
        Ok(if self.json { json(&matrix) } else { table::table(&matrix) })
    }

    /// Runs all subjects in turn, `--rounds` times. A kernel without such swap leaves `subjects`.
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
                    Subject::Kernel => kernel(&job, conditions)?,
                    Subject::Zram | Subject::Os if threads > FEW_THREADS => continue,
                    Subject::Program => {
                        Outcome::Ran(Box::new(rounds::program_run(&job, &self.program_options())?))
                    }
                    _ => Outcome::Ran(Box::new(rounds::own_run(&job)?)),
                };
                match run {
                    Outcome::Ran(run) => runs.entry(subject).or_default().push(*run),
                    Outcome::Killed => {}
                    Outcome::Unavailable => subjects.retain(|other| *other != subject),
                }
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
            seal: Seal::default(),
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

    /// The options of `highwater run`: the same budget and device.
    fn program_options(&self) -> Vec<String> {
        let memory = ["--paged".to_owned(), self.memory.0.to_string()];
        let swap = match &self.swap[..] {
            [] => vec![format!("ram:{}", self.set.0)],
            given => given.to_vec(),
        };
        let swap = swap.into_iter().flat_map(|spec| ["--swap".to_owned(), spec]);
        memory.into_iter().chain(swap).collect()
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

/// How a run of a subject ended.
enum Outcome {
    Ran(Box<Run>),
    /// The OOM killer ended each attempt: this case has no figures of the subject.
    Killed,
    /// The system has no such subject.
    Unavailable,
}

/// A run on the kernel's swap. `conditions` has how, or why not.
fn kernel(job: &Pmbench, conditions: &mut Vec<String>) -> Result<Outcome, BenchError> {
    let threads = job.common().threads;
    for _ in 0..ATTEMPTS {
        match rounds::peer_run(job, Peer::KernelSwap) {
            Ok((run, under)) => {
                note_once(conditions, format!("{under}, at T = {threads}"));
                return Ok(Outcome::Ran(Box::new(run)));
            }
            Err(BenchError::Setup(reason)) => {
                note_once(conditions, format!("not compared: {reason}"));
                return Ok(Outcome::Unavailable);
            }
            Err(BenchError::Killed(reason)) => {
                conditions.push(format!("kernel-swap at T = {threads}: {reason}"));
            }
            Err(error) => return Err(error),
        }
    }
    conditions
        .push(format!("kernel-swap at T = {threads}: no figures, all {ATTEMPTS} runs killed"));
    Ok(Outcome::Killed)
}

/// Keeps each line once: devices are numbered anew for each run.
fn note_once(conditions: &mut Vec<String>, line: String) {
    let text = |line: &str| line.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    if conditions.iter().all(|known| text(known) != text(&line)) {
        conditions.push(line);
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
