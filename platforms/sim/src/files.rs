//! Files that are opened and closed during a run: opening copies their contents to a device,
//! closing copies them back.

use crate::Sim;
use crate::device::SimFile;
use highwater_platform::{AttachError, FileInfo, Files, Mmu};
use highwater_units::SpaceId;

impl Files for Sim {
    type File = SimFile;

    fn describe(&self, file: &SimFile) -> FileInfo {
        FileInfo { pages: file.pages().len() as u32, access: file.access }
    }

    fn open(&self, device: u8, space: SpaceId, file: SimFile) -> Result<(), AttachError> {
        let pages = file.pages().len() as u64;
        self.devices()[usize::from(device)].with(|device| device.insert(file));
        self.attach(space, pages)
    }

    fn close(&self, device: u8, space: SpaceId) {
        self.devices()[usize::from(device)].with(|device| device.eject());
        self.detach(space);
    }
}
