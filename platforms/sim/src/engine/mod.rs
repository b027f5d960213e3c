//! The engine: virtual CPUs in virtual time, on one host thread.
//!
//! ```text
//! run -- choose --> a timer: fire it
//!               \-> a CPU: resume its task (a coroutine) until it suspends
//! task: charge(ns)   advances its CPU's clock
//!       sync         before a shared access: suspends if another CPU is behind in time
//!       spin         the CPU waits for a lock      sleep   the CPU runs another task
//! Engine -- hot state: clock, horizon, task and phase of the running CPU (cells)
//!        \- State: CPUs, tasks, ready CPUs by clock, timers, statistics (one RefCell)
//! ```
//! Under [`Policy::SmallestClock`] the CPU with the smallest clock always runs next, so tasks
//! interact in the order of virtual time. The other policies draw the next CPU at random, and all
//! CPUs share one clock: these policies find races and measure nothing.
//! No locks are needed: one thread runs the engine, and no borrow of `State` outlives a call.

mod home;
mod limits;
mod policy;
mod report;
mod schedule;
mod state;
mod task;
mod trace;

pub(crate) use home::{Confined, Home};
pub use limits::{Limits, Stuck};
pub use policy::Policy;
pub use report::{Report, RoleTime};
pub(crate) use state::Outcome;
pub(crate) use task::TaskId;
pub(crate) use trace::Bar;
pub use trace::Trace;

use crate::machine::Machine;
use crate::order::Order;
use corosensei::{Coroutine, Yielder};
use highwater_platform::{IdleTime, LockClass, Phase};
use highwater_units::{CpuId, Nanos, NodeId, Prng};
use schedule::Holds;
use state::{CpuState, Next, State, Task, Timer};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// How far a CPU may run ahead of the others between shared accesses.
const SLACK: u64 = 1000;

/// A running virtual machine.
pub(crate) struct Engine {
    pub(crate) machine: Machine,
    pub(crate) order: Order,
    policy: Policy,
    limits: Limits,
    /// One in this many shared accesses is delayed; 0: none.
    holdups: u64,
    clock: Cell<u64>,
    horizon: Cell<u64>,
    cpu: Cell<CpuId>,
    task: Cell<TaskId>,
    phase: Cell<&'static Phase>,
    /// The factor, in thousandths, by which a busy sibling thread slows work down.
    slowdown: Cell<u64>,
    /// CPU time not yet accounted to the task and its phase.
    unbooked: Cell<u64>,
    state: RefCell<State>,
    random: RefCell<Prng>,
}

thread_local! {
    /// The engine that runs on this host thread.
    static CURRENT: Cell<*const Engine> = const { Cell::new(std::ptr::null()) };
}

impl Engine {
    pub(crate) fn new(
        machine: Machine,
        policy: Policy,
        limits: Limits,
        holdups: u64,
        seed: u64,
        trace: Option<Trace>,
    ) -> Engine {
        let mut random = Prng::new(seed);
        let state = State::new(&machine, policy, trace, &mut random);
        Engine {
            order: Order::new(),
            policy,
            limits,
            holdups,
            clock: Cell::new(0),
            horizon: Cell::new(0),
            cpu: Cell::new(CpuId(0)),
            task: Cell::new(TaskId(0)),
            phase: Cell::new(Phase::PROGRAM),
            slowdown: Cell::new(1000),
            unbooked: Cell::new(0),
            state: RefCell::new(state),
            random: RefCell::new(random),
            machine,
        }
    }

    /// Calls `act` with the engine of the calling task; `None` outside a simulation.
    pub(crate) fn current<R>(act: impl FnOnce(Option<&Engine>) -> R) -> R {
        let engine = CURRENT.get();
        // SAFETY: `run` sets it, on this thread, to an engine that it borrows for as long.
        act(unsafe { engine.as_ref() })
    }

    /// Whether a task of this engine is calling.
    pub(crate) fn is_current(&self) -> bool {
        std::ptr::eq(CURRENT.get(), self)
    }

