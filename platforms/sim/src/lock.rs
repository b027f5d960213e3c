//! Queued spin locks, with the costs of the machine description.
//!
//! A lock is a FIFO queue (MCS). A CPU that finds it held spins until the hand-over. A CPU that
//! arrives, in virtual time, before the last release waits until that release. The new holder then
//! pays the hand-over by distance (or only `lock`, if the lock was free), the cache lines that the
//! last holder changed, and the work of the lock's class ([`crate::machine::Section`]).

use crate::Sim;
use crate::engine::{Bar, Confined, Engine, Home, TaskId};
use crate::event::SimEvent;
use crate::machine::Section;
use highwater_platform::{Guard, Lock, LockClass, LockStatistics, Locks};
use highwater_units::CpuId;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// A lock of the simulated machine.
pub struct SimLock<T> {
    class: LockClass,
    section: Section,
    state: Confined<Queue>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a guard, of which one exists at a time
// (`Queue::held`), by tasks of one engine, hence on one thread.
unsafe impl<T: Send> Sync for SimLock<T> {}

/// The holder of a lock, and its waiters.
struct Queue {
    held: bool,
    /// The CPU of the last holder.
    last: Option<CpuId>,
    /// The virtual time of the last release.
    free_at: u64,
    waiters: VecDeque<TaskId>,
    /// The times of the current holder.
    since: u64,
    waited: Option<u64>,
}

/// The state in which a CPU found a lock.
enum Found {
    /// Held: the holder has not released it yet.
    Held,
    /// Released at a time by a CPU.
    Free(u64, Option<CpuId>),
}

impl<T: Send> SimLock<T> {
    /// A free lock.
    pub(crate) fn new(home: &Home, class: LockClass, section: Section, value: T) -> SimLock<T> {
        let state = Queue {
            held: false,
            last: None,
            free_at: 0,
            waiters: VecDeque::new(),
            since: 0,
            waited: None,
        };
        SimLock { class, section, state: Confined::new(home, state), value: UnsafeCell::new(value) }
    }

    /// Takes the lock or joins its queue. The task is not preempted until it releases the lock;
    /// waiters keep their CPUs.
    fn arrive(&self, engine: &Engine) -> Found {
        let found = self.state.with(|queue| {
            if queue.held {
                queue.waiters.push_back(engine.running_task());
                Found::Held
            } else {
                queue.held = true;
                Found::Free(queue.free_at, queue.last)
            }
        });
        if let Found::Free(..) = found {
            engine.order.took(engine.running_task(), self.class);
        }
        found
    }

    /// Waits until this task owns the lock. Returns the wait, if the lock was not free.
    fn wait(&self, engine: &Engine, begin: u64) -> Option<u64> {
        let costs = &engine.machine.costs;
        match self.arrive(engine) {
            Found::Held => {
                engine.wait_for_grant();
                engine.order.took(engine.running_task(), self.class);
            }
            Found::Free(at, Some(last)) if at > begin => {
                let handover = engine.by_distance(last, costs.handover_near, costs.handover_far);
                engine.spin_until(at + handover);
            }
            Found::Free(_, last) => {
                let moved = last.filter(|last| *last != engine.running_cpu());
                let line =
                    moved.map_or(0, |l| engine.by_distance(l, costs.line_near, costs.line_far));
                engine.charge(costs.lock + line);
                return None;
            }
        }
        let end = engine.now().0;
        engine.trace(|cpu| Bar::wait(cpu, self.class, begin, end));
        Some(end - begin)
    }

    /// Records the acquisition, and charges for the work of a holder.
    fn hold(&self, engine: &Engine, waited: Option<u64>) -> SimGuard<'_, T> {
        let last = self.state.with(|queue| {
            queue.since = engine.now().0;
            queue.waited = waited;
            queue.last
        });
        engine.event(1 + u64::from(self.class.id()));
        let costs = &engine.machine.costs;
        let moved = last.filter(|last| *last != engine.running_cpu());
        let line = moved.map_or(0, |l| engine.by_distance(l, costs.line_near, costs.line_far));
        let guard = SimGuard { lock: self };
        let section = self.section;
        engine.charge(section.base + section.lines.unwrap_or(costs.section_lines) * line);
        guard
    }

    fn leave(&self) {
        let engine = self.state.engine();
        let now = engine.now().0;
        let (next, waited, hold) = self.state.with(|queue| {
            queue.last = Some(engine.running_cpu());
            queue.free_at = now;
            let next = queue.waiters.pop_front();
            queue.held = next.is_some();
            (next, queue.waited, now - queue.since)
        });
        engine.order.left(engine.running_task(), self.class);
        engine.record(self.class, waited, hold);
        if let Some(task) = next {
            engine.grant(task);
        }
    }
}

impl<T: Send> Lock<T> for SimLock<T> {
    type Guard<'a>
        = SimGuard<'a, T>
    where
        T: 'a;

    fn lock(&self) -> SimGuard<'_, T> {
        let engine = self.state.engine();
        engine.sync();
        engine.order.want(engine.running_task(), self.class);
        let waited = self.wait(engine, engine.now().0);
        self.hold(engine, waited)
    }

    fn try_lock(&self) -> Option<SimGuard<'_, T>> {
        let engine = self.state.engine();
        engine.sync();
        let (now, costs) = (engine.now().0, &engine.machine.costs);
        let (free, last) = self.state.with(|queue| {
            let free = !queue.held && queue.free_at <= now;
            queue.held |= free;
            (free, queue.last)
        });
        if free {
            engine.order.took(engine.running_task(), self.class);
        }
        // A failed attempt also moves the lock's cache line.
        let moved = last.filter(|last| *last != engine.running_cpu());
        let line = moved.map_or(0, |l| engine.by_distance(l, costs.line_near, costs.line_far));
        engine.charge(costs.lock + line);
        free.then(|| self.hold(engine, None))
    }

    fn alike(&self, value: T) -> SimLock<T> {
        SimLock::new(self.state.home(), self.class, self.section, value)
    }
}

/// A held lock.
pub struct SimGuard<'a, T: Send> {
    lock: &'a SimLock<T>,
}

impl<T: Send> Deref for SimGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this guard's task until the guard is dropped.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: Send> DerefMut for SimGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Send> Guard<T> for SimGuard<'_, T> {
    fn visits(&self, items: usize) {
        let engine = self.lock.state.engine();
        engine.charge(self.lock.section.item * items as u64);
    }
}

impl<T: Send> Drop for SimGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.leave();
    }
}

impl Locks for Sim {
    type Lock<T: Send + 'static> = SimLock<T>;
    type Event = SimEvent;

    fn new_lock<T: Send + 'static>(&self, class: LockClass, value: T) -> SimLock<T> {
        let section = self.engine().machine.costs.sections.of(class.name());
        SimLock::new(self.home(), class, section, value)
    }

    fn new_event(&self) -> SimEvent {
        SimEvent::new(self.home())
    }

    fn lock_statistics(&self) -> LockStatistics {
        self.engine().lock_statistics()
    }
}
