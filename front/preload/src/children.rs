//! Forked children of a process that may still read its swap slots.

use highwater_mm::{Manager, Snapshot};
use highwater_uffd::Uffd;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A pipe that says when a forked child and its children have ended, and what they may read.
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

    /// Gives the slots back that nobody reads any more.
    pub(crate) fn release_ended(&self, manager: &Manager<Uffd>) {
        // Nothing is ever written: 0 bytes say that the other end is closed everywhere.
        let ended = |(pipe, _): &mut Child| matches!(pipe.read(&mut [0u8]), Ok(0));
        let mut children = self.lock();
        let gone: Vec<_> = children.extract_if(.., ended).collect();
        drop(children);
        gone.iter().for_each(|(_, snapshot)| manager.release_snapshot(snapshot));
    }
}
