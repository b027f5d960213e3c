//! The platform of unmodified programs: real page faults, by userfaultfd.
//!
//! ```text
//! Uffd           uffd.rs       CPUs, locks, clocks, threads, devices are those of platform os
//!  |- Areas      area.rs       where spaces lie, and how their faults are delivered
//!  |             protect.rs    ranges whose protection the program changed
//!  |             mmu.rs        map: UFFDIO_COPY
//!  |             take_out.rs   unmap: write protection, copies, one drop for a batch
//!  |             parting.rs    pages shared with other processes after a fork, until they part
//!  |             copy.rs       a copy that ends if the program's page has vanished
//!  |- Stage      stage.rs      memory of frames whose page is not in the program
//!  |             pool.rs       the pages of the stage
//!  |- Transit    transit.rs    moves out pages that may be pinned: MOVE
//!  |- Drops      drops.rs      process_madvise
//!  |- Residency  residency.rs  which pages are present
//!  |- Source     api.rs        the ioctls of userfaultfd
//!  \- Descriptor descriptor.rs used by the helper and by the program
//! ```
//! There are up to three userfaultfds: one for the transit area (MOVE needs a registered
//! destination; no thread faults there), one for the spaces whose faults are messages, and one for
//! the spaces whose faults are signals. Crate highwater-serve passes the faults to the manager.

pub mod api;
mod area;
mod atomic;
mod block;
mod clock;
mod copy;
mod cpu;
mod descriptor;
mod drops;
mod files;
mod lock;
mod memory;
mod mmu;
mod parting;
mod pool;
mod protect;
mod residency;
mod stage;
mod take_out;
mod thread;
mod transit;
mod uffd;

pub use api::{Calls, Mapping};
pub use area::{Delivery, Offer, Placement, Site};
#[cfg(target_arch = "x86_64")]
pub use copy::end_copy;
pub use files::FileAt;
pub use uffd::Uffd;
