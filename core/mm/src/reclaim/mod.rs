//! Reclaim: frees frames by evicting the least recently used pages, 32 at a time.
//!
//! ```text
//! shrink      which pages go next: a kind, then the oldest of its inactive list
//!  |- balance   which kinds, and how many pages: pure
//!  |- aging     active -> inactive, probing whether pages are used
//!  |   \- region  pages unmapped together with those around them
//!  |- throttle  direct reclaims wait: for isolated pages, for kswapd
//!  |- settle    frames given up for memory that swap devices take
//!  \- evict     a batch: each page's fate (fate: pure), slots, writes, free frames
//!      |- in_place  files' pages: written to their places
//!      |- folio     pages of more than one frame
//!      |- large     pages of 2 MiB
//!      \- crate::write_completion  what becomes of a page after its write
//! evictor     whether kswapd reclaims, or the threads that allocate
//! kswapd      threads that reclaim between the low and the high watermark
//!  |- write_queue  their writes in flight
//!  \- kswapd_pool  how many of them each node has; sizing: the automatic number, pure
//! ```
//! Locking: reclaim only *tries* to lock entries, and waits for nothing but its own transfers and,
//! for a bounded time, in `throttle`. So an allocation may reclaim while it holds entries. Isolated
//! pages are held by the thread that isolated them.

mod aging;
mod balance;
mod destinations;
mod evict;
mod evictor;
mod fate;
mod folio;
#[cfg(feature = "history")]
mod history;
mod in_place;
mod kswapd;
mod kswapd_pool;
mod large;
mod probing;
mod reclaimer;
mod region;
mod settle;
mod shrink;
mod sizing;
mod throttle;
mod transfers;
mod write_queue;

pub use evictor::{Evictor, evictor};
#[cfg(feature = "history")]
pub use history::scans_all_nodes;
pub use kswapd::wake_kswapd;
pub use kswapd_pool::KswapdPool;
pub use reclaimer::Reclaimer;
pub use settle::settle;
pub use shrink::shrink;
pub use throttle::{Throttled, throttle_direct_reclaim};
