//! The scheduler of virtual threads: time slices, run queues, placement of woken threads, load
//! balancing.
//!
//! A small completely fair scheduler. At the end of a slice, or when a woken task is far behind, a
//! CPU switches to the task in its run queue with the least CPU time. A woken task goes to an idle
//! CPU that it may use, if there is one: preferably its last CPU, then one whose sibling is idle
//! too. An idle CPU pulls a waiting task that may run there. A lock holder is not preempted, like a
//! holder of a kernel spin lock.

use super::policy::Policy;
use super::state::{Cpu, CpuState, Outcome, State, Where};
use super::task::TaskId;
use crate::machine::Machine;
use highwater_platform::Phase;
use highwater_units::CpuId;

/// A woken task preempts a task that has used this much more CPU time.
const WAKEUP_GRANULARITY: u64 = 1_000_000;

impl State {
    /// When the task of a CPU is preempted.
    pub(super) fn turn_end(&self, cpu: CpuId) -> u64 {
        let this = &self.cpus[usize::from(cpu.0)];
        if this.queue.is_empty() { u64::MAX } else { this.turn }
    }

    /// Places a runnable task on a CPU. Returns when it runs there; `u64::MAX` if unknown.
    pub(super) fn place(&mut self, machine: &Machine, task: TaskId, at: u64) -> u64 {
        match self.idle_cpu(machine, task) {
            Some(cpu) => self.start(machine, cpu, task, at),
            None => {
                self.queue(machine, task);
                u64::MAX
            }
        }
    }

    fn allows(&self, machine: &Machine, task: TaskId, cpu: CpuId) -> bool {
        let node = self.tasks[task.index()].node;
        node.is_none_or(|node| machine.node_of(cpu) == node)
    }

    fn is_idle(&self, cpu: CpuId) -> bool {
        self.cpus[usize::from(cpu.0)].state == CpuState::Idle
    }

    /// The last CPU of a task if idle, or else an idle core, or else an idle thread of a core.
    fn idle_cpu(&self, machine: &Machine, task: TaskId) -> Option<CpuId> {
        let last = self.tasks[task.index()].cpu;
        let started = self.tasks[task.index()].cpu_time > 0;
        if started && self.is_idle(last) && self.allows(machine, task, last) {
            return Some(last);
        }
        // Spread new tasks over sockets, as the load balancer eventually would.
        let cpus = self.cpus.len();
        let offset = if started {
            usize::from(last.0)
        } else {
            let socket = task.index() % usize::from(machine.sockets);
            socket * usize::from(machine.cores_per_socket)
        };
        let order = (0..cpus).map(|i| CpuId(((offset + i) % cpus) as u16));
        let mut half = None;
        for cpu in order.filter(|cpu| self.is_idle(*cpu)) {
            if !self.allows(machine, task, cpu) {
                continue;
            }
            if machine.sibling_of(cpu).is_none_or(|sibling| self.is_idle(sibling)) {
                return Some(cpu);
            }
            half = half.or(Some(cpu));
        }
        half
    }

    /// No CPU is idle: joins the shortest run queue.
    fn queue(&mut self, machine: &Machine, task: TaskId) {
        let allowed = (0..self.cpus.len() as u16).map(CpuId);
        let allowed = allowed.filter(|cpu| self.allows(machine, task, *cpu));
        let last = self.tasks[task.index()].cpu;
        let load = |cpu: &CpuId| (self.cpus[usize::from(cpu.0)].queue.len(), *cpu != last);
        let cpu = allowed.min_by_key(load).expect("every node has CPUs");
        let running = match self.cpus[usize::from(cpu.0)].state {
            CpuState::Running(task) | CpuState::Spinning(task) => task,
            CpuState::Idle => unreachable!("an idle CPU would have been taken"),
        };
        let fair = self.tasks[running.index()].fair;
        let woken = &mut self.tasks[task.index()];
        // A long sleep gives no credit.
        woken.fair = woken.fair.max(fair.saturating_sub(machine.costs.slice));
        woken.cpu = cpu;
        woken.place = Where::Queued;
        let preempts = woken.fair + WAKEUP_GRANULARITY < fair;
        let this = &mut self.cpus[usize::from(cpu.0)];
        if this.queue.is_empty() {
            this.turn = this.clock + machine.costs.slice;
        }
        if preempts {
            this.turn = 0;
        }
        self.push(cpu, task);
    }

    fn push(&mut self, cpu: CpuId, task: TaskId) {
        self.cpus[usize::from(cpu.0)].queue.push(task);
        self.queued += 1;
    }

