//! The manager on an ordinary operating system: real threads, an arena of real memory, real
//! devices, and a software page table that callers obey through pins (guards).
//!
//! ```text
//! Os         os.rs          impls of the contract (highwater-platform):
//!  |- Topology, IdleTimes    topology.rs              cpu.rs     phases of threads: phase.rs
//!  |- LockTable              lock_table.rs            lock.rs    OsLock, OsEvent over futexes
//!  |- ArenaMapping           arena.rs, huge.rs        memory.rs, mmu.rs, atomic.rs
//!  |- Devices, Place         devices.rs, place.rs     block.rs, files.rs
//!  \- (no state)             time.rs, spawn.rs        clock.rs, thread.rs
//! helper/   a process beside the program, whose threads are the manager's      sys.rs   raw calls
//! ```
//! The pieces are public: platform `uffd` uses them with another memory and another MMU.

mod arena;
mod atomic;
mod block;
mod clock;
mod cpu;
mod devices;
mod files;
pub mod helper;
pub mod huge;
mod lock;
mod lock_table;
mod memory;
mod mmu;
mod os;
mod phase;
mod place;
mod spawn;
pub mod sys;
mod thread;
mod time;
mod topology;

pub use arena::ArenaMapping;
pub use atomic::zeros;
pub use devices::{Devices, Transfer};
pub use huge::HugePages;
pub use lock::{OsEvent, OsGuard, OsLock};
pub use lock_table::LockTable;
pub use os::Os;
pub use phase::enter;
pub use place::{Place, describe};
pub use spawn::{OsThread, spawn};
pub use time::{monotonic, process_cpu_time, thread_cpu_time};
pub use topology::{IdleTimes, Topology, relax};
