//! The memory manager: pages of spaces in a budget of frames, the rest on swap devices.
//!
//! ```text
//! Manager<P> -- Machine<P>   everything it works on; see machine.rs for the lock order
//!            \- kswapd       threads
//!
//! files -> snapshot, write_back, khugepaged -> fault, slab, range -> alloc -> reclaim, compact
//!                      -> write_completion -> large, run, folio, kthread -> machine
//!                      -> space, swap, lru, zone -> frame
//! ```
//! A module uses only what is to its right; `stats`, `config` and `error` are open to all. The
//! modules are in the order in which a fault travels.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod compact;
pub mod config;
pub mod error;
pub mod fault;
pub mod files;
pub mod folio;
pub mod frame;
pub mod khugepaged;
pub mod kthread;
pub mod large;
pub mod lock_class;
pub mod lru;
pub mod machine;
mod manager;
pub mod phase;
pub mod range;
pub mod reclaim;
mod run;
pub mod slab;
pub mod snapshot;
pub mod space;
pub mod stats;
pub mod swap;
pub mod verify;
pub mod write_back;
mod write_completion;
pub mod zone;

pub use config::Config;
pub use error::{CollapseError, FaultError};
pub use fault::{Fault, Served};
pub use manager::{Manager, Pin, StartError};
pub use snapshot::Snapshot;
pub use space::{Access, Range};
