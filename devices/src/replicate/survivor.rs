//! The replica that a process uses alone because the other one's server had failed before the
//! process started. It counts the other one as lost. No line on standard error reports that: each
//! process of the run that starts from now on would print it. The run's summary does.
//!
//! Locks: none.

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::Lenders;
use crate::replication::Replication;
use crate::standby::Standby;
use highwater_platform::{DeviceInfo, Direction, Io};
use highwater_units::Bytes;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(crate) struct Survivor {
    info: DeviceInfo,
    device: Box<dyn Device>,
    /// Pages written.
    written: AtomicU64,
}

impl Survivor {
    /// `name` is that of both replicas together. The server of `device` is waited for as long as
    /// `patience`.
    pub(crate) fn new(name: String, device: Box<dyn Device>, patience: Duration) -> Survivor {
        device.stand_by(&Standby::last(patience));
        let info = DeviceInfo { name, ..device.info() };
        Survivor { info, device, written: AtomicU64::new(0) }
    }

    fn count(&self, batch: &[Io]) {
        let written = batch.iter().filter(|io| io.result.is_ok()).map(|io| io.frames.len() as u64);
        self.written.fetch_add(written.sum(), Relaxed);
    }
}

impl Device for Survivor {
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
        unsafe { self.device.read(arena, batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.device.write(arena, batch) };
        self.count(batch);
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        // SAFETY: by contract of this function.
        let started = unsafe { self.device.start(arena, direction, batch) };
        if started.is_none() && direction == Direction::Write {
            self.count(batch);
        }
        started
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let direction = started.direction;
        // SAFETY: by contract of this function.
        unsafe { self.device.finish(arena, started, batch) };
        if direction == Direction::Write {
            self.count(batch);
        }
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.device.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.device.inherit()
    }

    fn resident(&self) -> Bytes {
        self.device.resident()
    }

    fn replication(&self) -> Option<Replication> {
        let single_writes = self.written.load(Relaxed);
        Some(Replication { lost: 1, single_writes, ..Replication::default() })
    }
}
