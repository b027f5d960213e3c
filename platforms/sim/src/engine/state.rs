//! The engine's state: CPUs, tasks, timers and statistics.

use super::limits::{Limits, Stuck};
use super::policy::{Oracle, Policy, Stray};
use super::report::{Report, RoleTime};
use super::task::TaskId;
use super::trace::{Bar, Trace};
use crate::machine::Machine;
use corosensei::{Coroutine, Yielder};
use highwater_platform::{IdleTime, LockClass, LockStatistics, Phase};
use highwater_units::{CpuId, Nanos, NodeId, Prng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Why a task stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The task let other CPUs catch up, or its slice ended: it can run.
    Ready,
    /// The task spins for a lock and keeps its CPU.
    Spinning,
    /// The task sleeps until an event or a time.
    Asleep,
    /// The task has ended.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuState {
    Idle,
    Running(TaskId),
    Spinning(TaskId),
}

/// A virtual CPU.
pub(super) struct Cpu {
    pub(super) state: CpuState,
    pub(super) clock: u64,
    /// Busy time: tasks, interrupts and spinning.
    pub(super) busy: u64,
    /// The run queue.
    pub(super) queue: Vec<TaskId>,
    /// When the current slice ends.
    pub(super) turn: u64,
    /// Time of interrupts not yet charged, ns.
    pub(super) stolen: u64,
    /// The last interval in which it spun.
    pub(super) spun: (u64, u64),
    /// The task that ran last.
    pub(super) last: Option<TaskId>,
}

/// The scheduling state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// Current on its CPU.
    OnCpu,
    /// In a run queue.
    Queued,
    /// Asleep, for the `n`th time.
    Asleep(u64),
    Done,
}

/// A virtual thread.
pub(super) struct Task {
    pub(super) name: String,
    pub(super) node: Option<NodeId>,
    pub(super) cpu: CpuId,
    pub(super) place: Where,
    pub(super) outcome: Outcome,
    pub(super) coroutine: Option<Coroutine<(), (), ()>>,
    pub(super) yielder: *const Yielder<(), ()>,
    pub(super) cpu_time: u64,
    /// CPU time as counted for fairness.
    pub(super) fair: u64,
    pub(super) phase: &'static Phase,
    pub(super) priority: i64,
    sleeps: u64,
    why: &'static str,
}

impl Task {
    pub(super) fn new(name: &str, node: Option<NodeId>, coroutine: Coroutine<(), (), ()>) -> Task {
        Task {
            name: name.to_owned(),
            node,
            cpu: CpuId(0),
            place: Where::Queued,
            outcome: Outcome::Ready,
            coroutine: Some(coroutine),
            yielder: std::ptr::null(),
            cpu_time: 0,
            fair: 0,
            phase: Phase::PROGRAM,
            priority: 0,
            sleeps: 0,
            why: "",
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.place == Where::Done
    }
}

/// The next step of [`Engine::run`].
pub(super) enum Next {
    Fire(Timer),
    Resume(CpuId),
    Nothing,
}

/// A timer that wakes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub(super) at: u64,
    order: u64,
    pub(super) task: TaskId,
    /// The number of the sleep that the timer ends.
    pub(super) sleep: u64,
}

