//! Block transfers of the platform: between its devices and its arena.

use crate::devices::Transfer;
use crate::os::Os;
use highwater_platform::{Block, DeviceInfo, Direction, Io, IoError};

impl Block for Os {
    type Transfer = Transfer;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.infos()
    }

    fn read(&self, device: u8, batch: &mut [Io]) {
        self.devices.read(self.memory.arena(), device, batch);
    }

    fn write(&self, device: u8, batch: &mut [Io]) {
        self.devices.write(self.memory.arena(), device, batch);
    }

    fn start(&self, device: u8, direction: Direction, batch: &mut [Io]) -> Transfer {
        self.devices.start(self.memory.arena(), device, direction, batch)
    }

    fn is_over(&self, transfer: &Transfer) -> bool {
        self.devices.is_over(transfer)
    }

    fn finish(&self, transfer: Transfer, batch: &mut [Io]) {
        self.devices.finish(self.memory.arena(), transfer, batch);
    }

    fn sync(&self, device: u8) -> Result<(), IoError> {
        self.devices.sync(device)
    }

    fn vacate(&self, device: u8) {
        self.devices.vacate(device);
    }

    fn discard_slot(&self, device: u8, slot: u32) {
        self.devices.discard(device, slot);
    }
}
