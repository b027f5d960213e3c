//! The manager on an ordinary operating system: real threads, an arena of real memory, real
//! devices, and a software page table that callers reach pages through (guards).
//!
//! ```text
//! Os -- Topology   CPUs                       cpu.rs, phase.rs
//!    |- LockTable  futex mutexes and events   lock.rs, lock_table.rs
//!    |- Arena      frames, lazily backed      memory.rs, huge.rs
//!    |- nothing    the entry is the page table mmu.rs
//!    |- [Device]   swap, files                block.rs
//!    \- [Place]    files that come and go     files.rs
//! threads: the process's own, or a helper's     thread.rs, helper/
//! ```
//! The pieces are public: `uffd` is this platform with another memory and another MMU.

mod atomic;
mod block;
mod clock;
mod cpu;
mod files;
pub mod helper;
pub mod huge;
mod lock;
mod lock_table;
mod memory;
mod mmu;
mod phase;
pub mod sys;
mod thread;

pub use block::{Devices, Transfer};
pub use clock::{monotonic, thread_cpu_time};
pub use cpu::{IdleTimes, Topology, relax};
pub use files::{Place, describe};
pub use huge::HugePages;
pub use lock::{OsEvent, OsGuard, OsLock};
pub use lock_table::LockTable;
pub use memory::ArenaMapping;
pub use phase::enter;
pub use thread::{OsThread, spawn};

use highwater_devices::Device;
use highwater_units::{Bytes, Pfn};

/// The platform of guards.
pub struct Os {
    topology: Topology,
    idle: Option<IdleTimes>,
    locks: LockTable,
    memory: ArenaMapping,
    devices: Devices,
}

impl Os {
    /// A platform with a budget of `memory`, swapping to `devices`.
    ///
    /// # Errors
    /// No address space for the arena.
    pub fn new(memory: Bytes, devices: Vec<Box<dyn Device>>) -> std::io::Result<Os> {
        Os::with_places(memory, devices, 0)
    }

    /// The same, with places for files that are opened later (`Manager::open_file`); devices and
    /// places are 255 at most.
    ///
    /// # Errors
    /// As of [`Os::new`].
    pub fn with_places(
        memory: Bytes,
        devices: Vec<Box<dyn Device>>,
        places: usize,
    ) -> std::io::Result<Os> {
        Os::backed_by(memory, devices, places, HugePages::Auto)
    }

    /// The same, and whether the arena may have huge pages.
    ///
    /// # Errors
    /// As of [`Os::new`].
    pub fn backed_by(
        memory: Bytes,
        devices: Vec<Box<dyn Device>>,
        places: usize,
        huge_pages: HugePages,
    ) -> std::io::Result<Os> {
        let frames = memory.pages() as u32;
        let topology = Topology::of_host();
        Ok(Os {
            locks: LockTable::new(topology.clone()),
            topology,
            idle: IdleTimes::open().ok(),
            memory: ArenaMapping::backed_by(frames, huge_pages)?,
            devices: Devices::new(devices, places)?,
        })
    }

    /// The swap devices.
    pub fn swap_devices(&self) -> &Devices {
        &self.devices
    }

    /// How much of the arena is in huge pages, now; none where one cannot tell.
    pub fn huge_bytes(&self) -> Bytes {
        self.memory.huge_bytes().unwrap_or_default()
    }

    /// The address of a frame. Its memory may be touched while a pin holds the page there.
    pub fn frame(&self, pfn: Pfn) -> *mut u8 {
        self.memory.arena().address(pfn)
    }
}
