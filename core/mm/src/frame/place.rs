//! Where an allocated frame is with respect to the LRU lists.
//!
//! ```text
//!          add             drain (lru lock)         isolate (lru lock)
//!   Off ---------> Batch ---------------> Listed ------------------> Isolated ---> Off (evicted)
//!                    |                      ^  |  putback (lru lock)    |
//!                    | abandon              |  +------------------------+
//!                    +--------> Orphan <----+------ abandon ------------+
//! ```
//! The frames of a large page but the first are tails instead: Off -> Tail -> Isolated (split) or
//! Off (evicted). A run for who has no space: Off -> Run -> Off; it is said of its first frame.
//! Where a page is moved to another frame, its old one goes from Isolated to Off, and the new one
//! from Off to Batch.
//!
//! A frame whose page is dropped while another thread has it in a batch or isolated is abandoned:
//! it becomes an orphan, and that thread frees it when it would put it on a list.

use highwater_platform::{Atomic, Platform};
use std::sync::atomic::Ordering::*;

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// On no list: free, or being filled, or being freed by the thread that holds it.
    Off,
    /// In a CPU's batch, on its way to a list.
    Batch,
    /// Anonymous, a candidate for eviction.
    InactiveAnon,
    /// Anonymous, used lately.
    ActiveAnon,
    /// Of a file, a candidate for eviction.
    InactiveFile,
    /// Of a file, used again lately.
    ActiveFile,
    /// Taken off by reclaim, or by who moves pages, which has it now.
    Isolated,
    /// In a batch, isolated or a tail, and nobody's page any more.
    Orphan,
    /// Part of a large page or a folio, but its first frame: that one is listed for all.
    Tail,
    /// The first of 2^order frames that were given out as a run; the others are off.
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

/// Whose pages: the two kinds are aged apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous: swapped.
    Anon = 0,
    /// Of a file: dropped, or written to their places.
    File = 1,
}

impl Kind {
    /// Both, in the order of their values.
    pub const ALL: [Kind; 2] = [Kind::Anon, Kind::File];
}

/// An atomic [`Place`].
pub struct PlaceCell<P: Platform>(P::Atomic<u8>);

impl<P: Platform> PlaceCell<P> {
    pub(super) fn new() -> PlaceCell<P> {
        PlaceCell(Atomic::new(Place::Off as u8))
    }

    /// The present place.
    pub fn get(&self) -> Place {
        ALL[usize::from(self.0.load(Acquire))]
    }

    /// Moves from `from` to `to`; says where the frame is instead if it was not in `from`.
    pub fn change(&self, from: Place, to: Place) -> Result<(), Place> {
        let changed = self.0.compare_exchange(from as u8, to as u8, AcqRel, Acquire);
        changed.map(drop).map_err(|other| ALL[usize::from(other)])
    }
}
