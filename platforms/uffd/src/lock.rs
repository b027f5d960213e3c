//! Locks and events, as on platform `os`.

use crate::uffd::Uffd;
use highwater_os::{OsEvent, OsLock};
use highwater_platform::{LockClass, LockStatistics, Locks};

impl Locks for Uffd {
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
