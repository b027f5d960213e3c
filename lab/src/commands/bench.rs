//! `highwater-lab bench`: the lab's workloads on Highwater, beside the kernel's way where asked.
//!
//! ```text
//! job: pmbench, usemem, streams   what runs, on whatever memory
//! highalloc   an arena with compaction beside one without, in this process
//! malloc      a child for each allocator, in turn
//! walk        an arena in huge pages beside one in small ones, in this process
//! without --peer   subject ── in this process ──> figures ──> table or JSON
//! with --peer      rounds ── a child for each peer, one for ours, in turn ──> all, and ratios
//!                  keeper: a process that holds swap and cgroup, and undoes them (lab::peer)
//! ```
//! Exit status: 0, 1 if contents were wrong or a run failed, 2 if it could not be set up.

mod highalloc;
mod job;
mod malloc;
mod rounds;
mod subject;
mod table;
mod walk;

use clap::{Args, Subcommand, ValueEnum};
use highalloc::Highalloc;
use highwater_command::{print, say};
use highwater_lab::peer::keeper::{self, Plan, Ready};
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_units::Bytes;
use job::{Job, Pmbench, Streams, Usemem};
use malloc::{LoadArgs, Malloc};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use walk::Walk;

/// Measure Highwater with workloads that check all they read
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Threads that read and write random words of a set larger than memory
    Pmbench(Pmbench),
    /// Tasks that write memory once, or read back what was swapped out
    Usemem(Usemem),
    /// Tasks that read a file from end to end in blocks of 4 MiB, as dd does (os)
    Streams(Streams),
    /// Blocks of 2 MiB out of an arena in use, with compaction and without (os)
    Highalloc(Highalloc),
    /// Objects of malloc, under glibc, jemalloc, mimalloc and Highwater
    Malloc(Malloc),
    /// Call malloc and free, and print how long that took
    #[command(hide = true)]
    MallocLoad(LoadArgs),
    /// Words at random of pages of 2 MiB, in huge pages and in small ones (os)
    Walk(Walk),
    /// Hold the set-up of a peer until standard input closes
    #[command(hide = true)]
    Keep(Keep),
}

/// What manages the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Platform {
    /// Highwater: pages are reached through guards
    Os,
    /// Highwater: pages are reached through real page faults
    Uffd,
    /// The kernel: anonymous memory, in whatever limit this process has
    #[value(hide = true)]
    None,
    /// The kernel: a mapped file
    #[value(hide = true)]
    Mmap,
    /// Nobody: transfers of a file
    #[value(hide = true)]
    IoUring,
    /// The kernel: a file read through the page cache
    #[value(hide = true)]
    Buffered,
    /// Nobody: a file read past the page cache
    #[value(hide = true)]
    Direct,
}

/// What Highwater is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// Plain memory without limit
    None,
    /// The kernel's swap to zram under a memory cgroup (needs root)
    KernelSwap,
    /// A mapped file, under a memory cgroup where that is allowed
    Mmap,
    /// The bare disk: transfers of the same sizes, 64 in flight (reads or writes alone)
    IoUring,
    /// read(2) in blocks of 4 MiB, under a memory cgroup where that is allowed (streams)
    Buffered,
    /// The same past the page cache, with O_DIRECT (streams)
    Direct,
}

/// How pages are mapped and unmapped by userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mapping {
    /// MOVE where the kernel has it
    Auto,
    /// UFFDIO_MOVE
    Move,
    /// UFFDIO_COPY
    Copy,
}

