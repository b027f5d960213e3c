//! Swap devices over the arena, as platform `os` has them.

use crate::Uffd;
use highwater_platform::{Block, DeviceInfo, Io};

impl Block for Uffd {
    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.infos()
    }

    fn read(&self, device: u8, batch: &mut [Io]) {
        self.devices.read(self.memory.arena(), device, batch);
    }

    fn write(&self, device: u8, batch: &mut [Io]) {
        self.devices.write(self.memory.arena(), device, batch);
    }

    fn discard_slot(&self, device: u8, slot: u32) {
        self.devices.discard(device, slot);
    }
}
