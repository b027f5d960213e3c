//! The platform: what it consists of, and how it is made.

use crate::arena::ArenaMapping;
use crate::devices::Devices;
use crate::huge::HugePages;
use crate::lock_table::LockTable;
use crate::topology::{IdleTimes, Topology};
use highwater_devices::Device;
use highwater_units::{Bytes, Pfn};
use std::io;

/// The platform of guards.
pub struct Os {
    pub(crate) topology: Topology,
    pub(crate) idle: Option<IdleTimes>,
    pub(crate) locks: LockTable,
    pub(crate) memory: ArenaMapping,
    pub(crate) devices: Devices,
}

impl Os {
    /// A platform with a budget of `memory`, swapping to `devices`.
    ///
    /// # Errors
    /// No address space for the arena.
    pub fn new(memory: Bytes, devices: Vec<Box<dyn Device>>) -> io::Result<Os> {
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
    ) -> io::Result<Os> {
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
    ) -> io::Result<Os> {
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