/// What all workloads can be told.
#[derive(Clone, Debug, Args)]
struct Common {
    /// What manages the memory
    #[arg(long, value_enum)]
    platform: Platform,
    /// Serve faults in the faulting thread (uffd)
    #[arg(long)]
    in_thread: bool,
    /// Budget
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256M")]
    memory: Bytes,
    /// Memory the threads use
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    set: Bytes,
    /// Threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512),
          default_value = "1")]
    threads: u32,
    /// Swap device of Highwater, as of `highwater run`; by default a RAM device large enough
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Fixes contents and order of accesses
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Kswapd threads: 1 to 16, or auto for as many as it takes while CPUs idle
    #[arg(long, value_name = "N|auto", default_value_t = Config::default().kswapd_threads)]
    kswapd: KswapdThreads,
    /// Give out blocks of 2 MiB, and swap them out and in whole
    #[arg(long)]
    large_pages: bool,
    /// Pages that khugepaged looks at every 10 s to make large ones of; 0: it does not run
    #[arg(long, value_name = "PAGES", requires = "large_pages")]
    khugepaged: Option<u32>,
    /// How pages are mapped and unmapped (uffd)
    #[arg(long, value_enum, default_value = "auto")]
    mapping: Mapping,
    /// Run the same without Highwater too, and print the ratio (may be repeated)
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    /// With --peer: how often all run, in turn; the median by accesses/s counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99),
          default_value = "1")]
    rounds: u32,
    /// Where the file of streams, and of --peer mmap and io-uring, is
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// The cgroup to run in
    #[arg(long, hide = true)]
    join_cgroup: Option<PathBuf>,
    /// The swap device whose traffic is ours alone
    #[arg(long, hide = true)]
    swap_device: Option<String>,
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

/// Why there are no figures.
#[derive(Debug)]
enum Trouble {
    /// It could not be set up, for the reason given in one line.
    Setup(String),
    /// It ran and failed: contents were wrong, or it did not come to its end.
    Run(String),
    /// A child has said what is wrong; this is its exit status.
    Said(u8),
}

impl Trouble {
    /// Says it, where no child has, and gives the exit status.
    fn report(self) -> ExitCode {
        let (status, text) = match self {
            Trouble::Setup(text) => (2, text),
            Trouble::Run(text) => (1, text),
            Trouble::Said(status) => return status.into(),
        };
        say(text);
        status.into()
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: BenchArgs) -> ExitCode {
    let done = match args.workload {
        Workload::Pmbench(job) => bench(&job),
        Workload::Usemem(job) => bench(&job),
        Workload::Streams(job) => bench(&job),
        Workload::Highalloc(job) => job.run(),
        Workload::Malloc(job) => job.run(),
        Workload::MallocLoad(load) => load.run().map(|figures| json(&figures)),
        Workload::Walk(job) => job.run(),
        Workload::Keep(args) => {
            return keep(&args).map_or_else(Trouble::report, |()| ExitCode::SUCCESS);
        }
    };
    done.map_or_else(Trouble::report, |text| print(format_args!("{text}\n")))
}

fn bench(job: &impl Job) -> Result<String, Trouble> {
    Ok(match (&job.common().peer[..], job.common().json) {
        ([], false) => table::one(job, &subject::run(job)?),
        ([], true) => json(&subject::run(job)?),
        (peers, false) => table::all(job, &rounds::run(job, peers)?),
        (peers, true) => json(&rounds::run(job, peers)?),
    })
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("figures have text keys")
}

/// Answers with one line of JSON, `Ok` of [`Ready`] or `Err` of why not, then holds.
fn keep(args: &Keep) -> Result<(), Trouble> {
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
            Err(Trouble::Said(2))
        }
        Err(reason) => Err(Trouble::Run(reason.to_string())),
        Ok(()) => Ok(()),
    }
}

fn answer(answer: &Result<Ready, String>) -> std::io::Result<()> {
    let line = serde_json::to_string(answer)?;
    writeln!(std::io::stdout(), "{line}")?;
    std::io::stdout().flush()
}

/// A size as people write it, in binary units.
fn size(text: &str) -> Result<Bytes, String> {
    match highwater_command::size(text)? {
        bytes if bytes.pages() > 0 => Ok(bytes),
        _ => Err("less than a page".into()),
    }
}

/// The name a value has on the command line.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is skipped").get_name().to_owned()
}
