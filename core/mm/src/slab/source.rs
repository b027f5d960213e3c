//! The sources of slabs' pages.
//!
//! ```text
//! SlabPages -- PageRange   page numbers of an address range: a buddy allocator for each node, and
//!           |              runs cached by CPUs                                range.rs
//!           \- Frames      frames of a manager                                frames.rs
//! ```
//! A source may wait for memory, so no lock of slabs is held while it is called.

use super::object::CacheId;
use highwater_platform::Platform;
use highwater_units::{NodeId, Order};

/// A source of runs of adjacent pages.
pub trait SlabPages: Send + Sync + 'static {
    /// The platform of locks and atomics.
    type Platform: Platform;

    /// The platform.
    fn platform(&self) -> &Self::Platform;

    /// All page numbers are below this one. Constant; at most 2^36.
    fn pages(&self) -> u64;

    /// Allocates a run of 2^order pages for a slab of `cache`, on this CPU's node if possible;
    /// returns its first page, `None` if there is no such run.
    fn take(&self, order: Order, cache: CacheId) -> Option<u64>;

    /// Frees the run of a slab of `cache`.
    fn give(&self, first: u64, order: Order, cache: CacheId);

    /// The memory node of an allocated page.
    fn node_of(&self, page: u64) -> NodeId;
}

/// Pages of a run.
pub(super) fn page_count(order: Order) -> u64 {
    order.frames().into()
}
