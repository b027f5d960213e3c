//! Makes frames free: decides the fate of the oldest pages, 32 at a time, and acts on it.
//!
//! ```text
//! balance::shrink -- scan::age     active -> inactive, asking whether pages are used
//!                 \- scan::decide  Fate of an inactive page: pure
//!                    evict         acts: unmap, slot, write, free; runs of up to 16 pages
//!                    in_place      the same for files: unmap, write, free
//!                    outbox        writes to slots that kswapd does not wait for at once
//!                    folio         the same for pages of more than one frame
//! kswapd          -- threads that call balance::shrink between the low and the high mark
//! crew            -- how many of them each node has
//!                    sizing: Sizing, if that is left to the manager: pure
//! throttle        -- direct reclaims wait: for pages in other threads' hands, for kswapd
//! ```
//! Locking: reclaim only ever *tries* to lock entries, and waits for nothing but its own transfers,
//! and for others for a limited time; so an allocation may reclaim while it holds entries. Isolated
//! pages are in one thread's hands.

mod balance;
mod crew;
mod evict;
mod folio;
mod in_place;
mod kswapd;
mod large;
mod outbox;
mod scan;
mod sizing;
mod throttle;

pub use balance::{Reclaimer, shrink};
pub use crew::Crew;
pub use throttle::{Throttled, wait_for_relief};
