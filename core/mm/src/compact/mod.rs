//! Compaction: moves pages to other frames, so that free frames become blocks of adjacent ones.
//!
//! ```text
//! direct            an allocation compacts node after node           Outcome
//!   |- defer        which attempts are skipped after failures: pure
//!   \- pass         one zone: evacuate, then perhaps the scanners    Control
//!        |- evacuate          empties the region that is cheapest to empty
//!        |- migrate_scanner   upwards: isolates movable pages        decide: pure
//!        |- free_scanner      downwards: isolates free frames        Targets: by order
//!        \- relocate          moves isolated pages to targets
//!             |- migrate      pages of one frame
//!             \- folio        pages of more
//! kcompactd         a thread of each node: makes blocks in the background
//! history           the kernels of 2012 (feature `history`)
//! ```
//! docs/compaction.md gives the reasons. Locking: an LRU shard's lock or a zone part's, one at a
//! time; moving a page takes its entry. A caller may hold entries, because compaction only tries to
//! lock entries, or waits for them for a limited time. Conservation: a pass holds the pages that it
//! isolated, and targets; when it ends, both are back on the lists or in the zone.

mod control;
mod defer;
mod direct;
mod evacuate;
mod folio;
mod free_scanner;
#[cfg(feature = "history")]
mod history;
mod isolated;
mod kcompactd;
mod migrate;
mod migrate_scanner;
mod pass;
mod relocate;
mod targets;

pub use control::Outcome;
pub use direct::{Attempt, direct, on_node, record, record_on};
pub use folio::{migrate_folio, order_of};
pub use kcompactd::{all, start, wake_kcompactd};
pub use migrate::{Migrated, Mode, migrate_batch};
