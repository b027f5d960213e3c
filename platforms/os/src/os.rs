//! The platform: what it consists of, and how it is made.

use crate::arena::ArenaMapping;
use crate::devices::Devices;
use crate::huge::HugePages;
use crate::lock_table::LockTable;
use crate::topology::{IdleTimes, Topology};
use highwater_devices::Device;
use highwater_units::{Bytes, Pfn};
use std::fs::File;
use std::io;

/// The platform on which callers access pages through guards.
pub struct Os {
    pub(crate) topology: Topology,
    pub(crate) idle: Option<(IdleTimes, File)>,
    pub(crate) locks: LockTable,
    pub(crate) memory: ArenaMapping,
    pub(crate) devices: Devices,
}

impl Os {
    /// A platform with a budget of `memory`, swapping to `devices`.
    ///
    /// # Errors
    /// The system refuses address space for the arena.
    pub fn new(memory: Bytes, devices: Vec<Box<dyn Device>>) -> io::Result<Os> {
        Os::with_places(memory, devices.into_iter().map(Some).collect(), 0)
    }

    /// [`Os::new`] with places for files that are opened later (`Manager::open_file`), and for swap
    /// devices that are added later (`Manager::swapon`): one `None` for each such swap device.
    /// Devices and places together are at most 255.
    ///
    /// # Errors
    /// As for [`Os::new`].
    pub fn with_places(
        memory: Bytes,
        devices: Vec<Option<Box<dyn Device>>>,
        places: usize,
    ) -> io::Result<Os> {
        Os::backed_by(memory, devices, places, HugePages::Auto)
    }

    /// [`Os::with_places`], which also sets whether the arena may use huge pages.
    ///
    /// # Errors
    /// As for [`Os::new`].
    pub fn backed_by(
        memory: Bytes,
        devices: Vec<Option<Box<dyn Device>>>,
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

    /// How much of the arena is in huge pages now; 0 if that cannot be read.
    pub fn huge_bytes(&self) -> Bytes {
        self.memory.huge_bytes().unwrap_or_default()
    }

    /// The address of a frame. Its memory may be accessed while the page is pinned.
    pub fn frame(&self, pfn: Pfn) -> *mut u8 {
        self.memory.arena().address(pfn)
    }
}
