//! A range of a device as a device: for a mapping that begins in the middle of its file.
//!
//! ```text
//! slot n of the part = slot first + n of the whole
//! ```
//! The whole device is shared, so that its owner can keep it open longer than the part.

use crate::arena::Arena;
use crate::compression::Compression;
use crate::device::Device;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::Lenders;
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::Bytes;
use std::sync::Arc;

pub(crate) struct Part {
    info: DeviceInfo,
    whole: Arc<dyn Device>,
    first: u32,
}

impl Part {
    pub(crate) fn new(whole: Arc<dyn Device>, first: u32, pages: u32) -> Part {
        let info = whole.info();
        let end = first.checked_add(pages);
        assert!(end.is_some_and(|end| end <= info.pages), "a part lies within the whole");
        Part { info: DeviceInfo { pages, ..info }, whole, first }
    }

    /// Calls `act` with the batch in slots of the whole device.
    fn shifted<R>(&self, batch: &mut [Io], act: impl FnOnce(&mut [Io]) -> R) -> R {
        let end = |io: &Io| u64::from(io.slot) + io.frames.len() as u64;
        debug_assert!(batch.iter().all(|io| end(io) <= self.info.pages.into()), "in the part");
        batch.iter_mut().for_each(|io| io.slot += self.first);
        let result = act(batch);
        batch.iter_mut().for_each(|io| io.slot -= self.first);
        result
    }
}

impl Device for Part {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        self.shifted(batch, |batch| unsafe { self.whole.read(arena, batch) });
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        self.shifted(batch, |batch| unsafe { self.whole.write(arena, batch) });
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        // SAFETY: by contract of this function.
        self.shifted(batch, |batch| unsafe { self.whole.start(arena, direction, batch) })
    }

    fn is_over(&self, started: &Started) -> bool {
        self.whole.is_over(started)
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        self.shifted(batch, |batch| unsafe { self.whole.finish(arena, started, batch) });
    }

    fn discard(&self, slot: u32, pages: u32) {
        self.whole.discard(self.first + slot, pages);
    }

    fn is_scarce(&self, slot: u32) -> bool {
        self.whole.is_scarce(self.first + slot)
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.whole.share_room(next)
    }

    fn footprint(&self, slot: u32) -> usize {
        self.whole.footprint(self.first + slot)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.whole.sync()
    }

    fn pause(&self) {
        self.whole.pause();
    }

    fn resume(&self) {
        self.whole.resume();
    }

    fn inherit(&self) -> Box<dyn Device> {
        let whole = Arc::from(self.whole.inherit());
        Box::new(Part::new(whole, self.first, self.info.pages))
    }

    fn resident(&self) -> Bytes {
        self.whole.resident()
    }

    fn tables(&self) -> Bytes {
        self.whole.tables()
    }

    fn compression(&self) -> Option<Compression> {
        self.whole.compression()
    }

    fn tiering(&self) -> Option<Tiering> {
        self.whole.tiering()
    }
}
