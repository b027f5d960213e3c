//! Locks and events of loom.

use crate::{Loom, threads};
use highwater_platform::{Event, Guard, Lock, LockClass, LockStatistics, Locks, Ticket};
use highwater_units::Nanos;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A mutex.
pub struct ModelLock<T>(Mutex<T>);

/// A held mutex.
pub struct ModelGuard<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for ModelGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for ModelGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Guard<T> for ModelGuard<'_, T> {
    fn visits(&self, _: usize) {}
}

impl<T: Send> Lock<T> for ModelLock<T> {
    type Guard<'a>
        = ModelGuard<'a, T>
    where
        T: 'a;

    fn lock(&self) -> ModelGuard<'_, T> {
        ModelGuard(self.0.lock().expect("no panic under a lock"))
    }

    fn try_lock(&self) -> Option<ModelGuard<'_, T>> {
        self.0.try_lock().ok().map(ModelGuard)
    }

    fn alike(&self, value: T) -> ModelLock<T> {
        ModelLock(Mutex::new(value))
    }
}

/// An event that is as weak as the contract permits: a ticket is an acquire load, a notification a
/// release, and neither orders other words. Made at the first access, like [`crate::Word`]. A wait
/// that has a timeout never times out.
#[derive(Default)]
pub struct ModelEvent(OnceLock<Parts>);

struct Parts {
    sequence: AtomicU32,
    sleepers: Mutex<()>,
    changed: Condvar,
}

impl ModelEvent {
    fn parts(&self) -> &Parts {
        self.0.get_or_init(|| Parts {
            sequence: AtomicU32::new(0),
            sleepers: Mutex::new(()),
            changed: Condvar::new(),
        })
    }
}

impl Event for ModelEvent {
    fn ticket(&self) -> Ticket {
        threads::die_if_killed();
        Ticket(self.parts().sequence.load(Acquire))
    }

    fn wait(&self, ticket: Ticket, _: Option<Nanos>) {
        let Parts { sequence, sleepers, changed } = self.parts();
        let guard = sleepers.lock().expect("no panic under a lock");
        if sequence.load(Acquire) == ticket.0 {
            drop(changed.wait(guard));
        }
    }

    fn notify_all(&self) {
        let Parts { sequence, sleepers, changed } = self.parts();
        let _guard = sleepers.lock().expect("no panic under a lock");
        sequence.fetch_add(1, Release);
        changed.notify_all();
    }
}

impl Locks for Loom {
    type Lock<T: Send + 'static> = ModelLock<T>;
    type Event = ModelEvent;

    fn new_lock<T: Send + 'static>(&self, _: LockClass, value: T) -> ModelLock<T> {
        ModelLock(Mutex::new(value))
    }

    fn new_event(&self) -> ModelEvent {
        ModelEvent::default()
    }

    fn lock_statistics(&self) -> LockStatistics {
        LockStatistics::default()
    }
}
