//! The swap devices of a run, the faults injected into them, and what may become of their servers.
//!
//! ```text
//! Swap |- specs      values of --swap
//!      |- faults     what a program may notice of them
//!      |- servers    Redis and nbdkit, each at a socket of its own
//!      \- mortal     the server that may be lost, because another device has the same pages
//! ```

use fastrand::Rng;

/// Parts of a size: the fast level of a tier has one of so many.
const FAST_PART: u64 = 16;
/// The names of the directories for replicas.
const DIRS: [&str; 2] = ["DIR/swap", "DIR/other"];

/// Swap devices.
#[derive(Debug)]
pub(super) struct Swap {
    /// Values of `--swap`; `DIR` stands for the directory of the run.
    pub(super) specs: Vec<String>,
    pub(super) faults: Faults,
    /// Server N listens at the socket `DIR/serverN`.
    pub(super) servers: Vec<Server>,
    /// The number of the server that is lost in the run.
    pub(super) mortal: Option<usize>,
}

/// A server of swap, for this run only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Redis,
    /// nbdkit, with an export of so many MiB.
    Nbd(u64),
}

/// Effects of the swap device's faults on a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    None,
    /// Transfers are slow, writes fail now and then, or one of two replicas has any fault: no
    /// program may notice.
    Borne,
    /// Reads fail, or writes are lost: a program may end with one line.
    Fatal,
}

impl Swap {
    fn of(spec: String) -> Swap {
        Swap { specs: vec![spec], faults: Faults::None, servers: Vec::new(), mortal: None }
    }

    pub(super) fn draw(random: &mut Rng, mib: u64) -> Swap {
        let dir = format!("dir:{}:{mib}M", DIRS[0]);
        let flaky =
            |list: String, faults| Swap { faults, ..Swap::of(format!("flaky:{list}+{dir}")) };
        match random.u64(..18) {
            0..4 => Swap::of(dir),
            4 => Swap::of(file(0, mib)),
            5 => Swap::of(format!("ram:{mib}M")),
            6 => Swap::of(format!("zram:{mib}M")),
            7 => Swap::of(format!("zram:{mib}M:zstd")),
            8 => Swap::of(format!("tier:zram:{}M+{dir}", mib / FAST_PART)),
            9 => {
                let first = format!("zram:{}M,priority=5", mib / FAST_PART);
                Swap { specs: vec![first, dir.clone()], ..Swap::of(dir) }
            }
            10 => flaky(borne(random), Faults::Borne),
            11 => flaky(fatal(random), Faults::Fatal),
            12 => Swap::with(random, mib, &[Server::Redis]),
            13 => Swap::with(random, mib, &[Server::Nbd(mib)]),
            14 => replicated_files(random, mib),
            _ => replicated_servers(random, mib),
        }
    }

    /// One server, alone or as the slow level of a tier.
    fn with(random: &mut Rng, mib: u64, servers: &[Server]) -> Swap {
        let spec = format!("{}{}", tier(random, mib), servers[0].spec(0, mib));
        Swap { servers: servers.to_vec(), ..Swap::of(spec) }
    }
}

impl Server {
    fn spec(self, number: usize, mib: u64) -> String {
        match self {
            Server::Redis => format!("redis+unix:DIR/server{number}:{mib}M"),
            Server::Nbd(_) => format!("nbd+unix:DIR/server{number}:{mib}M"),
        }
    }
}

/// The fast level of a tier, as text before the slow one; empty in half of the runs.
fn tier(random: &mut Rng, mib: u64) -> String {
    match random.bool() {
        true => format!("tier:zram:{}M+", mib / FAST_PART),
        false => String::new(),
    }
}

fn file(number: usize, mib: u64) -> String {
    format!("file:{}/file:{mib}M", DIRS[number])
}

fn dir_or_file(random: &mut Rng, number: usize, mib: u64) -> String {
    match random.bool() {
        true => format!("dir:{}:{mib}M", DIRS[number]),
        false => file(number, mib),
    }
}

fn replicated(random: &mut Rng, mib: u64, replicas: &[String; 2]) -> Swap {
    Swap::of(format!("{}replicate:{}", tier(random, mib), replicas.join("+")))
}

/// Two files: one has any faults, or both have those that are borne, or any.
fn replicated_files(random: &mut Rng, mib: u64) -> Swap {
    let mut lists = [String::new(), String::new()];
    let faults = match random.u64(..5) {
        0 => Faults::None,
        1 | 2 => {
            let flaky = &mut lists[random.usize(..2)];
            *flaky = if random.bool() { always(random) } else { fatal(random) };
            Faults::Borne
        }
        3 => {
            lists.fill_with(|| borne(random));
            Faults::Borne
        }
        _ => {
            lists.fill_with(|| fatal(random));
            Faults::Fatal
        }
    };
    let mut number = 0;
    let replicas = lists.map(|list| {
        let device = dir_or_file(random, number, mib);
        number += 1;
        if list.is_empty() { device } else { format!("flaky:{list}+{device}") }
    });
    Swap { faults, ..replicated(random, mib, &replicas) }
}

/// A server and a file, or two servers, of which one is lost in most runs.
fn replicated_servers(random: &mut Rng, mib: u64) -> Swap {
    let mut draw = || if random.bool() { Server::Redis } else { Server::Nbd(mib) };
    let drawn = [draw(), draw()];
    let (servers, replicas) = match random.u64(..3) {
        0 => (drawn[..1].to_vec(), [drawn[0].spec(0, mib), dir_or_file(random, 0, mib)]),
        1 => (drawn[..1].to_vec(), [dir_or_file(random, 0, mib), drawn[0].spec(0, mib)]),
        _ => (drawn.to_vec(), [drawn[0].spec(0, mib), drawn[1].spec(1, mib)]),
    };
    let mortal = (random.u64(..3) > 0).then(|| random.usize(..servers.len()));
    Swap { servers, mortal, ..replicated(random, mib, &replicas) }
}

fn borne(random: &mut Rng) -> String {
    let seed = random.u64(..1000);
    match random.u64(..3) {
        0 => format!("delay=50,seed={seed}"),
        1 => format!("write=150,seed={seed}"),
        _ => format!("write=100,delay=20,seed={seed}"),
    }
}

fn fatal(random: &mut Rng) -> String {
    let kinds = ["read=5", "lost=5", "short=5", "read=once", "read=2,write=100,short=2,delay=20"];
    listed(random, &kinds, ..5000)
}

/// Faults of every transfer, which one of two replicas may have.
fn always(random: &mut Rng) -> String {
    listed(random, &["write=always", "read=always", "lost=always", "full=always"], ..500)
}

fn listed(random: &mut Rng, kinds: &[&str], after: std::ops::RangeTo<u64>) -> String {
    let (seed, after) = (random.u64(..1000), random.u64(after));
    format!("{},after={after},seed={seed}", kinds[random.usize(..kinds.len())])
}
