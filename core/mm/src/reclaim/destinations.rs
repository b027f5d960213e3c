//! The pages of a reclaim batch by where they go next, and the step that sends them there.

use crate::frame::Place;
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::write_completion::Outcome;
use highwater_platform::Platform;
use highwater_units::{FrameBatch, Pfn};

/// The frames of a batch, by destination.
#[derive(Default)]
pub(super) struct Destinations {
    /// Evicted: the frame is free.
    pub(super) freed: FrameBatch,
    /// In use: to the active list.
    pub(super) activated: FrameBatch,
    /// Could not be evicted now: to the active list, not counted as activated.
    pub(super) kept: FrameBatch,
    /// Unmapped to see whether they are used: once more round the inactive list.
    pub(super) probed: FrameBatch,
    /// Mapped, and not probed since they were read: to be unmapped, then as `probed`.
    pub(super) unprobed: FrameBatch,
}

impl Destinations {
    /// Sorts a page whose write has completed.
    pub(super) fn push_written(&mut self, pfn: Pfn, outcome: Outcome) {
        match outcome {
            Outcome::Freed => self.freed.push(pfn),
            Outcome::Claimed | Outcome::Clean => self.activated.push(pfn),
            Outcome::Dirty => self.kept.push(pfn),
        }
    }
}

/// Makes evicted frames ready to be freed: they have no owner and are on no list.
pub(super) fn detach<P: Platform>(m: &Machine<P>, frames: &[Pfn]) {
    for pfn in frames {
        m.frames.set_owner(*pfn, None);
        let off = m.frames.place(*pfn).change(Place::Isolated, Place::Off);
        debug_assert_eq!(off, Ok(()), "{pfn:?} was evicted by the thread that isolated it");
    }
}

/// Puts the pages that stay on their lists.
pub(super) fn put_back<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind, to: &Destinations) {
    m.count(Counter::PgActivate, to.activated.len() as u64);
    m.count(Counter::PgRotated, (to.kept.len() + to.probed.len() + to.unprobed.len()) as u64);
    if kind == Kind::File {
        node.lru.workingset().age_by(to.activated.len());
    }
    for (pages, list) in [
        (&to.activated, List::active(kind)),
        (&to.kept, List::active(kind)),
        (&to.probed, List::inactive(kind)),
    ] {
        m.free(&node.lru.putback(&m.frames, pages, list));
    }
}
