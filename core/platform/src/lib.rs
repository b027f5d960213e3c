//! The contract between the manager and the world it runs in.
//!
//! ```text
//!              Manager<P: Platform>            core/mm: decides, holds no unsafe
//!   Cpu Clock Locks Atomics Threads Memory Mmu Block Files    this crate
//!     os (guards)      uffd (real faults)      sim (virtual machine)
//! ```
//! One trait per file, the same file names in every platform. A platform is a value: two managers
//! on two platforms fit in one test. Said once, for all methods:
//! - any thread may call any method at any time, unless it says otherwise;
//! - a method blocks only where its name says so (`lock`, `wait`, `join`, `read`, `write`);
//! - no method calls back into the manager, and none touches memory that the manager pages;
//! - frames named in a call belong to the caller for its duration: nobody else maps, fills, frees
//!   or transfers them.
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

pub use atomic::{Atomic, Atomics, Int};
pub use block::{Block, DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
pub use clock::Clock;
pub use cpu::{Cpu, IdleTime};
pub use files::{FileAccess, FileInfo, Files};
pub use lock::{Event, Guard, Lock, Locks, Ticket};
pub use memory::{FrameRange, Memory, OutOfHostMemory, WORDS_PER_FRAME};
pub use mmu::{AttachError, Mmu, Progress, Protection, Recency, Stop};
pub use profile::{LockClass, LockRecord, LockStatistics, Phase, PhaseKind};
pub use thread::{Thread, Threads};

/// A world the manager can run in.
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
