//! Moving pages between frames, so that free frames come together: blocks on demand.
//!
//! ```text
//! direct            an allocation makes its block: node by node      Outcome
//!   \- defer        not right after it failed: pure
//!   \- pass         one zone: the scanners, until they meet          Control
//!        |- migrate_scanner   upwards: pages that could move         decide: pure
//!        |- free_scanner      downwards: frames for them          Targets: by order
//!        |- migrate           a page from one frame to another, whoever uses it
//!        |- folio             the same for pages of more than one frame
//!        |- method            what kernels did differently, as data
//!        \- evacuate          the way of `fast`: one block, emptied where that takes least
//! kcompactd         a thread of each node that has blocks ready
//! ```
//! docs/compaction.md says why. Locking: a lane of the LRU, or a part of the zone, one at a time;
//! moving takes entries. Who holds entries may compact: entries are only tried for, or waited for
//! for a limited time. Conservation: frames in a run's hands are pages it isolated, and targets;
//! both are back on lists or in the zone when it ends.

mod control;
mod defer;
mod direct;
mod evacuate;
mod folio;
mod free_scanner;
mod kcompactd;
mod method;
mod migrate;
mod migrate_scanner;
mod pass;
mod targets;

pub use control::Outcome;
pub use direct::{Had, direct, on_node, settle, settle_on};
pub use folio::{migrate_folio, order_of};
pub use kcompactd::{ask, start};
pub use migrate::{Migrated, Mode, migrate_batch};
