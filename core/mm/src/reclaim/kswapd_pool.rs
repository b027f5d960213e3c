//! The kswapd threads of all nodes: how many each node has, and changes of their number while they
//! run.
//!
//! ```text
//! KswapdPool -- NodePool, by node -- Members: [Worker]   a thread, its control; the stopped ones
//!                                 |- due                 time of the next review, if automatic
//!                                 \- CPU time by index
//! set(n)   fewer: stops the last workers, wakes them and joins them
//!          more:  starts threads
//! review   by the first kswapd thread to find it due: Totals -> Sample -> sizing::decide
//! ```
//! Locking: the mutex of a node's members is the standard library's: nothing waits while it is
//! held, and no shared word of the platform is touched.

use super::kswapd::{self, Control, Pool, wake_kswapd};
use super::sizing::{EXCESS_MIN, PERIOD, Sample, Sizing, Streaks, decide};
use super::throttle;
use crate::config::{KSWAPD_THREADS_MAX, KswapdThreads};
use crate::machine::Machine;
use crate::stats::Counter;
use highwater_platform::{Atomic, Platform, Thread};
use highwater_units::{Nanos, NodeId};
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

/// The source of the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The user.
    Fixed = 0,
    /// [`KswapdPool::review`].
    Auto = 1,
}

/// A kswapd thread.
struct Worker<P: Platform> {
    control: Arc<Control<P>>,
    thread: P::Thread,
    /// Time it had slept at the last review.
    slept: Nanos,
}

/// The threads of a node, and the state from which their number is decided.
struct Members<P: Platform> {
    mode: Mode,
    workers: Vec<Worker<P>>,
    /// Stopped, not joined yet.
    stopped: Vec<Worker<P>>,
    /// Most workers so far.
    peak: usize,
    last: Totals,
    streaks: Streaks,
}

/// One node's part of the pool.
struct NodePool<P: Platform> {
    members: Mutex<Members<P>>,
    /// The members' mode, readable without the lock.
    mode: P::Atomic<u8>,
    /// Time of the next review.
    due: P::Atomic<u64>,
    cpu_time: [AtomicU64; KSWAPD_THREADS_MAX],
}

/// Counters, and the state of the zone, at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    at: Nanos,
    freed: u64,
    freed_directly: u64,
    stalls: u64,
    idle: Option<Nanos>,
    free: u32,
    low: u32,
}

/// The kswapd threads of all nodes.
pub struct KswapdPool<P: Platform> {
    machine: Arc<Machine<P>>,
    nodes: Vec<NodePool<P>>,
}

impl<P: Platform> NodePool<P> {
    fn new() -> NodePool<P> {
        let members = Members {
            mode: Mode::Fixed,
            workers: Vec::new(),
            stopped: Vec::new(),
            peak: 0,
            last: Totals::default(),
            streaks: Streaks::default(),
        };
        let cpu_time = [const { AtomicU64::new(0) }; KSWAPD_THREADS_MAX];
        let mode = Atomic::new(Mode::Fixed as u8);
        NodePool { members: Mutex::new(members), mode, due: Atomic::new(0), cpu_time }
    }

    fn members(&self) -> MutexGuard<'_, Members<P>> {
        self.members.lock().expect("no panic")
    }

    fn is_auto(&self) -> bool {
        self.mode.load(Relaxed) == Mode::Auto as u8
    }
}

impl<P: Platform> Members<P> {
    /// The sample since the last review, which was at `self.last`.
    fn sample(&mut self, now: &Totals) -> Sample {
        let last = std::mem::replace(&mut self.last, *now);
        let length = now.at.since(last.at);
        let (mut least_busy, mut busy) = (length, Nanos(0));
        for worker in &mut self.workers {
            let slept = worker.control.slept(now.at);
            let asleep = slept.since(std::mem::replace(&mut worker.slept, slept));
            let at_work = length.since(asleep);
            (least_busy, busy) = (least_busy.min(at_work), Nanos(busy.0 + at_work.0));
        }
        let idle = now.idle.zip(last.idle).map(|(now, last)| now.since(last));
        Sample {
            length,
            threads: self.workers.len(),
            least_busy,
            busy,
            freed: now.freed - last.freed,
            freed_directly: now.freed_directly - last.freed_directly,
            stalls: now.stalls - last.stalls,
            free: now.free,
            low: now.low,
            idle,
        }
    }

    /// Whether the thread of a control works here and is not stopped.
    fn has(&self, control: &Arc<Control<P>>) -> bool {
        self.workers.iter().any(|worker| Arc::ptr_eq(&worker.control, control))
    }

