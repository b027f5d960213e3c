//! Files that the manager opens and closes while it runs: each fills one of the platform's places.

use crate::os::Os;
use crate::place::describe;
use highwater_devices::Device;
use highwater_platform::{AttachError, FileInfo, Files};
use highwater_units::SpaceId;

impl Files for Os {
    type File = Box<dyn Device>;

    fn describe(&self, file: &Box<dyn Device>) -> FileInfo {
        describe(file.as_ref())
    }

    fn open(&self, device: u8, _: SpaceId, file: Box<dyn Device>) -> Result<(), AttachError> {
        self.devices.place(device).fill(file);
        Ok(())
    }

    fn close(&self, device: u8, _: SpaceId) {
        self.devices.place(device).empty();
    }
}
