//! A device whose transfers fail, to test what happens to the pages.
//!
//! ```text
//! FaultPlan   which faults, as text                                   plan
//! Faults      when each kind strikes, and how often it has            faults
//! Flaky       another device, whose transfers are struck by Faults
//! ```
//! A fault strikes before the device sees the transfer, so that slots keep their contents. In
//! batches that are started, faults strike first only if writes can be lost, or if the number of
//! transfers so far is even. Otherwise they strike after the end, when written slots have the new
//! contents, so that the errors of queued transfers are tested, too.
//!
//! Locks: none.

mod faults;
mod plan;

pub use faults::Faults;
pub use plan::{FaultKind, FaultPlan, When};

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::Lenders;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, FrameList, PAGE_SIZE, RUN_PAGES_MAX};
use std::sync::Arc;
use std::time::Duration;

/// How much longer a delayed transfer takes.
const DELAY: Duration = Duration::from_millis(2);
/// The byte that fills a frame whose read failed: unlike any page.
const GARBAGE: u8 = 0xdb;

/// A device with faults.
pub(crate) struct Flaky {
    info: DeviceInfo,
    device: Arc<dyn Device>,
    faults: Arc<Faults>,
}

impl Flaky {
    pub(crate) fn new(device: Arc<dyn Device>, faults: Arc<Faults>) -> Flaky {
        Flaky { info: device.info(), device, faults }
    }

    /// Makes the transfers of a batch one by one. A fault skips some or all pages of its transfer.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn move_each(&self, arena: Arena, direction: Direction, batch: &mut [Io]) {
        for io in batch {
            let fault = self.faults.draw(direction);
            let mut part = match fault {
                None | Some(FaultKind::Delay) => Some(*io),
                Some(FaultKind::Short) => first_half(io),
                Some(_) => None,
            };
            if let Some(part) = &mut part {
                let part = std::slice::from_mut(part);
                // SAFETY: by contract of this function.
                unsafe { self.device.read_or_write(arena, direction, part) };
            }
            io.result = part.map_or(Ok(()), |part| part.result);
            // SAFETY: as above.
            unsafe { strike(fault, arena, direction, io) };
        }
    }

    /// Strikes transfers that are over.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn strike_each(&self, arena: Arena, direction: Direction, batch: &mut [Io]) {
        for io in batch {
            // SAFETY: by contract of this function.
            unsafe { strike(self.faults.draw(direction), arena, direction, io) };
        }
    }
}

/// The first half of a transfer; `None` if it has one page.
fn first_half(io: &Io) -> Option<Io> {
    let half = (io.frames.len() / 2).min(RUN_PAGES_MAX);
    let frames: FrameList = io.frames.iter().take(half).collect();
    (half > 0).then(|| Io::new(io.slot, frames))
}

/// Gives a transfer that is over the outcome of a fault.
///
/// # Safety
/// As for [`Device::read`].
unsafe fn strike(fault: Option<FaultKind>, arena: Arena, direction: Direction, io: &mut Io) {
    match fault {
        None | Some(FaultKind::Lost) => {}
        Some(FaultKind::Delay) => std::thread::sleep(DELAY),
        Some(FaultKind::Full) => io.result = Err(IoError::Full),
        Some(FaultKind::Read | FaultKind::Write | FaultKind::Short) => {
            io.result = Err(IoError::Failed(libc::EIO));
            for frame in io.frames.iter().filter(|_| direction == Direction::Read) {
                // SAFETY: by contract: a frame of this transfer, the caller's alone.
                unsafe { arena.address(frame).write_bytes(GARBAGE, PAGE_SIZE) };
            }
        }
    }
}

impl Device for Flaky {
    fn inner(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.move_each(arena, Direction::Read, batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.move_each(arena, Direction::Write, batch) };
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        if self.faults.strike_first(direction) {
            // SAFETY: by contract of this function.
            unsafe { self.move_each(arena, direction, batch) };
            return None;
        }
        // SAFETY: as above.
        let started = unsafe { self.device.start(arena, direction, batch) };
        if started.is_none() {
            // SAFETY: as above.
            unsafe { self.strike_each(arena, direction, batch) };
        }
        started
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let direction = started.direction;
        // SAFETY: by contract of this function.
        unsafe { self.device.finish(arena, started, batch) };
        // SAFETY: as above.
        unsafe { self.strike_each(arena, direction, batch) };
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.device.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        Box::new(Flaky::new(self.device.inherit().into(), Arc::new(self.faults.anew())))
    }

    fn resident(&self) -> Bytes {
        self.device.resident()
    }

    fn injected(&self) -> u64 {
        self.faults.total()
    }
}
