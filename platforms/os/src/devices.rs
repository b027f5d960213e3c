//! The devices of a platform: fixed ones, and places for swap devices and files that are added or
//! opened later.

use crate::place::Place;
use crate::spawn::spawn;
use highwater_devices::{
    Arena, Compression, Device, LostReplica, Replication, Sample, Sampler, Started, Tiering,
};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError};
use highwater_units::Bytes;
use std::io;
use std::iter;
use std::sync::OnceLock;

/// The devices of a platform by number: swap devices and files in order of preference, then places.
pub struct Devices {
    /// A place for a swap device that is added later is not set.
    fixed: Vec<OnceLock<Box<dyn Device>>>,
    places: Vec<Place>,
    /// Samples the pages that are written to fixed devices.
    sampler: Sampler,
}

impl Devices {
    /// Devices and places, at most 255 together. `None`: a vacant place for a swap device.
    ///
    /// # Errors
    /// The system refuses the thread of a device that needs one.
    pub fn new(fixed: Vec<Option<Box<dyn Device>>>, places: usize) -> io::Result<Devices> {
        let most = usize::from(u8::MAX);
        assert!(fixed.len() + places <= most, "a slot names its device in a byte");
        let places = (0..places).map(|_| Place::default()).collect();
        let bodies = |device| iter::from_fn(move || Device::thread(device));
        for body in fixed.iter().flatten().map(Box::as_ref).flat_map(bodies) {
            // The thread ends when its device is dropped.
            drop(spawn("hw-writeback", body)?);
        }
        let place = |device: Option<_>| device.map_or_else(OnceLock::new, OnceLock::from);
        let sampler = Sampler::new();
        Ok(Devices { fixed: fixed.into_iter().map(place).collect(), places, sampler })
    }

    /// Fills a vacant place with a swap device, before the manager adds it. Devices with
    /// a thread of their own cannot be added.
    ///
    /// # Panics
    /// If the place is not vacant.
    pub fn add(&self, number: u8, device: Box<dyn Device>) {
        let is_first = self.fixed[usize::from(number)].set(device).is_ok();
        assert!(is_first, "a place gets one device");
    }

    /// The properties of all devices and places.
    pub fn infos(&self) -> Vec<DeviceInfo> {
        let info = |(number, place): (usize, &OnceLock<Box<dyn Device>>)| match place.get() {
            Some(device) => device.info(),
            None => vacant(number),
        };
        let fixed = self.fixed.iter().enumerate().map(info);
        fixed.chain((0..self.places.len()).map(Place::info)).collect()
    }

    /// The fixed devices by number, up to the last one; `None`: a vacant place.
    pub fn fixed(&self) -> Vec<Option<&dyn Device>> {
        let last = self.fixed.iter().rposition(|place| place.get().is_some());
        let count = last.map_or(0, |last| last + 1);
        self.fixed[..count].iter().map(|place| place.get().map(Box::as_ref)).collect()
    }

    fn present(&self) -> impl Iterator<Item = &Box<dyn Device>> {
        self.fixed.iter().filter_map(OnceLock::get)
    }

    /// The place with a device number.
    ///
    /// # Panics
    /// If the number does not belong to a place.
    pub fn place(&self, device: u8) -> &Place {
        &self.places[usize::from(device) - self.fixed.len()]
    }

    /// All places.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Calls `act` with a device; `None` for a place without a file.
    fn with<R>(&self, device: u8, act: impl FnOnce(&dyn Device) -> R) -> Option<R> {
        match self.fixed.get(usize::from(device)) {
            Some(place) => place.get().map(|device| act(device.as_ref())),
            None => self.place(device).with(act),
        }
    }

    /// Memory that the contents of devices take.
    pub fn resident(&self) -> Bytes {
        Bytes(self.present().map(|device| device.resident().0).sum())
    }

    /// Memory that the contents of tiers take, without the contents inherited from a parent.
    pub fn resident_in_tiers(&self) -> Bytes {
        let tiers = self.present().filter(|device| device.tiering().is_some());
        Bytes(tiers.map(|device| device.resident().0).sum())
    }

    /// Memory that devices take beside their contents.
    pub fn tables(&self) -> Bytes {
        Bytes(self.present().map(|device| device.tables().0).sum())
    }

    /// The name of the first device that returned a page other than the one written.
    pub fn altered(&self) -> Option<String> {
        self.present().find(|device| device.altered()).map(|device| device.info().name)
    }

    /// Transfers that injected faults have struck.
    pub fn injected(&self) -> u64 {
        self.present().map(|device| device.injected()).sum()
    }

    /// Makes contents that outlive the process unreadable, and all devices useless.
    pub fn forget(&self) {
        self.present().for_each(|device| device.forget());
    }

    /// Reads a batch into frames of `arena`.
    pub fn read(&self, arena: Arena, device: u8, batch: &mut [Io]) {
        // SAFETY: the frames are populated, unmapped, and used only by the caller (contract of
        // Block).
        let done = self.with(device, |device| unsafe { device.read(arena, batch) });
        done.unwrap_or_else(|| fail(batch));
    }

