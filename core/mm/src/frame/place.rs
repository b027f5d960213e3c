//! The place of an allocated frame with respect to the LRU lists.
//!
//! ```text
//!          add             drain (lru lock)         isolate (lru lock)
//!   Off ---------> Batch ---------------> Listed ------------------> Isolated ---> Off (evicted)
//!                    |                      ^  |  putback (lru lock)    |
//!                    | abandon              |  +------------------------+
//!                    +--------> Orphan <----+------ abandon ------------+
//! ```
//! All frames of a large page except the first are tails: Off -> Tail -> Isolated (split) or Off
//! (evicted). The first frame of a run goes Off -> Run -> Off. When a page moves to another frame,
//! the old frame goes from Isolated to Off and the new one from Off to Batch.
//!
//! A frame whose page is dropped while another thread has it in a batch or isolated is abandoned:
//! it becomes an orphan, which that thread frees instead of putting it on a list.

use highwater_platform::{Atomic, Platform};
use std::sync::atomic::Ordering::*;

/// The place of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// On no list: free, or held by a thread that fills or frees it.
    Off,
    /// In a CPU's batch, on its way to a list.
    Batch,
    /// On the inactive list of anonymous pages.
    InactiveAnon,
    /// On the active list of anonymous pages.
    ActiveAnon,
    /// On the inactive list of file pages.
    InactiveFile,
    /// On the active list of file pages.
    ActiveFile,
    /// Off its list, held by a thread that reclaims or moves the page.
    Isolated,
    /// In a batch, isolated or a tail, and owned by no page any more.
    Orphan,
    /// In a large page or a folio, and not its first frame, which is listed for all.
    Tail,
    /// The first of 2^order frames that are allocated as a run; the others are off.
    Run,
}

const ALL: [Place; 10] = [
    Place::Off,
    Place::Batch,
    Place::InactiveAnon,
    Place::ActiveAnon,
    Place::InactiveFile,
    Place::ActiveFile,
    Place::Isolated,
    Place::Orphan,
    Place::Tail,
    Place::Run,
];

/// The kind of a page. Each has its own pair of LRU lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous: evicted to swap.
    Anon = 0,
    /// Of a file: dropped, or written back.
    File = 1,
}

impl Kind {
    /// Both kinds, in the order of their values.
    pub const ALL: [Kind; 2] = [Kind::Anon, Kind::File];
}

/// The place of one frame: its number in [`ALL`].
pub struct PlaceCell<'a, P: Platform>(&'a P::Atomic<u8>);

const _: () = assert!(Place::Off as u8 == 0, "frames begin there");

impl<'a, P: Platform> PlaceCell<'a, P> {
    pub(super) fn new(place: &'a P::Atomic<u8>) -> PlaceCell<'a, P> {
        PlaceCell(place)
    }

    /// The current place.
    pub fn get(&self) -> Place {
        ALL[usize::from(self.0.load(Acquire))]
    }

    /// Changes the place from `from` to `to`.
    ///
    /// # Errors
    /// The current place, if that is not `from`.
    pub fn change(&self, from: Place, to: Place) -> Result<(), Place> {
        let changed = self.0.compare_exchange(from as u8, to as u8, AcqRel, Acquire);
        changed.map(drop).map_err(|other| ALL[usize::from(other)])
    }
}
