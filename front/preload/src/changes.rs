//! Serialises changes of regions and forks.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A fork waits for changes of regions that have begun, and blocks new ones.
#[derive(Default)]
pub(crate) struct Changes(RwLock<()>);

impl Changes {
    /// Begins a change: a fork waits until the guard is dropped. Signals are blocked.
    pub(crate) fn begin(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no change is under way; none begins while the guard lives. Signals are blocked.
    pub(crate) fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
