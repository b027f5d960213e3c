//! The memory manager: keeps pages of address spaces in a budget of frames, and the other pages on
//! swap devices and in files.
//!
//! ```text
//! Manager<P> -- Machine<P>   the shared state; `machine.rs` has the lock order
//!            \- kswapd and the other background threads
//!
//! files -> snapshot, write_back, khugepaged -> fault, slab, range -> alloc -> reclaim, compact
//!                      -> write_completion -> large, run, folio, kthread -> machine
//!                      -> space, swap, lru, zone -> frame
//! ```
//! A module uses only modules to its right, so calls follow the path of a fault. All modules may
//! use `stats`, `config` and `error`.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "in a private module, `pub` is for the modules above it")]

mod alloc;
mod compact;
pub mod config;
pub mod error;
mod fault;
mod files;
mod folio;
mod frame;
#[cfg(feature = "inspect")]
pub mod inspect;
mod khugepaged;
mod kthread;
mod large;
pub mod lock_class;
mod lru;
mod machine;
mod manager;
pub mod phase;
mod range;
mod reclaim;
mod run;
pub mod slab;
mod snapshot;
mod space;
pub mod stats;
mod swap;
mod swapoff;
mod verify;
mod write_back;
mod write_completion;
mod zone;

pub use config::Config;
pub use error::{CollapseError, FaultError};
pub use fault::{Fault, Served};
pub use khugepaged::Asked;
pub use machine::SPACES_MAX;
pub use manager::{Manager, Pin, StartError};
pub use range::Poisoned;
pub use snapshot::{Frozen, Snapshot, Unadopted};
pub use space::{Access, Range};
pub use swap::{SwapUse, Taken, Use as SwapPart};
pub use swapoff::{NoRoom, Outcome as SwapoffOutcome, Swapoff};
pub use zone::{Blocks, Fragmentation, Mobility};
