//! Swap devices over the arena.

use crate::Os;
use highwater_devices::{Arena, Compression, Device, Started, Tiering};
use highwater_platform::{Block, DeviceInfo, Direction, Io, IoError};
use highwater_units::Bytes;

/// The devices of a platform, in order of preference.
pub struct Devices(Vec<Box<dyn Device>>);

impl Devices {
    /// Devices, at most 255.
    pub fn new(devices: Vec<Box<dyn Device>>) -> Devices {
        assert!(devices.len() <= usize::from(u8::MAX), "a slot names its device in a byte");
        Devices(devices)
    }

    /// What they are.
    pub fn infos(&self) -> Vec<DeviceInfo> {
        self.0.iter().map(|device| device.info()).collect()
    }

    /// The devices themselves.
    pub fn all(&self) -> &[Box<dyn Device>] {
        &self.0
    }

    /// Memory that devices hold themselves.
    pub fn resident(&self) -> Bytes {
        Bytes(self.0.iter().map(|device| device.resident().0).sum())
    }

    /// Reads a batch into frames of `arena`.
    pub fn read(&self, arena: Arena, device: u8, batch: &mut [Io]) {
        // SAFETY: the frames are in the arena, populated, unmapped, the caller's (contract of
        // Block).
        unsafe { self.0[usize::from(device)].read(arena, batch) };
    }

    /// Writes a batch from frames of `arena`.
    pub fn write(&self, arena: Arena, device: u8, batch: &mut [Io]) {
        // SAFETY: as in `read`; the frames do not change while they are written.
        unsafe { self.0[usize::from(device)].write(arena, batch) };
    }

    /// Begins to move a batch between frames of `arena` and a device.
    pub fn start(
        &self,
        arena: Arena,
        device: u8,
        direction: Direction,
        batch: &mut [Io],
    ) -> Transfer {
        // SAFETY: as in `read`, until the batch is finished.
        let started = unsafe { self.0[usize::from(device)].start(arena, direction, batch) };
        Transfer { device, started }
    }

    /// Whether finishing a batch would not wait.
    pub fn is_over(&self, transfer: &Transfer) -> bool {
        let device = &self.0[usize::from(transfer.device)];
        transfer.started.as_ref().is_none_or(|started| device.is_over(started))
    }

    /// Waits for a batch.
    pub fn finish(&self, arena: Arena, transfer: Transfer, batch: &mut [Io]) {
        if let Some(started) = transfer.started {
            // SAFETY: as in `start`; the batch is the same (contract of Block).
            unsafe { self.0[usize::from(transfer.device)].finish(arena, started, batch) };
        }
    }

    /// Makes what was written to a device durable.
    ///
    /// # Errors
    /// What was written before may be lost.
    pub fn sync(&self, device: u8) -> Result<(), IoError> {
        self.0[usize::from(device)].sync()
    }

    /// A slot of a device holds nothing any more.
    pub fn discard(&self, device: u8, slot: u32) {
        self.0[usize::from(device)].discard(slot, 1);
    }

    /// What the devices that compress hold, in all; `None` if there are none.
    pub fn compression(&self) -> Option<Compression> {
        let mut all = self.0.iter().filter_map(|device| device.compression()).peekable();
        all.peek().is_some().then(|| all.sum())
    }

    /// What the devices of two levels have at which, in all; `None` if there are none.
    pub fn tiering(&self) -> Option<Tiering> {
        let mut all = self.0.iter().filter_map(|device| device.tiering()).peekable();
        all.peek().is_some().then(|| all.sum())
    }

    /// Lets no device move contents of its own accord, from when this returns until
    /// [`Devices::resume`]. To be called before a fork.
    pub fn pause(&self) {
        self.0.iter().for_each(|device| device.pause());
    }

    /// Takes one [`Devices::pause`] back.
    pub fn resume(&self) {
        self.0.iter().for_each(|device| device.resume());
    }
}

/// A batch that a device is at.
pub struct Transfer {
    device: u8,
    /// `None`: it was made at once.
    started: Option<Started>,
}

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

    fn discard_slot(&self, device: u8, slot: u32) {
        self.devices.discard(device, slot);
    }
}
