//! Processes on a simulated machine share the memory of a run. Each has a complete manager; budget,
//! targets, balloon and misses are those of a running program, only faults and time are simulated.
//!
//! Twelve processes, or HIGHWATER_TEST_PROCESSES.

use highwater_mm::{Access, Config, Manager};
use highwater_platform::Recency;
use highwater_session::{
    Aim, Besides, Borrowed, Budget, Claim, Excess, FLOOR, Forked, Misses, Name, Scope, Share,
    StatsFile, Times, give_excess,
};
use highwater_sim::machine::{Answer, DeviceSpec, Machine, Role};
use highwater_sim::{InjectedFaults, Limits, Policy, Setup, Sim, SimConfig, Traced, Vm, simulate};
use highwater_units::{Nanos, Prng, SpaceId, Vpn};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;

/// Pages of the limit for each process.
const PART: u64 = 2 * FLOOR;
/// Frames of all but the first process.
const FRAMES: u64 = 4 * PART;
const MS: u64 = 1_000_000;
/// As in front/preload/src/balance.rs.
const TICK: u64 = 40;
const CALM: u64 = 1000;
const PAUSE: u64 = 2;
const REAP_TICKS: u32 = 8;
/// Milliseconds that no phase exceeds.
const PATIENCE: u64 = 20_000;

thread_local! {
    /// Milliseconds of virtual time.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn now(vm: &Vm) -> u64 {
    NOW.set(vm.now().0 / MS);
    NOW.get()
}

fn processes() -> u64 {
    std::env::var("HIGHWATER_TEST_PROCESSES").map_or(12, |count| count.parse().expect("a number"))
}

/// A program and its manager.
struct Process {
    manager: Manager<Sim>,
    space: SpaceId,
    share: Arc<Share>,
    /// Its lock shows that the process lives.
    file: RefCell<Option<StatsFile>>,
    /// The process touches `rate` random pages of this set per millisecond.
    set: Cell<u64>,
    rate: Cell<u64>,
    touched: Cell<u64>,
    ran: Cell<Nanos>,
    ends: Cell<bool>,
}

impl Process {
    fn start(vm: &Vm, dir: &Path, pid: u32, frames: u64) -> Process {
        let sim = SimConfig {
            frames: vec![frames as u32],
            devices: vec![(device(), 2 * frames as u32)],
            recency: Recency::Unmapping,
            injected_faults: Arc::new(InjectedFaults::default()),
        };
        let file = StatsFile::create(dir, pid, Name::default()).expect("a file");
        let budget = Budget::open(dir).expect("a budget").with_clock(|| NOW.get());
        let share = Arc::new(budget.join(file.image(), Forked::default()).expect("room"));
        let sim = Sim::new(vm, sim);
        sim.borrow_from(Arc::new(Borrowed(share.clone())));
        let manager = Manager::start(sim, Config::default()).expect("threads");
        manager.inflate((manager.frames() - share.granted()) as u32);
        let space = manager.add_space(2 * frames).expect("a space");
        let (set, rate, touched) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let (file, ends) = (RefCell::new(Some(file)), Cell::new(false));
        let ran = Cell::new(Nanos(0));
        Process { manager, space, share, file, set, rate, touched, ran, ends }
    }

    /// The program.
    fn work(&self, vm: &Vm, seed: u64) {
        let mut random = Prng::new(seed);
        while !self.ends.get() {
            now(vm);
            let began = vm.now();
            for _ in 0..self.rate.get() {
                let page = Vpn(random.below(self.set.get()));
                drop(self.manager.pin(self.space, page, Access::Write).expect("room in swap"));
            }
            self.touched.set(self.touched.get() + self.rate.get());
            vm.sleep(Nanos(MS));
            if self.rate.get() > 0 {
                self.ran.set(Nanos(self.ran.get().0 + vm.now().since(began).0));
            }
            vm.progressed();
        }
    }

    /// The "balance" thread.
    fn balance(&self, vm: &Vm) {
        let (mut misses, mut granted) = (Misses::new(&self.manager), 0);
        let mut times = Times::new(&self.manager, self.ran.get());
        for tick in 0.. {
            if self.ends.get() {
                return;
            }
            now(vm);
            let seen = self.share.changes();
            let grown = std::mem::replace(&mut granted, self.share.granted()) != granted;
            if tick % REAP_TICKS == 0 {
                self.share.reap();
            }
            self.share.set_besides(Besides::default());
            let rate = misses.update(&self.manager);
            self.share.set_activity(times.update(&self.manager, self.ran.get()));
            match self.share.aim(self.manager.spare().into(), rate) {
                Aim::Keep => self.wait(vm, seen, if grown { TICK } else { CALM }),
                Aim::Pages(pages) => self.shrink(vm, pages),
            }
        }
    }

