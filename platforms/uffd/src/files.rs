//! Files that the manager opens and closes while it runs, at addresses of their own or inside
//! another space.

use crate::uffd::Uffd;
use highwater_devices::Device;
use highwater_platform::{AttachError, FileInfo, Files};
use highwater_units::SpaceId;

/// A file, and the address of its pages.
pub struct FileAt {
    /// The file.
    pub device: Box<dyn Device>,
    /// `None`: the file gets memory of its own at any address, whose faults are messages. Otherwise
    /// an address inside another space, whose own pages there are absent and stay absent.
    pub address: Option<u64>,
}

impl Files for Uffd {
    type File = FileAt;

    fn describe(&self, file: &FileAt) -> FileInfo {
        highwater_os::describe(file.device.as_ref())
    }

    fn open(&self, device: u8, space: SpaceId, file: FileAt) -> Result<(), AttachError> {
        let pages = u64::from(self.describe(&file).pages);
        let opened = self.areas.open(space, pages, file.address);
        opened.map_err(|error| AttachError(error.raw_os_error().unwrap_or(libc::EIO)))?;
        self.devices.place(device).fill(file.device);
        Ok(())
    }

    fn close(&self, device: u8, space: SpaceId) {
        self.areas.close(space);
        self.devices.place(device).empty();
    }
}
