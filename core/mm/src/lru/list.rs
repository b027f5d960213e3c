//! The four lists of a node, and how a thread that isolates a page treats contention.

use crate::frame::{Kind, Place};

/// Which list.
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

    /// The list that is a place; `None` if that is none.
    pub(super) fn of(place: Place) -> Option<List> {
        List::ALL.into_iter().find(|list| list.place() == place)
    }

    /// Where its pages say they are.
    pub fn place(self) -> Place {
        match self {
            List::InactiveAnon => Place::InactiveAnon,
            List::ActiveAnon => Place::ActiveAnon,
            List::InactiveFile => Place::InactiveFile,
            List::ActiveFile => Place::ActiveFile,
        }
    }
}

/// Whether who moves pages between frames waits for others (migrate_mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does not, not even for a lock: what is in use is left alone.
    Async,
    /// It waits for locks, and some time for pages in use.
    Sync,
}
