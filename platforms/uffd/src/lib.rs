//! The platform of unmodified programs: real page faults, by userfaultfd.
//!
//! ```text
//! Uffd           uffd.rs      CPUs, locks, clocks, threads and devices are those of platform os
//!  |- UffdArena  arena.rs     a frame that is mapped is a hole in the arena (MOVE), or has no
//!  |                          memory there (COPY)
//!  |- Areas      area.rs      where spaces lie, and how their faults are delivered
//!  |             protect.rs   ranges whose protection the program changed
//!  |             mmu.rs       map, unmap: MOVE, or COPY and write protection
//!  \- Source     api.rs       the ioctls of userfaultfd
//! ```
//! There are three descriptors: one for the arena (MOVE out needs a registered destination; no
//! thread faults there), one for the spaces whose faults are messages, and one for those whose
//! faults are signals. Crate highwater-serve takes the faults to the manager.

pub mod api;
mod area;
mod arena;
mod atomic;
mod block;
mod clock;
mod cpu;
mod files;
mod lock;
mod memory;
mod mmu;
mod protect;
mod thread;
mod uffd;

pub use api::Mapping;
pub use area::{Delivery, Placement, Site};
pub use files::FileAt;
pub use uffd::Uffd;
