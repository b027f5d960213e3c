//! Keeps changes of regions and forks apart.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Keeps changes of regions and forks apart.
#[derive(Default)]
pub(crate) struct Changes(RwLock<()>);

impl Changes {
    /// Begins a change: a fork waits until the guard is dropped. Signals are blocked.
    pub(crate) fn begin(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody changes anything; nobody does while the guard lives. Signals are blocked.
    pub(crate) fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