    /// Runs until the main task (number 0) ends.
    pub(crate) fn run(self: &Arc<Engine>) -> Result<(), Stuck> {
        let _running = Running::enter(self);
        loop {
            let next = self.state.borrow_mut().next(self.policy, self.clock.get());
            match next {
                Next::Fire(timer) => self.fire(timer),
                Next::Resume(cpu) => self.resume(cpu),
                Next::Nothing => break,
            }
            let state = self.state.borrow();
            if let Some(stuck) = state.without_progress(&self.limits) {
                return Err(stuck);
            }
        }
        let state = self.state.borrow();
        match state.alive() {
            0 => Ok(()),
            _ => Err(state.deadlock()),
        }
    }

    fn fire(&self, timer: Timer) {
        let mut state = self.state.borrow_mut();
        self.clock.set(self.clock.get().max(timer.at));
        let at = timer.at + self.machine.costs.wake_latency;
        state.wake(&self.machine, timer.task, Some(timer.sleep), at);
    }

    /// Runs the task of a CPU until it suspends.
    fn resume(&self, cpu: CpuId) {
        let mut coroutine = {
            let mut state = self.state.borrow_mut();
            let (task, clock) = state.begin(cpu, self.policy, self.clock.get());
            self.cpu.set(cpu);
            self.task.set(task);
            self.clock.set(clock);
            self.phase.set(state.tasks[task.index()].phase);
            self.slowdown.set(state.slowdown(&self.machine, cpu, clock));
            self.horizon.set(state.horizon(cpu, self.policy));
            state.tasks[task.index()].coroutine.take().expect("a task runs once at a time")
        };
        coroutine.resume(());
        self.book();
        let mut state = self.state.borrow_mut();
        let (clock, task) = (self.clock.get(), self.task.get());
        if coroutine.done() {
            state.set_outcome(task, Outcome::Done);
        } else {
            state.tasks[task.index()].coroutine = Some(coroutine);
        }
        state.tasks[task.index()].phase = self.phase.get();
        let holds = if self.order.holds_any(task) { Holds::Locks } else { Holds::Nothing };
        state.end(&self.machine, cpu, clock, holds);
    }

    /// Suspends the running task.
    fn suspend(&self, outcome: Outcome) {
        let task = self.task.get();
        let yielder = {
            let mut state = self.state.borrow_mut();
            state.set_outcome(task, outcome);
            state.tasks[task.index()].yielder
        };
        // SAFETY: the yielder belongs to the running task, and lives on its stack.
        unsafe { (*yielder).suspend(()) };
    }

    /// Accounts the CPU time so far to the task and its phase.
    fn book(&self) {
        let spent = self.unbooked.replace(0);
        if spent > 0 {
            let (cpu, task, phase) = (self.cpu.get(), self.task.get(), self.phase.get());
            self.state.borrow_mut().book(cpu, task, phase, spent, self.clock.get());
        }
    }

    /// Charges CPU time for work that a busy sibling thread slows down.
    pub(crate) fn charge(&self, nanos: u64) {
        self.spend(nanos * self.slowdown.get() / 1000);
        if self.clock.get() > self.horizon.get().saturating_add(SLACK) {
            self.suspend(Outcome::Ready);
        }
    }

    /// Charges CPU time.
    fn spend(&self, nanos: u64) {
        self.clock.set(self.clock.get() + nanos);
        self.unbooked.set(self.unbooked.get() + nanos);
    }

    /// Spins until `at`.
    pub(crate) fn spin_until(&self, at: u64) {
        let clock = self.clock.get();
        if at > clock {
            self.state.borrow_mut().spun(self.cpu.get(), clock, at);
            self.spend(at - clock);
        }
    }

