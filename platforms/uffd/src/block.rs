//! Swap devices over the arena, as on platform `os`.

use crate::uffd::Uffd;
use highwater_os::Transfer;
use highwater_platform::{Block, DeviceInfo, Direction, Io, IoError};

impl Block for Uffd {
    type Transfer = Transfer;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.infos()
    }

    fn read(&self, device: u8, batch: &mut [Io]) {
        self.devices.read(self.stage.arena(), device, batch);
    }

    fn write(&self, device: u8, batch: &mut [Io]) {
        self.devices.write(self.stage.arena(), device, batch);
    }

    fn start(&self, device: u8, direction: Direction, batch: &mut [Io]) -> Transfer {
        self.devices.start(self.stage.arena(), device, direction, batch)
    }

    fn is_over(&self, transfer: &Transfer) -> bool {
        self.devices.is_over(transfer)
    }

    fn finish(&self, transfer: Transfer, batch: &mut [Io]) {
        self.devices.finish(self.stage.arena(), transfer, batch);
    }

    fn sync(&self, device: u8) -> Result<(), IoError> {
        self.devices.sync(device)
    }

    fn is_scarce(&self, device: u8, slot: u32) -> bool {
        self.devices.is_scarce(device, slot)
    }

    fn vacate(&self, device: u8) {
        self.devices.vacate(device);
    }

    fn discard_slot(&self, device: u8, slot: u32) {
        self.devices.discard(device, slot);
    }
}
