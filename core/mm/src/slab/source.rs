//! Where slabs get their pages.
//!
//! ```text
//! SlabPages -- PageRange   numbers of an address range, or of memory: a buddy allocator for each
//!           |              node, and runs that CPUs keep                      range.rs
//!           \- Frames      a manager's own                                    frames.rs
//! ```
//! A source knows nothing of slabs but which cache they are for. It may wait for memory, so no lock
//! of a slab is held when it is asked.

use super::CacheId;
use highwater_platform::Platform;
use highwater_units::{NodeId, Order};

/// A source of runs of adjacent pages.
pub trait SlabPages: Send + Sync + 'static {
    /// The world that locks and words come from.
    type Platform: Platform;

    /// It.
    fn platform(&self) -> &Self::Platform;

    /// Every page's number is below. Constant; at most 2^36.
    fn pages(&self) -> u64;

    /// The first page of a run of 2^order for a slab of `cache`, of this CPU's node where there is
    /// one; `None`: there is none, or not in one piece.
    fn take(&self, order: Order, cache: CacheId) -> Option<u64>;

    /// Gives a run back that a slab of `cache` had.
    fn give(&self, first: u64, order: Order, cache: CacheId);

    /// The memory node of a page that was taken.
    fn node_of(&self, page: u64) -> NodeId;
}

/// Pages of a run.
pub(super) fn page_count(order: Order) -> u64 {
    order.frames().into()
}