    /// Called before an access that other threads can observe or that depends on them: first runs
    /// all CPUs that are behind in time. Policies other than the smallest clock switch at random.
    pub(crate) fn sync(&self) {
        self.hold_up();
        let suspend = match self.policy {
            Policy::SmallestClock => self.clock.get() > self.horizon.get(),
            _ => self.state.borrow_mut().strays(self.policy, &mut self.random.borrow_mut()),
        };
        if suspend {
            self.suspend(Outcome::Ready);
        }
    }

    /// Now and then delays a thread that holds no lock by a microsecond to some milliseconds, as if
    /// another virtual machine had used its CPU: what the thread has just read may be stale then.
    fn hold_up(&self) {
        if self.holdups > 0
            && self.draw(self.holdups) == 0
            && !self.order.holds_any(self.task.get())
        {
            let nanos = 1000 << self.draw(13);
            self.sleep(Some(nanos), "being held up");
        }
    }

    /// Called before an access to a word that only this CPU has used: policies other than the
    /// smallest clock may switch to another CPU.
    pub(crate) fn wander(&self) {
        if !self.policy.is_timed() || self.holdups > 0 {
            self.sync();
        }
    }

    /// Spins until [`Engine::grant`] hands the lock over.
    pub(crate) fn wait_for_grant(&self) {
        self.suspend(Outcome::Spinning);
    }

    /// Hands a lock over to a waiting task.
    pub(crate) fn grant(&self, task: TaskId) {
        let mut state = self.state.borrow_mut();
        let costs = &self.machine.costs;
        let to = state.tasks[task.index()].cpu;
        let handover = self.by_distance(to, costs.handover_near, costs.handover_far);
        let at = state.grant(task, self.clock.get() + handover);
        self.pull_horizon(at);
    }

    /// Another CPU can run from `at` on.
    fn pull_horizon(&self, at: u64) {
        if self.policy.is_timed() {
            self.horizon.set(self.horizon.get().min(at));
        }
    }

    /// Sleeps until woken or until the timeout.
    pub(crate) fn sleep(&self, timeout: Option<u64>, why: &'static str) {
        let holds = self.order.holds_for_short(self.task.get());
        assert!(!holds, "a thread sleeps ({why}) under a lock");
        let until = timeout.map(|nanos| self.clock.get().saturating_add(nanos));
        self.state.borrow_mut().prepare_sleep(self.task.get(), until, why);
        self.suspend(Outcome::Asleep);
    }

    /// Wakes a task if it sleeps.
    pub(crate) fn wake(&self, task: TaskId) {
        self.charge(self.machine.costs.wake);
        let at = self.clock.get() + self.machine.costs.wake_latency;
        let mut state = self.state.borrow_mut();
        let at = state.wake(&self.machine, task, None, at);
        self.pull_horizon(at);
    }

    /// Yields the CPU to another runnable thread, if there is one.
    pub(crate) fn yield_cpu(&self) {
        self.state.borrow_mut().give_way(self.task.get());
        self.suspend(Outcome::Ready);
    }

    /// Interrupts other CPUs for `nanos` each.
    pub(crate) fn interrupt(&self, cpus: impl Iterator<Item = CpuId>, nanos: u64) {
        let mut state = self.state.borrow_mut();
        cpus.for_each(|cpu| state.interrupt(cpu, nanos));
    }

    /// Starts a task on the CPUs of `node`, or on any CPU.
    pub(crate) fn spawn(
        self: &Arc<Engine>,
        name: &str,
        node: Option<NodeId>,
        body: Box<dyn FnOnce()>,
    ) -> TaskId {
        let engine = Arc::downgrade(self);
        let at = self.clock.get() + self.machine.costs.wake_latency;
        let mut state = self.state.borrow_mut();
        let id = TaskId(state.tasks.len() as u32);
        let run = move |yielder: &Yielder<(), ()>| {
            let engine = engine.upgrade().expect("the engine runs its tasks");
            engine.state.borrow_mut().tasks[id.index()].yielder = yielder;
            drop(engine);
            body();
        };
        state.tasks.push(Task::new(name, node, Coroutine::new(move |yielder, ()| run(yielder))));
        if let Some(trace) = &mut state.trace {
            trace.started(name);
        }
        let at = state.place(&self.machine, id, at);
        self.pull_horizon(at);
        id
    }