    /// Writes a batch from frames of `arena`.
    pub fn write(&self, arena: Arena, device: u8, batch: &mut [Io]) {
        self.look(arena, device, batch);
        // SAFETY: as in `read`; the frames do not change while they are written.
        let done = self.with(device, |device| unsafe { device.write(arena, batch) });
        done.unwrap_or_else(|| fail(batch));
    }

    /// Starts a batch between frames of `arena` and a device.
    pub fn start(
        &self,
        arena: Arena,
        device: u8,
        direction: Direction,
        batch: &mut [Io],
    ) -> Transfer {
        match direction {
            Direction::Read => {}
            Direction::Write => self.look(arena, device, batch),
        }
        // SAFETY: as in `read`, until the batch is finished.
        let begun = self.with(device, |device| unsafe { device.start(arena, direction, batch) });
        let started = begun.unwrap_or_else(|| {
            fail(batch);
            None
        });
        Transfer { device, started }
    }

    /// Samples pages that are about to be written to a fixed device.
    fn look(&self, arena: Arena, device: u8, batch: &[Io]) {
        if usize::from(device) < self.fixed.len() {
            // SAFETY: as in `write`.
            unsafe { self.sampler.look(arena, batch) };
        }
    }

    /// Whether [`Devices::finish`] would return without waiting.
    pub fn is_over(&self, transfer: &Transfer) -> bool {
        let Some(started) = &transfer.started else { return true };
        self.with(transfer.device, |device| device.is_over(started)).unwrap_or(true)
    }

    /// Waits for a batch.
    pub fn finish(&self, arena: Arena, transfer: Transfer, batch: &mut [Io]) {
        let Some(started) = transfer.started else { return };
        // SAFETY: as in `start`; the batch is the same (contract of Block).
        let done =
            self.with(transfer.device, |device| unsafe { device.finish(arena, started, batch) });
        done.expect("a file is not closed during a transfer");
    }

    /// Makes all finished writes to a device durable.
    ///
    /// # Errors
    /// Earlier writes may be lost.
    pub fn sync(&self, device: u8) -> Result<(), IoError> {
        self.with(device, |device| device.sync()).unwrap_or(Ok(()))
    }

    /// Whether the room that a slot takes is wanted for other pages.
    pub fn is_scarce(&self, device: u8, slot: u32) -> bool {
        let place = self.fixed.get(usize::from(device));
        place.and_then(OnceLock::get).is_some_and(|device| device.is_scarce(slot))
    }

    /// Frees the contents of a slot.
    pub fn discard(&self, device: u8, slot: u32) {
        self.with(device, |device| device.discard(slot, 1));
    }

    /// Frees the contents of all slots of a device.
    pub fn vacate(&self, device: u8) {
        self.with(device, |device| device.vacate());
    }

    /// The sum over all devices that compress; `None` if there are none.
    pub fn compression(&self) -> Option<Compression> {
        let mut all = self.present().filter_map(|device| device.compression()).peekable();
        all.peek().is_some().then(|| all.sum())
    }

    /// The sample of the pages that were written to swap.
    pub fn sample(&self) -> Sample {
        self.sampler.sample()
    }

    /// The sum over all devices of two levels; `None` if there are none.
    pub fn tiering(&self) -> Option<Tiering> {
        let mut all = self.present().filter_map(|device| device.tiering()).peekable();
        all.peek().is_some().then(|| all.sum())
    }

    /// Limits the memory of devices that can move contents out of it to `most`, in equal parts.
    pub fn limit_resident(&self, most: Bytes) {
        let tiers = || self.present().filter(|device| device.tiering().is_some());
        let part = most.0 / tiers().count().max(1) as u64;
        tiers().for_each(|device| device.limit_resident(Bytes(part)));
    }

    /// The sum over all devices.
    pub fn replication(&self) -> Replication {
        let of = self.present().filter_map(|it| Some((it.info().name, it.replication()?)));
        Replication::sum(of)
    }

    /// The replicas that are not used any more.
    pub fn lost_replicas(&self) -> Vec<LostReplica> {
        self.present().filter_map(|device| device.lost_replica()).collect()
    }

    /// Stops the background threads of all devices until [`Devices::resume`]. Called before a fork.
    pub fn pause(&self) {
        self.present().for_each(|device| device.pause());
    }

    /// Undoes one [`Devices::pause`].
    pub fn resume(&self) {
        self.present().for_each(|device| device.resume());
    }
}

/// The properties of a vacant place for a swap device.
fn vacant(number: usize) -> DeviceInfo {
    DeviceInfo { pages: 0, role: DeviceRole::Swap, ..Place::info(number) }
}

/// Fails transfers of a place without a file, a defect of the caller.
fn fail(batch: &mut [Io]) {
    batch.iter_mut().for_each(|io| io.result = Err(IoError::Failed(libc::ENXIO)));
}

/// A started batch.
pub struct Transfer {
    device: u8,
    /// `None`: all its transfers are done.
    started: Option<Started>,
}
