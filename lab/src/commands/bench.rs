//! `highwater-lab bench`: the lab's workloads on Highwater, beside the kernel's way where asked.
//!
//! ```text
//! common      options, platforms, peers, failures
//! job: pmbench, usemem, streams   what runs, on whatever memory
//! highalloc   an arena with compaction beside one without, in this process
//! malloc      a child for each allocator, in turn
//! faults      pmbench with several patterns and numbers of threads, a child for each subject
//! walk        an arena in huge pages beside one in small ones, in this process
//! seal        an encrypted swap file beside one that is not, in this process
//! without --peer   subject ── in this process ──> figures ──> table or JSON
//! with --peer      rounds ── a child for each peer, one for ours, in turn ──> all, and ratios
//!                  keeper: a process that holds swap and cgroup, and undoes them (lab::peer)
//! ```
//! Exit status: 0, 1 if contents were wrong or a run failed, 2 if it could not be set up.

mod common;
mod faults;
mod highalloc;
mod job;
mod malloc;
mod rounds;
mod seal;
mod subject;
mod table;
mod walk;

use clap::{Args, Subcommand};
use common::{BenchError, json};
use faults::Faults;
use highalloc::Highalloc;
use highwater_command::print;
use highwater_lab::peer::keeper::{self, Plan, Ready};
use highwater_units::Bytes;
use job::{Job, Pmbench, Streams, Usemem};
use malloc::{LoadArgs, Malloc};
use seal::Seal;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use walk::Walk;

/// Measure Highwater with workloads that check all data they read
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Threads that read and write random words of a set larger than memory
    Pmbench(Pmbench),
    /// The cost of a page fault, compared with the kernel's swap, by pattern and number of threads
    Faults(Faults),
    /// Tasks that write memory once or at random, or read swapped-out pages back
    Usemem(Usemem),
    /// Tasks that read a file from end to end in blocks of 4 MiB, as dd does (os)
    Streams(Streams),
    /// Allocation of 2 MiB blocks from an arena in use, without and with compaction (os)
    Highalloc(Highalloc),
    /// malloc and free under glibc, jemalloc, mimalloc and Highwater
    Malloc(Malloc),
    /// Call malloc and free, and print the time taken
    #[command(hide = true)]
    MallocLoad(LoadArgs),
    /// Random reads of words in 2 MiB pages, mapped by huge and by small pages (os)
    Walk(Walk),
    /// CPU time of writing pages to a swap file and reading them back, encrypted and unencrypted
    Seal(Seal),
    /// Keep a peer's cgroup and swap device until standard input closes
    #[command(hide = true)]
    Keep(Keep),
}

#[derive(Clone, Debug, Args)]
struct Keep {
    #[arg(long)]
    limit: u64,
    #[arg(long)]
    zram: Option<u64>,
    #[arg(long)]
    at_most: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: BenchArgs) -> ExitCode {
    let done = match args.workload {
        Workload::Pmbench(job) => bench(&job),
        Workload::Faults(job) => job.run(),
        Workload::Usemem(job) => bench(&job),
        Workload::Streams(job) => bench(&job),
        Workload::Highalloc(job) => job.run(),
        Workload::Malloc(job) => job.run(),
        Workload::MallocLoad(load) => load.run().map(|figures| json(&figures)),
        Workload::Walk(job) => job.run(),
        Workload::Seal(job) => job.run(),
        Workload::Keep(args) => {
            return keep(&args).map_or_else(BenchError::report, |()| ExitCode::SUCCESS);
        }
    };
    done.map_or_else(BenchError::report, |text| print(format_args!("{text}\n")))
}

fn bench(job: &impl Job) -> Result<String, BenchError> {
    Ok(match (&job.common().peer[..], job.common().json) {
        ([], false) => table::one(job, &subject::run(job)?),
        ([], true) => json(&subject::run(job)?),
        (peers, false) => table::all(job, &rounds::run(job, peers)?),
        (peers, true) => json(&rounds::run(job, peers)?),
    })
}

/// Answers with one line of JSON, `Ok` of [`Ready`] or `Err` of why not, then holds.
fn keep(args: &Keep) -> Result<(), BenchError> {
    let plan = Plan {
        limit: Bytes(args.limit),
        swap: args.zram.map(Bytes),
        at_most: Duration::from_secs(args.at_most),
    };
    let mut answered = false;
    let kept = keeper::keep(plan, std::io::stdin(), |ready| {
        answered = true;
        answer(&Ok(ready.clone()))
    });
    match kept {
        Err(reason) if !answered => {
            let _ = answer(&Err(reason.to_string()));
            Err(BenchError::Reported(2))
        }
        Err(reason) => Err(BenchError::Run(reason.to_string())),
        Ok(()) => Ok(()),
    }
}

fn answer(answer: &Result<Ready, String>) -> std::io::Result<()> {
    let line = serde_json::to_string(answer)?;
    writeln!(std::io::stdout(), "{line}")?;
    std::io::stdout().flush()
}