    fn wait(&self, vm: &Vm, seen: u32, most: u64) {
        let until = now(vm) + most;
        while now(vm) < until && self.share.changes() == seen && !self.ends.get() {
            vm.sleep(Nanos(PAUSE * MS));
        }
    }

    fn shrink(&self, vm: &Vm, pages: u64) {
        let until = now(vm) + TICK;
        while now(vm) < until {
            match give_excess(&self.manager, &self.share, pages) {
                Excess::None => vm.sleep(Nanos((until - NOW.get()) * MS)),
                Excess::Left => vm.sleep(Nanos(PAUSE * MS)),
            }
        }
    }

    fn uses(&self, set: u64, rate: u64) {
        self.set.set(set);
        self.rate.set(rate);
    }

    /// Ends as if killed: the process gives nothing back.
    fn kill(&self) {
        self.ends.set(true);
        drop(self.file.take());
    }
}

/// All processes, and an observer.
struct Run<'a> {
    vm: &'a Vm,
    budget: &'a Budget,
    processes: &'a [Process],
    /// The most pages granted above the limit.
    excess: Cell<u64>,
}

impl Run<'_> {
    fn granted(&self) -> Vec<u64> {
        self.processes.iter().map(|process| process.share.granted()).collect()
    }

    /// Checks all processes after 10 ms.
    fn observe(&self) {
        self.vm.sleep(Nanos(10 * MS));
        for process in self.processes {
            let (frames, granted) = (process.manager.frames(), process.share.granted());
            assert!(process.ends.get() || frames <= granted, "{frames} frames of {granted}");
        }
        let excess = self.budget.granted().saturating_sub(self.budget.limit());
        self.excess.set(self.excess.get().max(excess));
        // More only if many processes at once take the memory that each may always have.
        assert!(excess <= self.budget.limit() / 32, "{excess} pages above the limit");
    }

    /// Milliseconds until the processes are as expected.
    fn until(&self, what: &str, is_so: impl Fn(&[u64]) -> bool) -> u64 {
        let began = now(self.vm);
        while !is_so(&self.granted()) {
            self.observe();
            let late = now(self.vm) - began > PATIENCE;
            assert!(!late, "{what}: {:?}", self.granted());
        }
        let took = now(self.vm) - began;
        println!("  {what} after {took} ms");
        took
    }

    /// The pages that change owners in a second, in percent of the limit.
    fn moved(&self) -> u64 {
        let mut before = self.granted();
        let mut moved = 0;
        for _ in 0..100 {
            self.observe();
            let after = self.granted();
            moved += before.iter().zip(&after).map(|(old, new)| old.abs_diff(*new)).sum::<u64>();
            before = after;
        }
        let percent = moved * 50 / self.budget.limit();
        println!("  {percent} % of the limit change hands in a second");
        percent
    }

    /// A page is worth about as much to each process: none has far more misses per page than a
    /// process that could give pages. A factor of two is left alone.
    fn expect_fair(&self) {
        let claims: Vec<_> = self.budget.members().iter().map(|member| member.claim).collect();
        let weight = |claim: &Claim| claim.misses * 1000 / claim.granted;
        let rich = claims.iter().filter(|claim| claim.granted > FLOOR * 3 / 2);
        let neediest = claims.iter().map(weight).max().expect("some");
        let least = rich.map(weight).min().expect("the first has most");
        println!("  misses a second for 1000 pages: {least} to {neediest}");
        assert!(neediest < 3 * least, "{claims:?}");
    }

    fn direct(&self) {
        let (first, others) = self.processes.split_first().expect("processes");
        let (limit, count) = (self.budget.limit(), others.len() as u64);
        // All processes alike, each with a set of three times its part.
        self.processes.iter().for_each(|process| process.uses(3 * PART, 8));
        let are_equal = |granted: &[u64]| {
            let (least, most) = (granted.iter().min(), granted.iter().max());
            let (least, most) = (*least.expect("some"), *most.expect("some"));
            most * 2 < least * 3 && least > PART * 2 / 3
        };
        self.until("equals have equal parts", are_equal);
        assert!(self.moved() < 100, "memory goes to and fro");
        assert!(are_equal(&self.granted()), "{:?}", self.granted());
        // One process grows, the others idle.
        others.iter().for_each(|process| process.rate.set(0));
        first.uses(limit, 512);
        let rest = limit - count * FLOOR;
        let grown = self.until("one that grows has nine tenths of the rest", |granted| {
            granted[0] > rest * 9 / 10
        });
        assert!(grown < 5000, "{grown} ms");
        // The others wake; the first goes on, no longer so much faster than they are.
        first.rate.set(64);
        let before: Vec<u64> = others.iter().map(|process| process.touched.get()).collect();
        others.iter().for_each(|process| process.uses(3 * PART, 8));
        let woken = self.until("those that wake have a quarter more than the least", |granted| {
            granted[1..].iter().all(|pages| *pages > FLOOR * 5 / 4)
        });
        assert!(woken < 5000, "{woken} ms");
        let progress = others.iter().zip(&before).map(|(it, before)| it.touched.get() - before);
        assert!(progress.min() > Some(woken), "a process starves");
        assert!(self.moved() < 100, "memory goes to and fro");
        self.expect_fair();
        // Every third process is killed.
        let dead = || self.processes.iter().skip(1).step_by(3);
        dead().for_each(Process::kill);
        self.until("nothing is left of the killed", |_| {
            self.budget.members().len() == self.processes.len() - dead().count()
        });
        self.until("the living have it all", |_| self.budget.granted() > limit * 9 / 10);
        println!("  at most {} % above the limit", self.excess.get() * 100 / limit);
    }
}

