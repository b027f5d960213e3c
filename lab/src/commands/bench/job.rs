//! What runs: a workload with its own options, on whatever memory.

use super::common::{Common, name_of};
use crate::commands::number::number;
use clap::{Args, ValueEnum};
use highwater_lab::peer::{Order, disk};
use highwater_lab::workload::Service;
use highwater_lab::workload::history::History;
use highwater_lab::workload::outcome::{Failure, Outcome};
use highwater_lab::workload::pattern::Pattern;
use highwater_lab::workload::{pmbench, streams, usemem};
use highwater_units::Bytes;
use std::time::Duration;

/// Seconds that a workload runs which would go on without end, or nearly so.
const SECONDS: u64 = 5;

/// A workload and all its options.
pub(super) trait Job {
    /// Its name on the command line.
    const NAME: &'static str;

    /// The options that all workloads have.
    fn common(&self) -> &Common;

    /// The options of this workload, as on the command line.
    fn options(&self) -> Vec<(&'static str, String)>;

    /// The options of this workload, as text.
    fn parameters(&self) -> String;

    /// How pages are visited.
    fn order(&self) -> Order;

    /// What it would transfer on a bare disk; none if reads and writes mix.
    fn disk_pass(&self) -> Option<disk::Pass>;

    /// How long it runs at most, passes over the set aside.
    fn seconds(&self) -> u64;

    /// What the set is.
    fn data(&self) -> Data {
        Data::Memory
    }

    /// What it takes to know what the set must hold.
    fn bookkeeping(&self) -> Bytes;

    /// Runs it.
    fn run<S: Service + Sync>(&self, service: &S) -> Result<Outcome, Failure>;
}

/// What a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    /// Memory, zeros at first.
    Memory,
    /// A file on a disk.
    File,
}

/// The order in which pages are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Visits {
    /// All pages equally often
    Uniform,
    /// Normally distributed around the middle of the set; standard deviation: a twelfth of it
    Normal,
    /// Each thread in ascending order, from its own starting page
    Sequential,
    /// By Zipf's law with exponent 0.99; popular pages are spread over the set
    Zipf,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Pmbench {
    #[command(flatten)]
    common: Common,
    /// Percentage of accesses that are reads
    #[arg(long, value_name = "PERCENT", value_parser = number::<u32>(0..=100),
          default_value = "80")]
    read: u32,
    /// The order in which pages are visited
    #[arg(long, value_enum, default_value = "uniform")]
    pattern: Visits,
    /// How long the threads run
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(1..=86_400),
          default_value = "5")]
    time: u64,
    /// How many accesses ahead a thread announces the page it will use (prefetch); 0: it does not
    #[arg(long, value_name = "N", value_parser = number::<u64>(0..=256),
          default_value = "0")]
    ahead: u64,
    /// How long the threads run before the measurement starts
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(0..=86_400),
          default_value = "0")]
    warm_up: u64,
}

/// What a task of usemem does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Write its part of the set once, in sequence
    Seq,
    /// Write random words of its part
    Rand,
    /// Read swapped-out pages of its part
    Swapin,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Usemem {
    #[command(flatten)]
    common: Common,
    /// What each task does
    #[arg(long, value_enum, default_value = "seq")]
    kind: Kind,
    /// The order in which pages are read (swapin)
    #[arg(long, value_enum, default_value = "uniform")]
    pattern: Visits,
    /// Time limit of the tasks [default: 5; seq: until they are done]
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(1..=86_400))]
    time: Option<u64>,
}

impl Visits {
    fn pattern(self) -> Pattern {
        match self {
            Visits::Uniform => Pattern::Uniform,
            Visits::Normal => Pattern::Normal,
            Visits::Sequential => Pattern::Sequential,
            Visits::Zipf => Pattern::Zipf,
        }
    }

    fn order(self) -> Order {
        match self {
            Visits::Uniform | Visits::Normal | Visits::Zipf => Order::Random,
            Visits::Sequential => Order::Ascending,
        }
    }
}

impl Pmbench {
    /// With that percentage of reads, and times in seconds.
    pub(super) fn new(
        common: Common,
        (read, pattern): (u32, Visits),
        time: u64,
        warm_up: u64,
    ) -> Pmbench {
        Pmbench { common, read, pattern, time, ahead: 0, warm_up }
    }
}

impl Job for Pmbench {
    const NAME: &'static str = "pmbench";

    fn common(&self) -> &Common {
        &self.common
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        vec![
            ("--read", self.read.to_string()),
            ("--pattern", name_of(&self.pattern)),
            ("--time", self.time.to_string()),
            ("--warm-up", self.warm_up.to_string()),
            ("--ahead", self.ahead.to_string()),
        ]
    }

    fn parameters(&self) -> String {
        format!("{}% reads, {}, {} s", self.read, name_of(&self.pattern), self.time)
    }

    fn order(&self) -> Order {
        self.pattern.order()
    }