/// The rest of the state, which is not hot.
pub(super) struct State {
    pub(super) cpus: Vec<Cpu>,
    pub(super) tasks: Vec<Task>,
    /// Tasks in all run queues.
    pub(super) queued: usize,
    /// CPUs whose task can run, ordered by clock; each once.
    ready: BinaryHeap<Reverse<(u64, CpuId)>>,
    timers: BinaryHeap<Reverse<Timer>>,
    timers_made: u64,
    oracle: Oracle,
    choices: Prng,
    pub(super) locks: LockStatistics,
    /// CPU time of every phase entered so far.
    phases: [Option<(&'static Phase, Nanos)>; Phase::MAX],
    pub(super) trace: Option<Trace>,
    events: u64,
    steps: u64,
    hash: u64,
    /// The CPU that ran last.
    last: CpuId,
    /// Time and step of the last progress.
    progress: (u64, u64),
    latest: u64,
}

impl State {
    pub(super) fn new(
        machine: &Machine,
        policy: Policy,
        trace: Option<Trace>,
        random: &mut Prng,
    ) -> State {
        let cpu = |_| Cpu {
            state: CpuState::Idle,
            clock: 0,
            busy: 0,
            queue: Vec::new(),
            turn: 0,
            stolen: 0,
            spun: (0, 0),
            last: None,
        };
        State {
            cpus: (0..machine.cpus()).map(cpu).collect(),
            tasks: Vec::new(),
            queued: 0,
            ready: BinaryHeap::new(),
            timers: BinaryHeap::new(),
            timers_made: 0,
            oracle: Oracle::new(policy, random),
            choices: Prng::new(random.next_u64()),
            locks: LockStatistics::default(),
            phases: [None; Phase::MAX],
            trace,
            events: 0,
            steps: 0,
            hash: 0,
            last: CpuId(0),
            progress: (0, 0),
            latest: 0,
        }
    }

    /// Chooses the next step.
    pub(super) fn next(&mut self, policy: Policy, clock: u64) -> Next {
        if self.tasks[0].is_done() && self.alive() == 0 {
            return Next::Nothing;
        }
        let ready = match policy {
            Policy::SmallestClock => self.ready.peek().map(|Reverse((clock, _))| *clock),
            _ => (!self.ready.is_empty()).then_some(clock),
        };
        let due = self.timers.peek().map(|Reverse(timer)| timer.at);
        match (ready, due) {
            (None, None) => Next::Nothing,
            (Some(ready), Some(due)) if due > ready => Next::Resume(self.choose(policy)),
            (Some(_), None) => Next::Resume(self.choose(policy)),
            (_, Some(_)) => Next::Fire(self.timers.pop().expect("peeked").0),
        }
    }

    fn choose(&mut self, policy: Policy) -> CpuId {
        let chosen = match policy {
            Policy::SmallestClock => return self.ready.pop().expect("peeked").0.1,
            Policy::Random { .. } => {
                let index = self.choices.below(self.ready.len() as u64) as usize;
                self.ready.iter().nth(index)
            }
            Policy::RoundRobin { .. } => {
                let cpus = self.cpus.len();
                let last = usize::from(self.last.0);
                self.ready
                    .iter()
                    .min_by_key(|Reverse((_, cpu))| (usize::from(cpu.0) + cpus - last - 1) % cpus)
            }
            Policy::Pct { .. } => self.ready.iter().max_by_key(|Reverse((_, cpu))| {
                match self.cpus[usize::from(cpu.0)].state {
                    CpuState::Running(task) => self.tasks[task.index()].priority,
                    CpuState::Idle | CpuState::Spinning(_) => unreachable!("not ready"),
                }
            }),
        };
        let Reverse((_, cpu)) = *chosen.expect("somebody is ready");
        self.ready.retain(|Reverse((_, other))| *other != cpu);
        cpu
    }

    /// Prepares to resume a CPU's task. Returns the task and the CPU's clock.
    pub(super) fn begin(&mut self, cpu: CpuId, policy: Policy, latest: u64) -> (TaskId, u64) {
        let this = &mut self.cpus[usize::from(cpu.0)];
        let CpuState::Running(task) = this.state else { unreachable!("{cpu:?} was ready") };
        if policy != Policy::SmallestClock {
            this.clock = this.clock.max(latest);
        }
        let stolen = std::mem::take(&mut this.stolen);
        this.clock += stolen;
        let clock = this.clock;
        self.steps += 1;
        self.last = cpu;
        self.hash = mix(self.hash ^ clock << 10 ^ u64::from(cpu.0));
        self.book(cpu, task, Phase::PROGRAM, stolen, clock);
        (task, clock)
    }

    /// The time up to which the next CPU may run before another CPU must.
    pub(super) fn horizon(&self, cpu: CpuId, policy: Policy) -> u64 {
        let others = self.ready.peek().filter(|_| policy.is_timed());
        let next = others.map_or(u64::MAX, |Reverse((clock, _))| *clock);
        let due = self.timers.peek().map_or(u64::MAX, |Reverse(timer)| timer.at);
        next.min(due).min(self.turn_end(cpu))
    }

    /// The slowdown, in thousandths, caused by the core's other thread.
    pub(super) fn slowdown(&self, machine: &Machine, cpu: CpuId, clock: u64) -> u64 {
        let works = |cpu: CpuId| {
            let other = &self.cpus[usize::from(cpu.0)];
            other.state.is_running() && !(other.spun.0 <= clock && clock < other.spun.1)
        };
        if machine.sibling_of(cpu).is_some_and(works) {
            (machine.smt_slowdown * 1000.0) as u64
        } else {
            1000
        }
    }

    pub(super) fn make_ready(&mut self, cpu: CpuId) {
        let clock = self.cpus[usize::from(cpu.0)].clock;
        self.ready.push(Reverse((clock, cpu)));
    }

    pub(super) fn set_outcome(&mut self, task: TaskId, outcome: Outcome) {
        self.tasks[task.index()].outcome = outcome;
    }

    pub(super) fn spun(&mut self, cpu: CpuId, from: u64, to: u64) {
        self.cpus[usize::from(cpu.0)].spun = (from, to);
    }

    /// Whether to switch at this shared access.
    pub(super) fn strays(&mut self, policy: Policy, random: &mut Prng) -> bool {
        match self.oracle.strays(policy, random) {
            Stray::No => false,
            Stray::Switch => true,
            Stray::Fall => {
                self.fall();
                true
            }
        }
    }

    fn fall(&mut self) {
        let lowest = self.oracle.lowest();
        if let CpuState::Running(task) = self.cpus[usize::from(self.last.0)].state {
            self.tasks[task.index()].priority = lowest;
        }
    }

    /// The running task waits for another one: deprioritises it.
    pub(super) fn give_way(&mut self, task: TaskId) {
        self.tasks[task.index()].priority = self.oracle.lowest();
        let cpu = self.tasks[task.index()].cpu;
        self.cpus[usize::from(cpu.0)].turn = 0;
    }

    pub(super) fn draw_priority(&mut self) -> i64 {
        self.choices.below(1 << 40) as i64
    }

    /// Ends a task's wait for a lock. Returns when its CPU resumes it.
    pub(super) fn grant(&mut self, task: TaskId, at: u64) -> u64 {
        let cpu = self.tasks[task.index()].cpu;
        let this = &mut self.cpus[usize::from(cpu.0)];
        assert_eq!(this.state, CpuState::Spinning(task), "a lock is granted to a waiter");
        let from = this.clock;
        this.clock = from.max(at);
        this.spun = (from, this.clock);
        this.state = CpuState::Running(task);
        let (clock, phase) = (this.clock, self.tasks[task.index()].phase);
        self.book(cpu, task, phase, clock - from, clock);
        self.make_ready(cpu);
        clock
    }

    pub(super) fn prepare_sleep(&mut self, task: TaskId, until: Option<u64>, why: &'static str) {
        let this = &mut self.tasks[task.index()];
        this.sleeps += 1;
        this.why = why;
        let sleep = this.sleeps;
        this.place = Where::Asleep(sleep);
        if let Some(at) = until {
            self.timers_made += 1;
            self.timers.push(Reverse(Timer { at, order: self.timers_made, task, sleep }));
        }
    }

    /// Wakes a task; with `sleep`, only from the sleep of that number. Returns when it runs.
    pub(super) fn wake(
        &mut self,
        machine: &Machine,
        task: TaskId,
        sleep: Option<u64>,
        at: u64,
    ) -> u64 {
        match self.tasks[task.index()].place {
            Where::Asleep(now) if sleep.is_none_or(|sleep| sleep == now) => {
                self.place(machine, task, at)
            }
            _ => u64::MAX,
        }
    }

    pub(super) fn interrupt(&mut self, cpu: CpuId, nanos: u64) {
        let this = &mut self.cpus[usize::from(cpu.0)];
        if this.state != CpuState::Idle {
            this.stolen += nanos;
        }
    }

    pub(super) fn book(
        &mut self,
        cpu: CpuId,
        task: TaskId,
        phase: &'static Phase,
        nanos: u64,
        clock: u64,
    ) {
        if nanos == 0 {
            return;
        }
        self.cpus[usize::from(cpu.0)].busy += nanos;
        let this = &mut self.tasks[task.index()];
        this.cpu_time += nanos;
        this.fair += nanos;
        self.phases[usize::from(phase.id())].get_or_insert((phase, Nanos(0))).1.0 += nanos;
        self.latest = self.latest.max(clock);
        if let Some(trace) = &mut self.trace {
            trace.add(Bar::phase(cpu, &self.tasks[task.index()].name, phase, clock, nanos));
        }
    }

    /// Idle time of the CPUs of a node up to `now`.
    pub(super) fn idle_time(&self, machine: &Machine, node: NodeId, now: u64) -> IdleTime {
        let numbers = (0..self.cpus.len() as u16).map(CpuId);
        let own = numbers.filter(|cpu| machine.node_of(*cpu) == node);
        own.fold(IdleTime::default(), |sum, cpu| {
            // A CPU that runs ahead of the others may be busy beyond `now`.
            let idle = now.saturating_sub(self.cpus[usize::from(cpu.0)].busy);
            IdleTime { cpus: sum.cpus + 1, time: Nanos(sum.time.0 + idle) }
        })
    }

    pub(super) fn record(&mut self, class: LockClass, phase: &Phase, wait: Option<u64>, hold: u64) {
        let record = self.locks.get_mut(class, phase);
        record.acquisitions += 1;
        record.contended += u64::from(wait.is_some());
        record.wait.0 += wait.unwrap_or(0);
        record.hold.0 += hold;
    }

    pub(super) fn event(&mut self, what: u64, clock: u64) {
        self.events += 1;
        self.hash = mix(self.hash ^ what << 40 ^ clock);
    }

    pub(super) fn progressed(&mut self, clock: u64) {
        self.progress = (clock, self.steps);
    }

    /// Tasks that have not ended.
    pub(super) fn alive(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_done()).count()
    }

    pub(super) fn without_progress(&self, limits: &Limits) -> Option<Stuck> {
        let (time, step) = self.progress;
        let idle = self.latest.saturating_sub(time);
        let long = idle > limits.idle_time.0 || self.steps - step > limits.idle_steps;
        let steps = self.steps - step;
        long.then(|| Stuck(format!("no progress for {idle} ns, {steps} steps: {}", self.list())))
    }

    pub(super) fn deadlock(&self) -> Stuck {
        Stuck(format!("nothing can run: {}", self.list()))
    }

    fn list(&self) -> String {
        let one = |task: &Task| match task.place {
            Where::Asleep(_) => format!("{} sleeps ({})", task.name, task.why),
            place => format!("{} is {place:?}, {:?}", task.name, task.outcome),
        };
        let alive = self.tasks.iter().filter(|task| !task.is_done());
        alive.map(one).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn report(&self, clock: u64) -> Report {
        let mut roles: Vec<RoleTime> = Vec::new();
        for task in &self.tasks {
            match roles.iter_mut().find(|role| role.name == task.name) {
                Some(role) => {
                    role.threads += 1;
                    role.busy.0 += task.cpu_time;
                }
                None => roles.push(RoleTime {
                    name: task.name.clone(),
                    threads: 1,
                    busy: Nanos(task.cpu_time),
                }),
            }
        }
        Report {
            time: Nanos(self.latest.max(clock)),
            roles,
            phases: self.phases.into_iter().flatten().collect(),
            locks: self.locks.clone(),
            events: self.events,
            steps: self.steps,
            hash: self.hash,
        }
    }
}

/// Splitmix's finaliser.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
