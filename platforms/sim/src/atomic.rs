//! Shared words. The cost of an access depends on which CPU owns the cache line.
//!
//! ```text
//! line: unowned -> owned by the first CPU -> owned by another (write) or shared (read), moved
//! ```
//! An access by the owner costs `atomic`; an access by another CPU moves the line. Before an access
//! to a line that has moved at least once, all CPUs that are behind in virtual time run. On a line
//! that only one CPU has used so far, that CPU may run slightly ahead. Any CPU reads a shared line
//! at the cost of `atomic`: the set of sharers is not tracked. Every word has its own line. Memory
//! orderings are not modelled: accesses are sequentially consistent, so the simulator does not find
//! bugs that need weak memory.

use crate::Sim;
use crate::engine::Engine;
use crate::machine::CPUS_MAX;
use highwater_platform::{Atomic, Atomics, Int};
use highwater_units::CpuId;
use std::sync::atomic::{AtomicU16, Ordering, Ordering::Relaxed};

/// More than one CPU has used the line.
const MOVED: u16 = 1 << 15;
/// The CPU that owns the line, or one of the two values below.
const OWNER: u16 = MOVED - 1;
/// No CPU has used the line yet.
const NOBODY: u16 = OWNER;
/// More than one CPU has read the line.
const SHARED: u16 = OWNER - 1;
const _: () = assert!(CPUS_MAX < SHARED as usize, "CPUs have numbers below");

/// A word shared by virtual CPUs.
pub struct SimAtomic<T: Int> {
    value: T::Std,
    line: AtomicU16,
}

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

impl<T: Int> SimAtomic<T> {
    /// Charges for the access that follows. Does nothing outside a simulation.
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
    let owner = before & OWNER;
    if owner == me || (owner == SHARED && usage == Use::Read) {
        return engine.charge(costs.atomic);
    }
    if owner == NOBODY {
        line.store(me, Relaxed);
        return engine.charge(costs.atomic);
    }
    if before & MOVED == 0 {
        engine.sync();
    }
    let cost = match line.load(Relaxed) & OWNER {
        SHARED => costs.line_near,
        owner => engine.by_distance(CpuId(owner), costs.line_near, costs.line_far),
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
