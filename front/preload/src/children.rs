//! Forked children of a process that may still read its swap slots.

use highwater_mm::{Manager, Snapshot};
use highwater_uffd::Uffd;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pipe reaches its end when a child and all its descendants have ended; the snapshot is what
/// they may read.
type Child = (File, Snapshot);

/// Forked children that may still read this process's slots.
#[derive(Default)]
pub(crate) struct Children(Mutex<Vec<Child>>);

impl Children {
    fn lock(&self) -> MutexGuard<'_, Vec<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, pipe: OwnedFd, snapshot: Snapshot) {
        self.lock().push((File::from(pipe), snapshot));
    }

    /// Releases the slots of children that have ended.
    pub(crate) fn release_ended(&self, manager: &Manager<Uffd>) {
        // No data is ever written: reading 0 bytes means that every copy of the other end is
        // closed.
        let ended = |(pipe, _): &mut Child| matches!(pipe.read(&mut [0u8]), Ok(0));
        let mut children = self.lock();
        let gone: Vec<_> = children.extract_if(.., ended).collect();
        drop(children);
        gone.iter().for_each(|(_, snapshot)| manager.release_snapshot(snapshot));
    }
}
