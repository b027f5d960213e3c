//! The contract between the manager and a platform: what the manager needs of the machine.
//!
//! ```text
//!              Manager<P: Platform>            core/mm: decides, holds no unsafe
//!   Cpu Clock Locks Atomics Threads Memory Mmu Block Files    this crate
//!     os (guards)      uffd (real faults)      sim (virtual machine)
//! ```
//! | trait | purpose |
//! |---|---|
//! | [`Cpu`], [`Clock`] | the current CPU, nodes, phases of threads; time |
//! | [`Locks`], [`Atomics`] | locks, events, lock statistics; atomic words |
//! | [`Threads`] | kswapd and the other background threads |
//! | [`Memory`], [`Mmu`] | contents of frames; mapping frames into the program |
//! | [`Block`], [`Files`] | transfers between frames and devices; files opened at run time |
//!
//! There is one file per trait, and every platform implements it in a file of that name. A platform
//! is a value, so that two managers on two platforms fit in one test.
//!
//! Rules for all methods; each trait adds its own, and names files of core/mm that rely on them:
//! - Threads: any thread may call any method at any time, unless the method restricts that.
//! - Blocking: only `lock`, `wait`, `join`, `read`, `write`, `finish` and `sync` may block, `start`
//!   if its device cannot do otherwise, and `relax`, which may sleep for a moment.
//! - Reentrancy: no method calls the manager, and none touches memory that the manager pages. The
//!   fault on such memory would wait for the thread that serves it.
//! - Frames: the frames of a call belong to the caller until it returns. No other thread maps,
//!   fills, frees or transfers them meanwhile, unless the method says so.
//! - Constants: a value that is called constant never changes after the platform was created.
//! - Cost: faults and reclaim call most methods. These should not allocate memory from the system:
//!   reclaim runs when there is none.
//!
//! `core/testkit/src/conformance.rs` tests a platform against this contract, method by method.
#![forbid(unsafe_code)]

mod atomic;
mod block;
mod clock;
mod cpu;
mod files;
mod lock;
mod memory;
mod mmu;
mod profile;
#[cfg(feature = "testing")]
pub mod testing;
mod thread;

pub use atomic::{Atomic, Atomics, Int, StdWords};
pub use block::{Block, DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
pub use clock::Clock;
pub use cpu::{Cpu, IdleTime};
pub use files::{FileAccess, FileInfo, Files};
pub use lock::{Event, Guard, Lock, Locks, Ticket};
pub use memory::{FrameRange, Lender, Memory, OutOfHostMemory, WORDS_PER_FRAME};
pub use mmu::{AttachError, Mmu, Progress, Protection, Recency, Stop, UNMAP_PAGES_MAX, UnmapPage};
pub use profile::{LockClass, LockRecord, LockStatistics, Phase, PhaseKind};
pub use thread::{Thread, Threads};

/// A platform: implements all traits. Nothing implements this trait by hand.
pub trait Platform:
    Cpu + Clock + Locks + Atomics + Threads + Memory + Mmu + Block + Files + Send + Sync + 'static
{
}

impl<T> Platform for T where
    T: Cpu
        + Clock
        + Locks
        + Atomics
        + Threads
        + Memory
        + Mmu
        + Block
        + Files
        + Send
        + Sync
        + 'static
{
}
