//! Locks: the standard library's futex mutex. Events: a sequence number under a futex.

use crate::{Os, sys};
use highwater_platform::{Event, Lock, LockClass, Locks, Ticket};
use highwater_units::Nanos;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A lock. A panic while it is held aborts the process, so it is never poisoned.
pub struct OsLock<T>(Mutex<T>);

impl<T: Send> OsLock<T> {
    /// A free lock.
    pub fn new(value: T) -> OsLock<T> {
        OsLock(Mutex::new(value))
    }
}

impl<T: Send> Lock<T> for OsLock<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// An event count. `sequence` rises with every notification; `waiters` saves the system call when
/// nobody waits. Both are SeqCst: a waiter counts itself before the kernel compares the sequence, a
/// notifier raises the sequence before it looks for waiters, so one of them sees the other.
#[derive(Default)]
pub struct OsEvent {
    sequence: AtomicU32,
    waiters: AtomicU32,
}

impl Event for OsEvent {
    fn ticket(&self) -> Ticket {
        Ticket(self.sequence.load(SeqCst))
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Nanos>) {
        self.waiters.fetch_add(1, SeqCst);
        if self.sequence.load(SeqCst) == ticket.0 {
            sys::futex_wait(&self.sequence, ticket.0, timeout);
        }
        self.waiters.fetch_sub(1, SeqCst);
    }

    fn notify_all(&self) {
        self.sequence.fetch_add(1, SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            sys::futex_wake_all(&self.sequence);
        }
    }
}

impl Locks for Os {
    type Lock<T: Send + 'static> = OsLock<T>;
    type Event = OsEvent;

    fn new_lock<T: Send + 'static>(&self, _: LockClass, value: T) -> OsLock<T> {
        OsLock::new(value)
    }

    fn new_event(&self) -> OsEvent {
        OsEvent::default()
    }
}