    /// Changes the phase of the running task. Returns the previous phase.
    pub(crate) fn enter(&self, phase: &'static Phase) -> &'static Phase {
        self.book();
        self.phase.replace(phase)
    }

    /// Adds to the lock statistics of the task's phase.
    pub(crate) fn record(&self, class: LockClass, wait: Option<u64>, hold: u64) {
        self.state.borrow_mut().record(class, self.phase.get(), wait, hold);
    }

    /// Counts an event and adds it to the run's hash.
    pub(crate) fn event(&self, what: u64) {
        self.state.borrow_mut().event(what, self.clock.get());
    }

    /// Reports progress: the run is not stuck.
    pub(crate) fn progress(&self) {
        self.state.borrow_mut().progressed(self.clock.get());
    }

    /// Adds a bar to the trace, if there is one.
    pub(crate) fn trace(&self, bar: impl FnOnce(CpuId) -> Bar) {
        if let Some(trace) = &mut self.state.borrow_mut().trace {
            trace.add(bar(self.cpu.get()));
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.clock.get())
    }

    pub(crate) fn running_cpu(&self) -> CpuId {
        self.cpu.get()
    }

    pub(crate) fn running_task(&self) -> TaskId {
        self.task.get()
    }

    pub(crate) fn thread_cpu_time(&self) -> Nanos {
        let state = self.state.borrow();
        Nanos(state.tasks[self.task.get().index()].cpu_time + self.unbooked.get())
    }

    /// CPU time of all tasks so far.
    pub(crate) fn busy(&self) -> Nanos {
        self.book();
        Nanos(self.state.borrow().tasks.iter().map(|task| task.cpu_time).sum())
    }

    /// Idle time of the CPUs of a node.
    pub(crate) fn idle_time(&self, node: NodeId) -> IdleTime {
        self.charge(self.machine.costs.atomic);
        self.book();
        self.state.borrow().idle_time(&self.machine, node, self.clock.get())
    }

    /// Records a value in the trace, if there is one.
    pub(crate) fn trace_value(&self, name: &str, value: u64) {
        if let Some(trace) = &mut self.state.borrow_mut().trace {
            trace.add_value(name, self.clock.get(), value);
        }
    }

    /// Draws a number from the run's random sequence.
    pub(crate) fn draw(&self, below: u64) -> u64 {
        self.random.borrow_mut().below(below)
    }

    /// The cost of moving a line or handing over a lock, by the distance of the CPU that had it.
    pub(crate) fn by_distance(&self, from: CpuId, near: u64, far: u64) -> u64 {
        let socket = |cpu| self.machine.socket_of(cpu);
        if socket(from) == socket(self.cpu.get()) { near } else { far }
    }

    pub(crate) fn report(&self) -> Report {
        self.state.borrow().report(self.clock.get())
    }

    pub(crate) fn lock_statistics(&self) -> highwater_platform::LockStatistics {
        self.state.borrow().locks.clone()
    }

    pub(crate) fn take_trace(&self) -> Option<Trace> {
        self.state.borrow_mut().trace.take()
    }
}

/// Makes an engine current while it lives. A run that ends early leaks its coroutines: their stacks
/// may hold dangling references, so they must not be unwound.
struct Running<'a> {
    engine: &'a Engine,
    before: *const Engine,
}

impl<'a> Running<'a> {
    fn enter(engine: &'a Engine) -> Running<'a> {
        Running { engine, before: CURRENT.replace(engine) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
        let Ok(mut state) = self.engine.state.try_borrow_mut() else { return };
        let left = state.tasks.iter_mut().filter_map(|task| task.coroutine.take());
        left.for_each(std::mem::forget);
    }
}

impl CpuState {
    fn is_running(self) -> bool {
        matches!(self, CpuState::Running(_))
    }
}
