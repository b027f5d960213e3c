//! Locks and events of platform `os`.

use crate::Uffd;
use highwater_os::{OsEvent, OsLock};
use highwater_platform::{LockClass, Locks};

impl Locks for Uffd {
    type Lock<T: Send + 'static> = OsLock<T>;
    type Event = OsEvent;

    fn new_lock<T: Send + 'static>(&self, _: LockClass, value: T) -> OsLock<T> {
        OsLock::new(value)
    }

    fn new_event(&self) -> OsEvent {
        OsEvent::default()
    }
}
