//! What one run of the soak does, drawn from its seed: programs, settings, disturbances.
//!
//! ```text
//! Plan = programs x settings x faults of the swap file x disturbances
//! ```

use super::programs::{Kind, Program};
use fastrand::Rng;
use std::mem;
use std::ops::RangeInclusive;

const MIB: u64 = 1 << 20;
/// Programs that run at once.
const PROGRAMS_MAX: usize = 3;
/// Memory that a process has at least, besides what the programs need: code, stacks, Highwater.
const OWN_MIB: u64 = 14;
/// Swap, in parts of what all programs need: storms fork, and a child may hold all of it again.
const SWAP_TIMES: u64 = 12;

/// A run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) programs: Vec<Program>,
    /// Options of `highwater run`, but for `--swap` and `--name`.
    pub(super) options: Vec<String>,
    /// Values of `--swap`; `DIR` stands for the directory of the run.
    pub(super) swap: Vec<String>,
    pub(super) server: Option<Server>,
    pub(super) faults: Faults,
    pub(super) disturbances: Vec<Disturbance>,
}

/// A server of swap, for this run only; its socket is in the directory of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Redis,
    /// nbdkit, with an export of so many MiB.
    Nbd(u64),
}

/// What the faults of the swap device may do to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    None,
    /// Transfers are slow, writes fail now and then: no program may notice.
    Borne,
    /// Reads fail, or writes are lost: a program may end with one line.
    Fatal,
}

/// What is done to the session, some time after the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disturbance {
    pub(super) after_millis: u64,
    pub(super) act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// `ctl memory=`, in MiB.
    Budget(u64),
    /// `ctl kswapd=`.
    Kswapd(u64),
    AddSwap,
    RemoveSwap,
    /// SIGSTOP for a process, and SIGCONT later.
    Stop,
    /// SIGSTOP for the server of swap, and SIGCONT later.
    StopServer,
    /// SIGKILL for a process of the session.
    Kill,
    /// SIGKILL for `highwater run` itself: the programs go on.
    KillRun,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut random = Rng::with_seed(seed);
        let count = random.usize(1..=PROGRAMS_MAX);
        let programs: Vec<Program> = (0..count).map(|_| program(&mut random)).collect();
        let need: u64 = programs.iter().map(|program| program.mib).sum();
        let own = OWN_MIB * count as u64;
        let Swap { specs: swap, faults, server } = swap(&mut random, need.max(32) * SWAP_TIMES);
        // Swap in memory counts towards --memory: with less than is needed few pages would be left,
        // and a program that goes through all of its memory would take hours. A tier leaves half.
        let is_memory = |spec: &String| spec.starts_with("ram:") || spec.starts_with("zram:");
        let in_memory = swap.iter().any(is_memory);
        let percent = if in_memory { 100..=150 } else { 25..=110 };
        let (mut options, budget_mib) = budget(&mut random, need, percent, own);
        settings(&mut random, server, &mut options);
        let change = if in_memory { 100..=180 } else { 50..=180 };
        let disturbances = disturbances(&mut random, budget_mib, change, server);
        Plan { seed, programs, options, swap, server, faults, disturbances }
    }

    pub(super) fn kills(&self) -> usize {
        let kills = |it: &&Disturbance| matches!(it.act, Act::Kill);
        self.disturbances.iter().filter(kills).count()
    }
}

fn program(random: &mut Rng) -> Program {
    use Kind::{Arrays, Compile, Compress, Objects, Sort, Storm};
    let kinds = [Storm, Storm, Storm, Sort, Objects, Arrays, Compress, Compile];
    Program::draw(kinds[random.usize(..kinds.len())], random)
}

/// The option that limits memory, and the budget if it is the tree's.
fn budget(
    random: &mut Rng,
    need: u64,
    percent: RangeInclusive<u64>,
    own: u64,
) -> (Vec<String>, Option<u64>) {
    let pages = need * random.u64(25..=110) / 100;
    let of_tree = own + need * random.u64(percent) / 100;
    let option = |name: &str, mib: u64| vec![name.to_owned(), format!("{mib}M")];
    match random.u64(..10) {
        0..5 => (option("--memory", of_tree), Some(of_tree)),
        5..8 => (option("--paged", pages.max(8)), Some(pages.max(8))),
        _ => (option("--memory-per-process", pages.max(8)), None),
    }
}

