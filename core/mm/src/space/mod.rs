//! A space: a page table, and the lock of each page.
//!
//! ```text
//! Space -- Table: leaves of 512 entries, one atomic word each    page_table.rs, table.rs, entry.rs
//!      \- Event x 64: waiters for a locked entry, by page number
//! Held, Scattered, HeldBlock: entries that a thread has locked   held.rs, block.rs
//! claim, hold: how a thread locks an entry, and waits for it     claim.rs
//! ```
//! Locking: an entry is its page's lock ([`Held`]) and comes first in the lock order. The pages of
//! resident frames are found through [`crate::frame::Owner`] (the reverse map). Guards pin: a
//! pinned page keeps its frame.

mod block;
mod claim;
mod entry;
mod held;
mod page_table;
#[cfg(test)]
mod space_fuzz;
#[cfg(test)]
mod space_model;
mod table;

pub use crate::frame::Owner;
pub use block::{HeldBlock, block_of};
pub use claim::Claim;
pub use entry::{Entry, Page};
pub use held::{Held, Left, Pinned, Scattered};
pub use page_table::{Access, Backing, FirstUse, Range, Space};
