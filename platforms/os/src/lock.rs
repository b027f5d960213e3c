//! Locks: the standard library's futex mutex, with statistics. Events: a sequence number under a
//! futex.

use crate::lock_table::{LockTable, Note};
use crate::os::Os;
use crate::sys;
use crate::time::monotonic;
use highwater_platform::{Event, Guard, Lock, LockClass, LockStatistics, Locks, Ticket};
use highwater_units::Nanos;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A lock. A panic while it is held aborts the process, so it cannot be poisoned.
pub struct OsLock<T> {
    mutex: Mutex<Counted<T>>,
    /// [`LockClass::id`].
    class: u8,
    table: LockTable,
}

struct Counted<T> {
    /// Acquisitions until the next sample. The lock protects this as well, so that counting is a
    /// decrement of a plain word in a cache line that the holder uses anyway.
    left: u32,
    value: T,
}

/// Whether an acquisition is a sample.
enum Acquisition {
    Passed,
    Sampled,
}

impl<T: Send> OsLock<T> {
    /// A free lock, whose statistics go to `table`.
    pub fn new(table: &LockTable, class: LockClass, value: T) -> OsLock<T> {
        OsLock::of_class(table, class.id(), value)
    }

    fn of_class(table: &LockTable, class: u8, value: T) -> OsLock<T> {
        let counted = Counted { left: table.first_sample(), value };
        OsLock { mutex: Mutex::new(counted), class, table: table.clone() }
    }

    #[inline(always)]
    fn try_hold(&self) -> Option<MutexGuard<'_, Counted<T>>> {
        match self.mutex.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline(always)]
    fn counted<'a>(&'a self, mut held: MutexGuard<'a, Counted<T>>) -> OsGuard<'a, T> {
        match held.count() {
            Acquisition::Passed => OsGuard { held, note: None },
            Acquisition::Sampled => self.sampled(held),
        }
    }

    #[cold]
    fn sampled<'a>(&'a self, held: MutexGuard<'a, Counted<T>>) -> OsGuard<'a, T> {
        OsGuard { held, note: Some(self.table.note(self.class, None, Some(monotonic()))) }
    }

    #[cold]
    fn contended(&self) -> OsGuard<'_, T> {
        let began = monotonic();
        let mut held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let now = monotonic();
        let sampled = match held.count() {
            Acquisition::Passed => None,
            Acquisition::Sampled => Some(now),
        };
        OsGuard { held, note: Some(self.table.note(self.class, Some(now.since(began)), sampled)) }
    }
}

impl<T> Counted<T> {
    #[inline(always)]
    fn count(&mut self) -> Acquisition {
        self.left -= 1;
        if self.left > 0 {
            return Acquisition::Passed;
        }
        self.left = LockTable::SAMPLE_EVERY;
        Acquisition::Sampled
    }
}

impl<T: Send> Lock<T> for OsLock<T> {
    type Guard<'a>
        = OsGuard<'a, T>
    where
        T: 'a;

    #[inline]
    fn lock(&self) -> OsGuard<'_, T> {
        match self.try_hold() {
            Some(held) => self.counted(held),
            None => self.contended(),
        }
    }

    #[inline]
    fn try_lock(&self) -> Option<OsGuard<'_, T>> {
        self.try_hold().map(|held| self.counted(held))
    }

    fn alike(&self, value: T) -> OsLock<T> {
        OsLock::of_class(&self.table, self.class, value)
    }
}

/// A lock that is held.
pub struct OsGuard<'a, T> {
    // Dropped in this order: the lock is free before its statistics are entered.
    held: MutexGuard<'a, Counted<T>>,
    note: Option<Note<'a>>,
}

impl<T> Deref for OsGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.held.value
    }
}

impl<T> DerefMut for OsGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held.value
    }
}

impl<T> Guard<T> for OsGuard<'_, T> {
    #[inline(always)]
    fn visits(&self, _: usize) {}
}

impl<T> Drop for OsGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(note) = &mut self.note {
            note.release();
        }
    }
}

/// An event count. Each notification increments `sequence`; `waiters` saves the system call if no
/// thread waits. Both are SeqCst: a waiter counts itself before the kernel compares the sequence,
/// and a notifier increments the sequence before it reads `waiters`, so one sees the other.
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

    fn new_lock<T: Send + 'static>(&self, class: LockClass, value: T) -> OsLock<T> {
        OsLock::new(&self.locks, class, value)
    }

    fn new_event(&self) -> OsEvent {
        OsEvent::default()
    }

    fn lock_statistics(&self) -> LockStatistics {
        self.locks.statistics()
    }
}