    /// Removes the workers beyond `threads`.
    fn remove_beyond(&mut self, threads: usize) -> Vec<Worker<P>> {
        self.workers.split_off(threads.min(self.workers.len()))
    }
}

impl<P: Platform> KswapdPool<P> {
    /// A pool without threads.
    pub fn new(machine: Arc<Machine<P>>) -> Arc<KswapdPool<P>> {
        let nodes = machine.nodes.iter().map(|_| NodePool::new()).collect();
        Arc::new(KswapdPool { machine, nodes })
    }

    /// Threads of a node.
    pub fn threads(&self, node: usize) -> usize {
        self.nodes[node].members().workers.len()
    }

    /// Most threads any node has had.
    pub fn peak(&self) -> usize {
        self.nodes.iter().map(|pool| pool.members().peak).max().unwrap_or(0)
    }

    /// CPU time of a node's threads, by index; successive threads of one index count together.
    pub fn cpu_times(&self, node: usize) -> Vec<Nanos> {
        let pool = &self.nodes[node];
        let peak = pool.members().peak;
        pool.cpu_time[..peak].iter().map(|time| Nanos(time.load(Relaxed))).collect()
    }

    /// Gives every node a fixed number of threads, or from now on as many as it needs. Surplus
    /// threads have ended when this returns.
    ///
    /// # Errors
    /// The system refuses a thread; those already started stay.
    pub fn set(self: &Arc<Self>, threads: KswapdThreads) -> io::Result<()> {
        match threads {
            KswapdThreads::Fixed(threads) => self.change(Mode::Fixed, threads..=threads),
            KswapdThreads::Auto => self.change(Mode::Auto, 1..=KSWAPD_THREADS_MAX),
        }
    }

    /// Ends all threads.
    pub fn stop(self: &Arc<Self>) {
        self.change(Mode::Fixed, 0..=0).expect("starts no thread");
    }

    fn change(self: &Arc<Self>, mode: Mode, threads: RangeInclusive<usize>) -> io::Result<()> {
        let mut ended = Vec::new();
        for (pool, node) in self.nodes.iter().zip(&self.machine.nodes) {
            pool.mode.store(mode as u8, Relaxed);
            let mut members = pool.members();
            members.mode = mode;
            members.streaks = Streaks::default();
            let mut surplus = members.remove_beyond(*threads.end());
            surplus.append(&mut members.stopped);
            drop(members);
            surplus.iter().for_each(|worker| worker.control.stop());
            if *threads.end() == 0 {
                throttle::kswapd_gave_up(&self.machine, node);
            }
            // Also the threads that stay: their longest sleep depends on the mode.
            wake_kswapd(node);
            ended.append(&mut surplus);
        }
        ended.into_iter().for_each(|worker| worker.thread.join());
        (0..self.nodes.len()).try_for_each(|node| {
            let mut members = self.nodes[node].members();
            while members.mode == mode && members.workers.len() < *threads.start() {
                self.start(node, &mut members)?;
            }
            Ok(())
        })
    }

    /// Starts one more thread.
    fn start(self: &Arc<Self>, node: usize, members: &mut Members<P>) -> io::Result<()> {
        let (index, platform) = (members.workers.len(), &self.machine.platform);
        let control = Arc::new(Control::new());
        let of = OfThread { pool: self.clone(), node, index, control: control.clone() };
        let body = Box::new(move || {
            let m = &of.pool.machine;
            kswapd::run(m, &m.nodes[node], &of.control, &of);
        });
        let name = format!("kswapd{node}:{index}");
        let thread = platform.spawn(&name, NodeId(node as u8), body)?;
        members.workers.push(Worker { control, thread, slept: Nanos(0) });
        members.peak = members.peak.max(index + 1);
        self.trace_threads(node, members);
        Ok(())
    }

    fn trace_threads(&self, node: usize, members: &Members<P>) {
        let name = format!("threads of kswapd{node}");
        self.machine.platform.trace_value(&name, members.workers.len() as u64);
    }

    /// Changes the number of a node's threads, if it is automatic and a period is over. `own` is of
    /// the calling thread.
    fn review(self: &Arc<Self>, node: usize, own: &Arc<Control<P>>) {
        let (pool, now) = (&self.nodes[node], self.machine.platform.now());
        self.machine.update_pressure(now);
        if !pool.is_auto() {
            return;
        }
        let (now, due) = (now.0, pool.due.load(Relaxed));
        let next = now + PERIOD.0;
        if now < due || pool.due.compare_exchange(due, next, Relaxed, Relaxed).is_err() {
            return;
        }
        let seen = self.totals(node);
        let mut members = pool.members();
        // A thread that another one stopped meanwhile decides nothing: it would join itself.
        if !members.has(own) {
            return;
        }
        let sample = members.sample(&seen);
        members.streaks.extend(&sample);
        let sizing = match members.mode {
            Mode::Fixed => Sizing::Keep,
            Mode::Auto => decide(sample.threads, &members.streaks),
        };
        match sizing {
            Sizing::Keep => {}
            Sizing::Grow(threads) => self.grow(node, members, threads),
            Sizing::Shrink => self.shrink(node, members),
        }
    }

