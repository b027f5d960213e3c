//! Files that come and go: a place for each, which one device after the other is behind.
//!
//! Locking: a place's lock is taken for reading by every transfer, and for writing while there is
//! none.

use highwater_devices::Device;
use highwater_platform::{DeviceInfo, DeviceRole, FileAccess, FileInfo, Latency, Medium};
use std::sync::{PoisonError, RwLock};

/// Where a file's device may be.
#[derive(Default)]
pub struct Place(RwLock<Option<Box<dyn Device>>>);

impl Place {
    /// What the manager is told of the place, whatever file is there.
    pub(crate) fn info(number: usize) -> DeviceInfo {
        DeviceInfo {
            name: format!("place {number}"),
            pages: u32::MAX,
            latency: Latency::Asynchronous,
            medium: Medium::SolidState,
            node: None,
            priority: None,
            role: DeviceRole::Place,
            read_only: false,
        }
    }

    /// Calls `act` with the device, if there is one.
    pub fn with<R>(&self, act: impl FnOnce(&dyn Device) -> R) -> Option<R> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.as_deref().map(act)
    }

    /// Puts a device there.
    ///
    /// # Panics
    /// If there is one.
    pub fn fill(&self, device: Box<dyn Device>) {
        let before = self.0.write().unwrap_or_else(PoisonError::into_inner).replace(device);
        assert!(before.is_none(), "a place has one file at a time");
    }

    /// Takes it away.
    pub fn empty(&self) {
        let device = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        // Closing its descriptors may ask whether they are a device's.
        drop(device);
    }
}

/// What a device of a file is.
pub fn describe(file: &dyn Device) -> FileInfo {
    let info = file.info();
    let access = if info.read_only { FileAccess::Read } else { FileAccess::ReadWrite };
    FileInfo { pages: info.pages, access }
}