    fn disk_pass(&self) -> Option<disk::Pass> {
        match (self.read, self.pattern.order()) {
            (100, Order::Random) => Some(disk::Pass::ReadRandom(Duration::from_secs(self.time))),
            (100, Order::Ascending) => Some(disk::Pass::ReadSequential),
            _ => None,
        }
    }

    fn seconds(&self) -> u64 {
        self.warm_up + self.time
    }

    fn bookkeeping(&self) -> Bytes {
        Bytes(History::bytes(self.common.threads as usize, self.common.set.pages()))
    }

    fn run<S: Service + Sync>(&self, service: &S) -> Result<Outcome, Failure> {
        let config = pmbench::Config {
            threads: self.common.threads as usize,
            read_percent: self.read,
            pattern: self.pattern.pattern(),
            sharing: pmbench::Sharing::Shared,
            ahead: self.ahead as usize,
            warm_up: Duration::from_secs(self.warm_up),
            time: Duration::from_secs(self.time),
            seed: self.common.seed,
        };
        pmbench::run(service, &config)
    }
}

impl Usemem {
    /// When tasks end that are not done.
    fn limit(&self) -> Option<u64> {
        match self.kind {
            Kind::Seq => self.time,
            Kind::Rand | Kind::Swapin => Some(self.time.unwrap_or(SECONDS)),
        }
    }
}

impl Job for Usemem {
    const NAME: &'static str = "usemem";

    fn common(&self) -> &Common {
        &self.common
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let time = self.time.map(|time| ("--time", time.to_string()));
        let kind = ("--kind", name_of(&self.kind));
        [kind, ("--pattern", name_of(&self.pattern))].into_iter().chain(time).collect()
    }

    fn parameters(&self) -> String {
        let kind = match self.kind {
            Kind::Swapin => format!("swapin {}", name_of(&self.pattern)),
            kind => name_of(&kind),
        };
        match self.limit() {
            Some(seconds) => format!("{kind}, at most {seconds} s"),
            None => format!("{kind}, one pass"),
        }
    }

    fn order(&self) -> Order {
        match self.kind {
            Kind::Seq => Order::Ascending,
            Kind::Rand => Order::Random,
            Kind::Swapin => self.pattern.order(),
        }
    }

    fn disk_pass(&self) -> Option<disk::Pass> {
        let time = Duration::from_secs(self.seconds());
        match (self.kind, self.pattern.order()) {
            (Kind::Seq, _) => Some(disk::Pass::WriteSequential),
            (Kind::Rand, _) => None,
            (Kind::Swapin, Order::Random) => Some(disk::Pass::ReadRandom(time)),
            (Kind::Swapin, Order::Ascending) => Some(disk::Pass::ReadSequential),
        }
    }

    fn seconds(&self) -> u64 {
        self.limit().unwrap_or(0)
    }

    fn bookkeeping(&self) -> Bytes {
        Bytes(usemem::bookkeeping_bytes(self.common.set.pages()))
    }

    fn run<S: Service + Sync>(&self, service: &S) -> Result<Outcome, Failure> {
        let config = usemem::Config {
            kind: match self.kind {
                Kind::Seq => usemem::Kind::WriteSequential,
                Kind::Rand => usemem::Kind::WriteRandom,
                Kind::Swapin => usemem::Kind::SwapIn(self.pattern.pattern()),
            },
            threads: self.common.threads as usize,
            time: self.limit().map(Duration::from_secs),
            seed: self.common.seed,
        };
        usemem::run(service, &config)
    }
}

#[derive(Clone, Debug, Args)]
pub(super) struct Streams {
    #[command(flatten)]
    common: Common,
    /// How long the tasks are measured
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(1..=86_400),
          default_value = "5")]
    time: u64,
    /// How long the tasks run before the measurement starts
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(0..=86_400),
          default_value = "1")]
    warm_up: u64,
}

impl Job for Streams {
    const NAME: &'static str = "streams";

    fn common(&self) -> &Common {
        &self.common
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        vec![("--time", self.time.to_string()), ("--warm-up", self.warm_up.to_string())]
    }

    fn parameters(&self) -> String {
        format!("a file in blocks of 4 MiB, {} s", self.time)
    }

    fn order(&self) -> Order {
        Order::Ascending
    }

    fn disk_pass(&self) -> Option<disk::Pass> {
        None
    }

    fn seconds(&self) -> u64 {
        self.warm_up + self.time
    }

    fn data(&self) -> Data {
        Data::File
    }

    fn bookkeeping(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.common.threads) * streams::BLOCK_PAGES + streams::KINDS)
    }

    fn run<S: Service + Sync>(&self, service: &S) -> Result<Outcome, Failure> {
        let device_pages = self.common.set.pages();
        let config = streams::Config {
            threads: self.common.threads as usize,
            layout: streams::Layout { devices: 1, device_pages, anon_pages: 0, small_pages: 0 },
            read_path: streams::ReadPath::Cached,
            span: streams::Span::Timed,
            warm_up: Duration::from_secs(self.warm_up),
            time: Duration::from_secs(self.time),
            seed: self.common.seed,
        };
        streams::run(service, &config)
    }
}
