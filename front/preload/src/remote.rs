//! A device whose descriptors only the helper has: threads of the program transfer by the helper.

use crate::process::running;
use highwater_devices::{Arena, Compression, Device, Started, Tiering};
use highwater_os::helper;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::Bytes;
use std::os::fd::RawFd;

/// A device, used in the helper.
pub(crate) struct Remote(Box<dyn Device>);

impl Remote {
    /// The device as threads of the program can use it, too.
    pub(crate) fn of(device: Box<dyn Device>) -> Box<dyn Device> {
        if device.descriptors().is_empty() { device } else { Box::new(Remote(device)) }
    }
}

/// Runs `act` in the helper. Paged memory exists only in a process that is served.
fn there<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    match running() {
        Some(process) => process.in_helper(act),
        None => act(),
    }
}

impl Device for Remote {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        self.0.info_mut()
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract.
        there(|| unsafe { self.0.read(arena, batch) });
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract.
        there(|| unsafe { self.0.write(arena, batch) });
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        if helper::is_inside() {
            // SAFETY: by contract.
            return unsafe { self.0.start(arena, direction, batch) };
        }
        // SAFETY: by contract.
        unsafe {
            match direction {
                Direction::Read => self.read(arena, batch),
                Direction::Write => self.write(arena, batch),
            }
        }
        None
    }

    fn is_over(&self, started: &Started) -> bool {
        self.0.is_over(started)
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        // SAFETY: by contract; only threads of the helper have started batches.
        unsafe { self.0.finish(arena, started, batch) };
    }

    fn discard(&self, slot: u32, pages: u32) {
        // Slots are bookkeeping in memory; and this is called under a lock.
        self.0.discard(slot, pages);
    }

    fn footprint(&self, slot: u32) -> usize {
        self.0.footprint(slot)
    }

    fn sync(&self) -> Result<(), IoError> {
        there(|| self.0.sync())
    }

    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.0.thread()
    }

    fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }

    fn inherit(&self) -> Box<dyn Device> {
        Remote::of(self.0.inherit())
    }

    fn resident(&self) -> Bytes {
        self.0.resident()
    }

    fn compression(&self) -> Option<Compression> {
        self.0.compression()
    }

    fn tiering(&self) -> Option<Tiering> {
        self.0.tiering()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.0.descriptors()
    }
}