    fn remove(&mut self, cpu: usize, index: usize) -> TaskId {
        self.queued -= 1;
        self.cpus[cpu].queue.remove(index)
    }

    /// Starts a task on an idle CPU at `at`.
    fn start(&mut self, machine: &Machine, cpu: CpuId, task: TaskId, at: u64) -> u64 {
        let Cpu { clock, last, .. } = &mut self.cpus[usize::from(cpu.0)];
        *clock = (*clock).max(at);
        let switches = last.replace(task) != Some(task);
        self.switch(machine, cpu, task, switches)
    }

    fn switch(&mut self, machine: &Machine, cpu: CpuId, task: TaskId, switches: bool) -> u64 {
        let cost = if switches { machine.costs.context_switch } else { 0 };
        let this = &mut self.cpus[usize::from(cpu.0)];
        this.clock += cost;
        this.turn = this.clock + machine.costs.slice;
        this.state = CpuState::Running(task);
        this.last = Some(task);
        let clock = this.clock;
        let woken = &mut self.tasks[task.index()];
        woken.cpu = cpu;
        woken.place = Where::OnCpu;
        if woken.priority == 0 {
            self.tasks[task.index()].priority = self.draw_priority();
        }
        self.book(cpu, task, Phase::PROGRAM, cost, clock);
        self.make_ready(cpu);
        clock
    }

    /// Reschedules a CPU after its task has suspended.
    pub(super) fn end(&mut self, machine: &Machine, cpu: CpuId, clock: u64, holds: Holds) {
        let this = &mut self.cpus[usize::from(cpu.0)];
        this.clock = clock;
        let CpuState::Running(task) = this.state else { unreachable!("{cpu:?} ran") };
        match self.tasks[task.index()].outcome {
            Outcome::Ready if holds == Holds::Nothing && clock >= self.turn_end(cpu) => {
                self.rotate(machine, cpu, task);
            }
            Outcome::Ready => self.make_ready(cpu),
            Outcome::Spinning => {
                self.cpus[usize::from(cpu.0)].state = CpuState::Spinning(task);
            }
            Outcome::Asleep => self.leave(machine, cpu),
            Outcome::Done => {
                self.tasks[task.index()].place = Where::Done;
                if let Some(trace) = &mut self.trace {
                    trace.ended(&self.tasks[task.index()].name);
                }
                self.leave(machine, cpu);
            }
        }
    }

    /// Preempts the current task in favour of the next in the run queue.
    fn rotate(&mut self, machine: &Machine, cpu: CpuId, task: TaskId) {
        self.tasks[task.index()].place = Where::Queued;
        let next = self.take_from_queue(cpu).expect("a turn ends when others wait");
        self.push(cpu, task);
        self.switch(machine, cpu, next, true);
    }

    /// The CPU's task has left: runs the next one, pulls one from another CPU, or idles.
    fn leave(&mut self, machine: &Machine, cpu: CpuId) {
        self.cpus[usize::from(cpu.0)].state = CpuState::Idle;
        let next = self.take_from_queue(cpu).or_else(|| self.steal(machine, cpu));
        if let Some(task) = next {
            self.switch(machine, cpu, task, true);
        }
    }

    /// The task of a run queue with the least CPU time.
    fn take_from_queue(&mut self, cpu: CpuId) -> Option<TaskId> {
        let queue = &self.cpus[usize::from(cpu.0)].queue;
        let fair = |index: &usize| self.tasks[queue[*index].index()].fair;
        let first = (0..queue.len()).min_by_key(fair)?;
        Some(self.remove(usize::from(cpu.0), first))
    }

    /// A task that may run here, from the longest run queue.
    fn steal(&mut self, machine: &Machine, cpu: CpuId) -> Option<TaskId> {
        if self.queued == 0 {
            return None;
        }
        let longest = (0..self.cpus.len()).max_by_key(|other| self.cpus[*other].queue.len())?;
        let queue = &self.cpus[longest].queue;
        let index = queue.iter().position(|task| self.allows(machine, *task, cpu))?;
        let task = self.remove(longest, index);
        let clock = self.cpus[longest].clock;
        let this = &mut self.cpus[usize::from(cpu.0)];
        this.clock = this.clock.max(clock.min(this.clock + machine.costs.slice));
        Some(task)
    }
}

/// Whether a suspending task holds locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// No locks: it may be preempted.
    Nothing,
    /// At least one.
    Locks,
}

impl Policy {
    /// Whether the policy follows the clocks.
    pub fn is_timed(self) -> bool {
        self == Policy::SmallestClock
    }
}