fn settings(random: &mut Rng, server: Option<Server>, options: &mut Vec<String>) {
    let mut set = |chance: f64, name: &str, values: &[&str]| {
        if random.f64() < chance {
            let value = values[random.usize(..values.len())];
            options.extend([name.to_owned(), value.to_owned()]);
        }
    };
    set(0.5, "--kswapd", &["auto", "2", "4"]);
    // Pages on a server are always sealed.
    set(if server.is_none() { 0.2 } else { 0.0 }, "--seal", &["off"]);
    set(0.3, "--large-pages", &["on"]);
    set(0.2, "--malloc", &["large"]);
    set(0.3, "--map-files", &["read"]);
    set(0.4, "--faults", &["handlers", "in-thread"]);
    if options.ends_with(&["--faults".to_owned(), "handlers".to_owned()]) && random.bool() {
        options.extend(["--system-calls", "copies"].map(str::to_owned));
    }
}

/// Swap devices.
struct Swap {
    specs: Vec<String>,
    faults: Faults,
    server: Option<Server>,
}

impl From<String> for Swap {
    fn from(spec: String) -> Swap {
        Swap { specs: vec![spec], faults: Faults::None, server: None }
    }
}

fn swap(random: &mut Rng, mib: u64) -> Swap {
    let dir = format!("dir:DIR:{mib}M");
    let one = Swap::from;
    let flaky = |list: String, faults| Swap { faults, ..one(format!("flaky:{list}+{dir}")) };
    let on = |server, spec: String| Swap { server: Some(server), ..one(spec) };
    let tier = if random.bool() { format!("tier:zram:{}M+", mib / 16) } else { String::new() };
    match random.u64(..14) {
        0..4 => one(dir),
        4 => one(format!("file:DIR/swapfile:{mib}M")),
        5 => one(format!("ram:{mib}M")),
        6 => one(format!("zram:{mib}M")),
        7 => one(format!("zram:{mib}M:zstd")),
        8 => one(format!("tier:zram:{}M+{dir}", mib / 16)),
        9 => {
            let first = format!("zram:{}M,priority=5", mib / 16);
            Swap { specs: vec![first, dir.clone()], ..one(dir) }
        }
        10 => flaky(borne(random), Faults::Borne),
        11 => flaky(fatal(random), Faults::Fatal),
        12 => on(Server::Redis, format!("{tier}redis+unix:DIR/server:{mib}M")),
        _ => on(Server::Nbd(mib), format!("{tier}nbd+unix:DIR/server:{mib}M")),
    }
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
    let (seed, after) = (random.u64(..1000), random.u64(..5000));
    let kind = ["read=5", "lost=5", "short=5", "read=once", "read=2,write=100,short=2,delay=20"];
    format!("{},after={after},seed={seed}", kind[random.usize(..kind.len())])
}

fn disturbances(
    random: &mut Rng,
    budget_mib: Option<u64>,
    change: RangeInclusive<u64>,
    server: Option<Server>,
) -> Vec<Disturbance> {
    let count = random.usize(..12);
    // Few runs: what is killed early does little.
    let (mut kills, mut kills_run) = (random.u64(..8) == 0, random.u64(..8) == 0);
    let mut of = |random: &mut Rng| match random.u64(..20) {
        0..8 => match budget_mib {
            Some(mib) => Act::Budget((mib * random.u64(change.clone()) / 100).max(8)),
            None => Act::Kswapd(random.u64(1..=4)),
        },
        8..11 => Act::Kswapd(random.u64(1..=4)),
        11 => Act::AddSwap,
        12 => Act::RemoveSwap,
        13..15 => Act::Stop,
        15 | 16 if server.is_some() => Act::StopServer,
        17 if mem::take(&mut kills_run) => Act::KillRun,
        18 | 19 if mem::take(&mut kills) => Act::Kill,
        _ => Act::Stop,
    };
    let mut next = |_| Disturbance { after_millis: random.u64(20..=900), act: of(random) };
    (0..count).map(&mut next).collect()
}

impl Plan {
    /// Size of a device that is added to the session, in bytes.
    pub(super) const ADDED: u64 = 64 * MIB;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_its_seed() {
        assert_eq!(format!("{:?}", Plan::of(7)), format!("{:?}", Plan::of(7)));
        assert_ne!(format!("{:?}", Plan::of(7)), format!("{:?}", Plan::of(8)));
    }

    #[test]
    fn all_acts_and_faults_are_drawn() {
        let plans: Vec<Plan> = (0..1000).map(Plan::of).collect();
        for faults in [Faults::None, Faults::Borne, Faults::Fatal] {
            assert!(plans.iter().any(|plan| plan.faults == faults), "{faults:?}");
        }
        let last = [Act::StopServer, Act::Kill, Act::KillRun];
        for act in [Act::AddSwap, Act::RemoveSwap, Act::Stop].into_iter().chain(last) {
            let has = |plan: &Plan| plan.disturbances.iter().any(|it| it.act == act);
            assert!(plans.iter().any(has), "{act:?}");
        }
        assert!(plans.iter().all(|plan| plan.kills() <= 1));
    }
}
