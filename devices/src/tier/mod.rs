//! Two devices as one: pages go to the fast one, and those that stay cold move on to the slow one.
//!
//! ```text
//! Tier -- Arc<Shared> -- Table    which level, which block, by slot          table
//!      |              |- fast     Level: device, free blocks                 level, blocks
//!      |              |- slow     Level
//!      |              \- counts   what was moved and read where
//!      \- Worker      thread: writes cold pages back                         worker, writeback
//! ```
//! As the kernel's zram with a backing device, marked idle by age. A page never comes back from
//! the slow level: a swap device is read once, mostly, and then its slot is freed.
//!
//! Locks: one around the free blocks of each level, one between the worker and who wakes, pauses
//! or ends it. No transfer is made under a lock. What a slot's word says decides between a caller
//! and the worker ([`table`]), so neither waits for the other; but who overwrites a slot waits
//! while the worker copies that page out of the fast level.
//!
//! There are as many slots as both levels have. Where the fast level compresses, its part of them
//! counts on that; a page that neither takes is refused with `Full`.
//!
//! A fork copies the process's memory page by page while its other threads run on: the worker
//! would change table and fast level in between. So it is paused around the fork
//! ([`Device::pause`]). From then on the child has table and fast level to itself, and slots that
//! it may read keep their slow blocks.

mod blocks;
mod level;
mod shared;
mod table;
#[cfg(test)]
mod tier_fuzz;
mod transfer;
mod worker;
mod writeback;

use crate::arena::Arena;
use crate::compression::Compression;
use crate::device::Device;
use crate::error::Reason;
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Io, Latency};
use highwater_units::Bytes;
use shared::Shared;
use std::os::fd::RawFd;
use std::sync::Arc;
pub(crate) use worker::Body;
use worker::Worker;

/// Two levels.
pub(crate) struct Tier {
    info: DeviceInfo,
    shared: Arc<Shared>,
    /// None where the tier is a parent's, to be read only.
    worker: Option<Worker>,
}

impl Tier {
    /// A tier of two devices, both empty.
    pub(crate) fn new(
        name: String,
        fast: Box<dyn Device>,
        slow: Box<dyn Device>,
    ) -> Result<Tier, Reason> {
        let pages = fast.info().pages.saturating_add(slow.info().pages);
        // Some answers take a queue. And a clean copy of a page is worth keeping: it may be slow
        // to write.
        let latency = Latency::Asynchronous;
        let info = DeviceInfo { name, pages, latency, ..fast.info() };
        let shared = Shared::new(pages, fast, slow);
        let shared = Arc::new(shared.map_err(|errno| Reason::from_errno("map memory", errno))?);
        let worker = Worker::new(&shared)
            .map_err(|error| Reason::from_io("map memory to write pages back", &error))?;
        Ok(Tier { info, shared, worker: Some(worker) })
    }
}

impl Device for Tier {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.shared.read(&self.info, arena, batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.shared.write(&self.info, arena, batch) };
        if let Some(worker) = self.worker.as_ref().filter(|_| self.shared.is_high()) {
            worker.wake();
        }
    }

    fn discard(&self, slot: u32, pages: u32) {
        let end = slot.checked_add(pages).filter(|end| *end <= self.info.pages);
        let end = end.expect("slots within the device");
        if !self.info.read_only {
            (slot..end).for_each(|slot| self.shared.drop_slot(slot));
        }
    }

    fn inherit(&self) -> Box<dyn Device> {
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        Box::new(Tier { info, shared: Arc::new(self.shared.inherit()), worker: None })
    }

    fn thread(&self) -> Option<Body> {
        self.worker.as_ref().and_then(Worker::take_body)
    }

    fn pause(&self) {
        self.worker.iter().for_each(Worker::pause);
    }

    fn resume(&self) {
        self.worker.iter().for_each(Worker::resume);
    }

    fn resident(&self) -> Bytes {
        Bytes(self.shared.fast.device.resident().0 + self.shared.slow.device.resident().0)
    }

    fn compression(&self) -> Option<Compression> {
        self.shared.fast.device.compression()
    }

    fn tiering(&self) -> Option<Tiering> {
        self.worker.as_ref().map(|_| self.shared.tiering())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let levels = [&self.shared.fast, &self.shared.slow];
        levels.iter().flat_map(|level| level.device.descriptors()).collect()
    }
}
