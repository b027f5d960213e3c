//! The four lists of a node, and how a thread that isolates a page treats contention.

use crate::frame::{Kind, Place};

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Anonymous, candidates for eviction.
    InactiveAnon = 0,
    /// Anonymous, used lately.
    ActiveAnon = 1,
    /// Of files, candidates for eviction.
    InactiveFile = 2,
    /// Of files, used again lately.
    ActiveFile = 3,
}

impl List {
    /// All of them, in the order of their values.
    pub const ALL: [List; 4] =
        [List::InactiveAnon, List::ActiveAnon, List::InactiveFile, List::ActiveFile];

    /// The active list of a kind.
    pub fn active(kind: Kind) -> List {
        match kind {
            Kind::Anon => List::ActiveAnon,
            Kind::File => List::ActiveFile,
        }
    }

    /// The inactive list of a kind.
    pub fn inactive(kind: Kind) -> List {
        match kind {
            Kind::Anon => List::InactiveAnon,
            Kind::File => List::InactiveFile,
        }
    }

    /// The list of a place; `None` if the place is not a list.
    pub(super) fn of(place: Place) -> Option<List> {
        List::ALL.into_iter().find(|list| list.place() == place)
    }

    /// The place of its pages.
    pub fn place(self) -> Place {
        match self {
            List::InactiveAnon => Place::InactiveAnon,
            List::ActiveAnon => Place::ActiveAnon,
            List::InactiveFile => Place::InactiveFile,
            List::ActiveFile => Place::ActiveFile,
        }
    }
}

/// Whether page migration waits for other threads (migrate_mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It waits for nothing, and skips contended locks and pages in use.
    Async,
    /// It waits for locks, and for a bounded time for pages in use.
    Sync,
}
