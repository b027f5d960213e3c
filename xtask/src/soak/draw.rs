//! What one run of the soak does, drawn from its seed: programs, settings, disturbances.
//!
//! ```text
//! Plan = programs x settings x swap devices (swap.rs) x disturbances
//! ```

use super::programs::{Kind, Program};
use super::swap::{Faults, Swap};
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
    pub(super) swap: Swap,
    pub(super) disturbances: Vec<Disturbance>,
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
    /// SIGSTOP for the server of this number, and SIGCONT later.
    StopServer(usize),
    /// The server of this number is gone for good: another device has the same pages.
    LoseServer(usize, Loss),
    /// SIGKILL for a process of the session.
    Kill,
    /// SIGKILL for `highwater run` itself: the programs go on.
    KillRun,
}

/// How a server is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// SIGKILL: its connections end.
    Killed,
    /// SIGSTOP: it accepts connections, and does not answer.
    Hung,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut random = Rng::with_seed(seed);
        let count = random.usize(1..=PROGRAMS_MAX);
        let programs: Vec<Program> = (0..count).map(|_| program(&mut random)).collect();
        let need: u64 = programs.iter().map(|program| program.mib).sum();
        let own = OWN_MIB * count as u64;
        let swap = Swap::draw(&mut random, need.max(32) * SWAP_TIMES);
        // Swap in memory counts towards --memory: with less than is needed few pages would be left,
        // and a program that goes through all of its memory would take hours. A tier leaves half.
        let is_memory = |spec: &String| spec.starts_with("ram:") || spec.starts_with("zram:");
        let in_memory = swap.specs.iter().any(is_memory);
        let percent = if in_memory { 100..=150 } else { 25..=110 };
        let (mut options, budget_mib) = budget(&mut random, need, percent, own);
        settings(&mut random, &swap, &mut options);
        let change = if in_memory { 100..=180 } else { 50..=180 };
        let disturbances = disturbances(&mut random, budget_mib, change, &swap);
        Plan { seed, programs, options, swap, disturbances }
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

fn settings(random: &mut Rng, swap: &Swap, options: &mut Vec<String>) {
    let mut set = |chance: f64, name: &str, values: &[&str]| {
        if random.f64() < chance {
            let value = values[random.usize(..values.len())];
            options.extend([name.to_owned(), value.to_owned()]);
        }
    };
    set(0.5, "--kswapd", &["auto", "2", "4"]);
    // Pages on a server are always sealed, and only the seal notices that a page was lost.
    let may_be_unsealed = swap.servers.is_empty() && swap.faults == Faults::None;
    set(if may_be_unsealed { 0.2 } else { 0.0 }, "--seal", &["off"]);
    set(0.3, "--large-pages", &["on"]);
    set(0.2, "--malloc", &["large"]);
    set(0.3, "--map-files", &["read"]);
    set(0.4, "--faults", &["handlers", "in-thread"]);
    if options.ends_with(&["--faults".to_owned(), "handlers".to_owned()]) && random.bool() {
        options.extend(["--system-calls", "copies"].map(str::to_owned));
    }
}

fn disturbances(
    random: &mut Rng,
    budget_mib: Option<u64>,
    change: RangeInclusive<u64>,
    swap: &Swap,
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
        15 | 16 if !swap.servers.is_empty() => stop_of_server(random, swap),
        17 if mem::take(&mut kills_run) => Act::KillRun,
        18 | 19 if mem::take(&mut kills) => Act::Kill,
        _ => Act::Stop,
    };
    let next = |random: &mut Rng, act| Disturbance { after_millis: random.u64(20..=900), act };
    let mut list: Vec<Disturbance> = Vec::new();
    for _ in 0..count {
        let act = of(random);
        list.push(next(random, act));
    }
    if let Some(server) = swap.mortal {
        let loss = if random.bool() { Loss::Killed } else { Loss::Hung };
        let lost = next(random, Act::LoseServer(server, loss));
        list.insert(random.usize(..=list.len()), lost);
    }
    list
}

/// If a server is to be lost, the other replica must not have been given up before.
fn stop_of_server(random: &mut Rng, swap: &Swap) -> Act {
    Act::StopServer(swap.mortal.unwrap_or_else(|| random.usize(..swap.servers.len())))
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
            assert!(plans.iter().any(|plan| plan.swap.faults == faults), "{faults:?}");
        }
        let of_servers = [0, 1].into_iter().flat_map(|server| {
            let lost = [Loss::Killed, Loss::Hung].map(|loss| Act::LoseServer(server, loss));
            lost.into_iter().chain([Act::StopServer(server)])
        });
        let others = [Act::AddSwap, Act::RemoveSwap, Act::Stop, Act::Kill, Act::KillRun];
        for act in others.into_iter().chain(of_servers) {
            assert!(plans.iter().any(|plan| has(plan, act)), "{act:?}");
        }
        assert!(plans.iter().all(|plan| plan.kills() <= 1));
    }

    fn has(plan: &Plan, act: Act) -> bool {
        plan.disturbances.iter().any(|it| it.act == act)
    }

    #[test]
    fn the_other_replica_of_a_server_that_is_lost_stays_in_use() {
        let plans = (0..2000).map(Plan::of).filter(|plan| plan.swap.mortal.is_some());
        let (mut alone, mut tiers) = (0, 0);
        for plan in plans {
            let (spec, server) = (&plan.swap.specs[0], plan.swap.mortal.unwrap());
            let other = 1 - server;
            let gone = [Act::StopServer(other), Act::LoseServer(other, Loss::Hung)];
            assert!(gone.into_iter().all(|act| !has(&plan, act)), "{plan:?}");
            assert!(spec.contains("replicate:") && plan.swap.faults == Faults::None, "{plan:?}");
            *(if spec.starts_with("tier:") { &mut tiers } else { &mut alone }) += 1;
        }
        assert!(alone > 50 && tiers > 50, "{alone} {tiers}");
    }
}
