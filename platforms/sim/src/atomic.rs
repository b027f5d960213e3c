//! Shared words: who had the cache line last decides what an access costs.
//!
//! ```text
//! line: nobody's -> a CPU's (it came first) -> another's (it wrote) or shared (it read), moved
//! ```
//! An access by the CPU that has the line costs `atomic`; another one moves it. Before an access to
//! a line that ever moved, the CPUs that are behind in time go; on a line that only one CPU has
//! used so far it may run ahead a little. A line that is shared is read for `atomic` by all: which
//! of them have it is not kept. Every word has a line of its own. Orderings are not modelled:
//! accesses happen one after the other, so what only weak memory shows is not found here.

use crate::Sim;
use crate::engine::Engine;
use crate::machine::CPUS_MAX;
use highwater_platform::{Atomic, Atomics, Int};
use highwater_units::CpuId;
use std::sync::atomic::{AtomicU16, Ordering, Ordering::Relaxed};

/// The line has been with more than one CPU.
const MOVED: u16 = 1 << 15;
/// The CPU that has the line, or one of these.
const OWNER: u16 = MOVED - 1;
/// It is nobody's yet.
const NOBODY: u16 = OWNER;
/// More than one CPU has read it.
const SHARED: u16 = OWNER - 1;
const _: () = assert!(CPUS_MAX < SHARED as usize, "CPUs have numbers below");

/// A word that virtual CPUs share.
pub struct SimAtomic<T: Int> {
    value: T::Std,
    line: AtomicU16,
}

/// What an access does to the line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

impl<T: Int> SimAtomic<T> {
    /// Charges for an access, about to be made. Outside a simulation nobody charges.
    fn touch(&self, usage: Use) {
        Engine::current(|engine| engine.map(|engine| touch(engine, &self.line, usage)));
    }
}

fn touch(engine: &Engine, line: &AtomicU16, usage: Use) {
    let costs = &engine.machine.costs;
    if line.load(Relaxed) & MOVED == 0 {
        engine.wander();
    } else {
        engine.sync();
    }
    let (me, before) = (engine.running_cpu().0, line.load(Relaxed));
    let had = before & OWNER;
    if had == me || (had == SHARED && usage == Use::Read) {
        return engine.charge(costs.atomic);
    }
    if had == NOBODY {
        line.store(me, Relaxed);
        return engine.charge(costs.atomic);
    }
    if before & MOVED == 0 {
        engine.sync();
    }
    let cost = match line.load(Relaxed) & OWNER {
        SHARED => costs.line_near,
        had => engine.by_distance(CpuId(had), costs.line_near, costs.line_far),
    };
    let now = if usage == Use::Write { me } else { SHARED };
    line.store(now | MOVED, Relaxed);
    engine.event(32);
    engine.charge(cost);
}

impl<T: Int> Atomic<T> for SimAtomic<T> {
    fn new(value: T) -> SimAtomic<T> {
        SimAtomic { value: Atomic::new(value), line: AtomicU16::new(NOBODY) }
    }

    fn load(&self, _: Ordering) -> T {
        self.touch(Use::Read);
        self.value.load(Relaxed)
    }

    fn store(&self, value: T, _: Ordering) {
        self.touch(Use::Write);
        self.value.store(value, Relaxed);
    }

    fn swap(&self, value: T, _: Ordering) -> T {
        self.touch(Use::Write);
        self.value.swap(value, Relaxed)
    }

    fn compare_exchange(&self, current: T, new: T, _: Ordering, _: Ordering) -> Result<T, T> {
        self.touch(Use::Write);
        self.value.compare_exchange(current, new, Relaxed, Relaxed)
    }

    fn fetch_add(&self, value: T, _: Ordering) -> T {
        self.touch(Use::Write);
        self.value.fetch_add(value, Relaxed)
    }

    fn fetch_sub(&self, value: T, _: Ordering) -> T {
        self.touch(Use::Write);
        self.value.fetch_sub(value, Relaxed)
    }

    fn fetch_and(&self, value: T, _: Ordering) -> T {
        self.touch(Use::Write);
        self.value.fetch_and(value, Relaxed)
    }

    fn fetch_max(&self, value: T, _: Ordering) -> T {
        self.touch(Use::Write);
        self.value.fetch_max(value, Relaxed)
    }
}

impl Atomics for Sim {
    type Atomic<T: Int> = SimAtomic<T>;
}
