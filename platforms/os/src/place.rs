//! Places for files that are opened later: a place has a device number, and holds the device of
//! one file after the other.
//!
//! Locking: each transfer holds the place's lock shared; opening and closing a file takes it
//! exclusively, while there are no transfers.

use highwater_devices::Device;
use highwater_platform::{DeviceInfo, DeviceRole, FileAccess, FileInfo, Latency, Medium};
use std::sync::{PoisonError, RwLock};

/// A place for a file's device.
#[derive(Default)]
pub struct Place(RwLock<Option<Box<dyn Device>>>);

impl Place {
    /// The properties of a place, which do not depend on its file.
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

    /// Puts a device into the place.
    ///
    /// # Panics
    /// If it has one.
    pub fn fill(&self, device: Box<dyn Device>) {
        let before = self.0.write().unwrap_or_else(PoisonError::into_inner).replace(device);
        assert!(before.is_none(), "a place has one file at a time");
    }

    /// Closes the device of the place.
    pub fn empty(&self) {
        let device = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        // Without the lock: the preload library's close() may look at this place.
        drop(device);
    }
}

/// The properties of a file's device.
pub fn describe(file: &dyn Device) -> FileInfo {
    let info = file.info();
    let access = if info.read_only { FileAccess::Read } else { FileAccess::ReadWrite };
    FileInfo { pages: info.pages, access }
}
