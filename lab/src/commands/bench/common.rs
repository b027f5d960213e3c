//! What the benchmarks share: platforms, peers, options, failures.

use crate::commands::number::number;
use clap::{Args, ValueEnum};
use highwater_command::say;
use highwater_devices::Seal;
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_units::Bytes;
use std::path::PathBuf;
use std::process::ExitCode;

/// What manages the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands::bench) enum Platform {
    /// Highwater: pages are reached through guards
    Os,
    /// Highwater: pages are reached through real page faults
    Uffd,
    /// The kernel: anonymous memory, under the limit of this process, if any
    #[value(hide = true)]
    None,
    /// The kernel: a mapped file
    #[value(hide = true)]
    Mmap,
    /// No manager: transfers of a file
    #[value(hide = true)]
    IoUring,
    /// The kernel: a file read through the page cache
    #[value(hide = true)]
    Buffered,
    /// No manager: a file read past the page cache
    #[value(hide = true)]
    Direct,
}

/// What Highwater is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands::bench) enum Peer {
    /// Plain memory without a limit
    None,
    /// The kernel's swap to zram under a memory cgroup (needs root)
    KernelSwap,
    /// A mapped file, under a memory cgroup where permitted
    Mmap,
    /// The bare disk: transfers of the same sizes, 64 in flight (only reads alone or writes alone)
    IoUring,
    /// read(2) in blocks of 4 MiB, under a memory cgroup where permitted (streams)
    Buffered,
    /// read(2) past the page cache, with O_DIRECT (streams)
    Direct,
    /// Highwater with swap files that are not encrypted
    Unsealed,
}

/// How pages are mapped and unmapped by userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands::bench) enum Mapping {
    /// UFFDIO_MOVE if the kernel has it, otherwise UFFDIO_COPY
    Auto,
    /// UFFDIO_MOVE
    Move,
    /// UFFDIO_COPY
    Copy,
}

/// The options that all workloads have.
#[derive(Clone, Debug, Args)]
pub(in crate::commands::bench) struct Common {
    /// The memory manager
    #[arg(long, value_enum)]
    pub(in crate::commands::bench) platform: Platform,
    /// Serve faults in the faulting thread (uffd)
    #[arg(long)]
    pub(in crate::commands::bench) in_thread: bool,
    /// Memory budget
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256M")]
    pub(in crate::commands::bench) memory: Bytes,
    /// Memory the threads use
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    pub(in crate::commands::bench) set: Bytes,
    /// Threads
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=512),
          default_value = "1")]
    pub(in crate::commands::bench) threads: u32,
    /// Swap device of Highwater, as for `highwater run`; by default a RAM device large enough.
    /// flaky:FAULTS+SPEC injects faults, such as flaky:read=once,write=20,after=100,seed=1+ram:1G
    #[arg(long, value_name = "SPEC")]
    pub(in crate::commands::bench) swap: Vec<String>,
    /// Encrypt swap files, on or off; --peer unsealed runs both
    #[arg(long, value_name = "on|off", default_value_t = Seal::On)]
    pub(in crate::commands::bench) seal: Seal,
    /// Seed of contents and order of accesses
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    pub(in crate::commands::bench) seed: u64,
    /// Number of kswapd threads: 1 to 16, or auto to add threads as needed while CPUs idle
    #[arg(long, value_name = "N|auto", default_value_t = Config::default().kswapd_threads)]
    pub(in crate::commands::bench) kswapd: KswapdThreads,
    /// Allocate blocks of 2 MiB, and swap each out and in as a whole
    #[arg(long)]
    pub(in crate::commands::bench) large_pages: bool,
    /// Pages that khugepaged scans every 10 s for ranges to collapse; 0: it does not run
    #[arg(long, value_name = "PAGES", requires = "large_pages")]
    pub(in crate::commands::bench) khugepaged: Option<u32>,
    /// How pages are mapped and unmapped (uffd)
    #[arg(long, value_enum, default_value = "auto")]
    pub(in crate::commands::bench) mapping: Mapping,
    /// Also run the workload on this peer, and print the ratio (may be repeated)
    #[arg(long, value_enum)]
    pub(in crate::commands::bench) peer: Vec<Peer>,
    /// With --peer: number of rounds in which all run in turn; the median by accesses/s is reported
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=99),
          default_value = "1")]
    pub(in crate::commands::bench) rounds: u32,
    /// Directory for the file of streams, and of --peer mmap and io-uring
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(in crate::commands::bench) dir: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(in crate::commands::bench) json: bool,
    /// The cgroup to run in
    #[arg(long, hide = true)]
    pub(in crate::commands::bench) join_cgroup: Option<PathBuf>,
    /// The swap device that only this run uses
    #[arg(long, hide = true)]
    pub(in crate::commands::bench) swap_device: Option<String>,
}

/// Why there are no figures.
#[derive(Debug)]
pub(in crate::commands::bench) enum BenchError {
    /// It could not be set up, for the reason given in one line.
    Setup(String),
    /// It ran and failed: contents were wrong, or it did not come to its end.
    Run(String),
    /// A signal ended it: contents were not wrong, but memory may have been short.
    Killed(String),
    /// A child has printed the reason; its exit status.
    Reported(u8),
}

impl BenchError {
    /// Prints the reason, unless a child has, and returns the exit status.
    pub(in crate::commands::bench) fn report(self) -> ExitCode {
        let (status, text) = match self {
            BenchError::Setup(text) => (2, text),
            BenchError::Run(text) | BenchError::Killed(text) => (1, text),
            BenchError::Reported(status) => return status.into(),
        };
        say(text);
        status.into()
    }
}

pub(in crate::commands::bench) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("figures have text keys")
}

/// A size as people write it, in binary units.
pub(in crate::commands::bench) fn size(text: &str) -> Result<Bytes, String> {
    match highwater_devices::size(text).map_err(|error| error.to_string())? {
        bytes if bytes.pages() > 0 => Ok(bytes),
        _ => Err("less than a page".into()),
    }
}

/// The name a value has on the command line.
pub(in crate::commands::bench) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is skipped").get_name().to_owned()
}