impl Run<'_> {
    /// Each process has half of the memory it needs, and can have all of it in its turn.
    fn take_turns(&self) {
        let (set, rate) = (2 * PART, 256);
        self.processes.iter().for_each(|process| process.uses(set, rate));
        let touched = || self.processes.iter().map(|process| process.touched.get()).sum::<u64>();
        let (began, before) = (now(self.vm), touched());
        let satisfied = RefCell::new(vec![false; self.processes.len()]);
        self.until("all have had what they need", |granted| {
            let mut satisfied = satisfied.borrow_mut();
            satisfied.iter_mut().zip(granted).for_each(|(it, pages)| *it |= *pages >= set);
            satisfied.iter().all(|it| *it)
        });
        // With equal parts, every second access would be a miss.
        let round = 1 + rate * u64::from(device().read_latency as u32) / MS / 2;
        let equal = self.processes.len() as u64 * rate / round;
        let rate = (touched() - before) / (now(self.vm) - began);
        println!("  {rate} accesses in a millisecond; with equal parts {equal}");
        assert!(rate > equal * 3 / 2);
        // With smaller sets, no process is short of memory any more.
        let set = PART / 2;
        self.processes.iter().for_each(|process| process.uses(set, 8));
        self.until("all have their smaller sets", |granted| {
            granted.iter().all(|pages| *pages >= set)
        });
    }
}

/// Everything that happens on the machine: all that a run does, with `count` processes.
fn run(vm: &Vm, count: u64, direct: fn(&Run<'_>)) {
    let dir = tempfile::tempdir().expect("a directory");
    let limit = count * PART;
    let budget = Budget::create(dir.path(), Scope::Paged, limit, limit).expect("a budget");
    let budget = budget.with_clock(|| NOW.get());
    let frames = |index: u64| if index == 0 { limit } else { FRAMES };
    let start = |index| Process::start(vm, dir.path(), index as u32 + 1, frames(index));
    let processes: Vec<Process> = (0..count).map(start).collect();
    let (all, threads) = (processes.len(), 2 * processes.len() + 1);
    vm.scope(threads, "process", &|thread| match thread {
        0 => {
            let budget = &budget;
            direct(&Run { vm, budget, processes: &processes, excess: Cell::new(0) });
            processes.iter().for_each(|process| process.ends.set(true));
        }
        thread if thread <= all => processes[thread - 1].work(vm, thread as u64),
        thread => processes[thread - 1 - all].balance(vm),
    });
    processes.iter().for_each(|process| process.manager.verify(&[]));
}

fn device() -> DeviceSpec {
    DeviceSpec {
        name: "device".into(),
        role: Role::Swap,
        node: 0,
        mib: 64,
        answer: Answer::Asynchronous,
        read_latency: 80_000,
        write_latency: 20_000,
        read_mb_per_s: 100_000_000,
        write_mb_per_s: 100_000_000,
        channels: 16,
        buses: 1,
        stripe_kib: 0,
        seek: 0,
        priority: 0,
    }
}

fn simulate_processes(count: u64, direct: fn(&Run<'_>)) {
    let machine = Machine::load(MACHINE).expect("a machine");
    let (policy, limits) = (Policy::SmallestClock, Limits::default());
    let setup = Setup { machine, seed: 1, policy, limits, holdups: 0, traced: Traced::Off };
    println!("{count} processes, {PART} pages for each:");
    simulate(setup, move |vm| run(vm, count, direct)).expect("it ends");
}

#[test]
fn processes_share_memory_by_need_and_leave_each_other_alone() {
    simulate_processes(processes(), |run| run.direct());
}

#[test]
fn processes_that_thrash_take_turns() {
    simulate_processes(4, |run| run.take_turns());
}

const MACHINE: &str = include_str!("../../../lab/machines/x7-2l-52c-8nvme.toml");