    fn totals(&self, node: usize) -> Totals {
        let m = &self.machine;
        let zone = &m.nodes[node].zone;
        Totals {
            freed: m.stats.get(Counter::PgStealKswapd),
            freed_directly: m.stats.get(Counter::PgStealDirect),
            stalls: m.stats.get(Counter::AllocStall),
            idle: m.platform.idle_time(NodeId(node as u8)).map(|idle| idle.time),
            free: zone.free_frames(),
            low: zone.marks().low,
            at: m.platform.now(),
        }
    }

    fn grow(
        self: &Arc<Self>,
        node: usize,
        mut members: MutexGuard<'_, Members<P>>,
        threads: usize,
    ) {
        members.streaks = Streaks::default();
        let stopped: Vec<Worker<P>> = members.stopped.drain(..).collect();
        // If the system refuses a thread, the next try is after another streak.
        let started = (0..threads).take_while(|_| self.start(node, &mut members).is_ok()).count();
        self.machine.count(Counter::KswapdGrown, started as u64);
        drop(members);
        stopped.into_iter().for_each(|worker| worker.thread.join());
    }

    fn shrink(&self, node: usize, mut members: MutexGuard<'_, Members<P>>) {
        members.streaks = Streaks::default();
        let Some(worker) = members.workers.pop() else { return };
        let control = worker.control.clone();
        // It may be this thread: another one joins it later.
        members.stopped.push(worker);
        self.trace_threads(node, &members);
        drop(members);
        self.machine.count(Counter::KswapdShrunk, 1);
        control.stop();
        wake_kswapd(&self.machine.nodes[node]);
    }
}

/// The pool as one thread sees it.
struct OfThread<P: Platform> {
    pool: Arc<KswapdPool<P>>,
    node: usize,
    index: usize,
    control: Arc<Control<P>>,
}

impl<P: Platform> Pool for OfThread<P> {
    /// In automatic mode, idle threads wake now and then, so that a review finds them idle.
    fn sleep_max(&self) -> Option<Nanos> {
        let node = &self.pool.nodes[self.node];
        (node.is_auto() && node.members().workers.len() > 1).then_some(EXCESS_MIN)
    }

    fn review(&self) {
        self.pool.review(self.node, &self.control);
    }

    fn add_cpu_time(&self, time: Nanos) {
        self.pool.nodes[self.node].cpu_time[self.index].fetch_add(time.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use highwater_platform::Threads;
    use highwater_platform::testing::TestPlatform;

    /// A pool in automatic mode with threads that end at once, idle long enough to lose one.
    fn idle_pool(threads: usize) -> Arc<KswapdPool<TestPlatform>> {
        let machine =
            Arc::new(Machine::new(TestPlatform::new(1024, Vec::new()), Config::default()));
        let pool = KswapdPool::new(machine);
        pool.nodes[0].mode.store(Mode::Auto as u8, Relaxed);
        let mut members = pool.nodes[0].members();
        members.mode = Mode::Auto;
        members.workers.extend((0..threads).map(|_| {
            let thread = pool.machine.platform.spawn("idle", NodeId(0), Box::new(|| ()));
            let control = Arc::new(Control::new());
            Worker { control, thread: thread.expect("a thread"), slept: Nanos(0) }
        }));
        drop(members);
        pool
    }

    /// Regression: swarm seed 1000320. A thread was stopped while it sampled the node, then found
    /// that the node needs more threads, and joined those that were stopped: itself, too.
    #[test]
    fn a_stopped_thread_decides_nothing() {
        let pool = idle_pool(4);
        let members = pool.nodes[0].members();
        let last = members.workers[3].control.clone();
        let first = members.workers[0].control.clone();
        pool.shrink(0, members);
        for (reviewer, left) in [(&last, 3), (&first, 2)] {
            let idle = Sample { length: EXCESS_MIN, threads: 3, ..Sample::default() };
            pool.nodes[0].members().streaks.extend(&idle);
            pool.nodes[0].due.store(0, Relaxed);
            pool.review(0, reviewer);
            assert_eq!(pool.threads(0), left);
        }
    }
}
