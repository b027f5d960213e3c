//! Two devices as one: pages go to the fast one, and cold ones are written back to the slow one.
//!
//! ```text
//! Tier -- Arc<Shared> -- Table    level and block of each slot              table
//!      |              |- fast     Level: device, free blocks                 level, blocks
//!      |              |- slow     Level
//!      |              |- flights  batches under way on the slow level     parts, transfer
//!      |              \- counts   statistics
//!      \- Worker      thread: writes cold pages back                         worker, writeback
//! ```
//! It works like the kernel's zram with a backing device and idle marking by age. A page never
//! moves back from the slow level: a swapped page is mostly read once, and then its slot is freed.
//!
//! Locks: one around the free blocks of each level, and one for waking, pausing and ending the
//! worker. No transfer is made under a lock. The word of a slot ([`table`]) resolves conflicts
//! between a caller and the worker, so neither waits for the other; except that a caller that
//! overwrites a slot waits while the worker copies the page out of the fast level.
//!
//! The tier has the slots of both levels' specifications. A fast level that compresses takes pages
//! that compress to half or less, and has enough blocks that its memory is the limit. Other pages
//! go to the slow level, and to the fast one once the slow level is full; a page for which neither
//! has room is refused with `Full`.
//!
//! A fork copies the process's memory page by page while other threads run: the worker could change
//! table and fast level meanwhile. So it is paused around the fork ([`Device::pause`]). After the
//! fork the child has its own copy of table and fast level, and the parent keeps the slow blocks of
//! slots that the child may read.

mod blocks;
mod level;
mod parts;
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
use crate::pool::Started;
use crate::quota::Lenders;
use crate::replication::{LostReplica, Replication};
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Direction, Io, Latency};
use highwater_units::Bytes;
use shared::Shared;
use std::os::fd::RawFd;
use std::sync::Arc;
use table::Place;
use transfer::Request;
pub(crate) use worker::Body;
use worker::Worker;

/// A device of two levels.
pub(crate) struct Tier {
    info: DeviceInfo,
    shared: Arc<Shared>,
    /// `None` for an inherited tier, which is read-only.
    worker: Option<Worker>,
}

impl Tier {
    /// A tier of `pages` slots with two levels, both empty.
    pub(crate) fn new(
        name: String,
        pages: u32,
        fast: Box<dyn Device>,
        slow: Box<dyn Device>,
    ) -> Result<Tier, Reason> {
        // The slow level has a queue. Also, a clean page should keep its slot there, because
        // writing it again may be slow.
        let latency = Latency::Asynchronous;
        let info = DeviceInfo { name, pages, latency, ..fast.info() };
        let shared = Shared::new(pages, fast, slow);
        let shared = Arc::new(shared.map_err(|errno| Reason::from_errno("map memory", errno))?);
        let worker = Worker::new(&shared)
            .map_err(|error| Reason::from_io("map memory to write pages back", &error))?;
        Ok(Tier { info, shared, worker: Some(worker) })
    }

    fn request(&self, direction: Direction, arena: Arena) -> Request<'_> {
        Request { info: &self.info, direction, arena }
    }

    fn wake_if_high(&self) {
        if let Some(worker) = self.worker.as_ref().filter(|_| self.shared.is_high()) {
            worker.wake();
        }
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
        unsafe { self.shared.read_or_write(self.request(Direction::Read, arena), batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.shared.read_or_write(self.request(Direction::Write, arena), batch) };
        self.wake_if_high();
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        let Some(mut parts) = self.shared.flights.take_for_later() else {
            // SAFETY: by contract of this function.
            unsafe { self.read_or_write(arena, direction, batch) };
            return None;
        };
        // SAFETY: as above.
        unsafe { self.shared.start(self.request(direction, arena), batch, &mut parts) };
        if direction == Direction::Write {
            self.wake_if_high();
        }
        parts.started.is_some().then(|| Started {
            index: parts.leave(),
            direction,
            left: 0,
            bounce: None,
        })
    }

    fn is_over(&self, started: &Started) -> bool {
        let parts = self.shared.flights.back(started.index);
        let under_way = parts.started.as_ref();
        let is_over = under_way.is_none_or(|it| self.shared.slow.device.is_over(it));
        // The batch is still in flight.
        let _ = parts.leave();
        is_over
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let mut parts = self.shared.flights.back(started.index);
        // SAFETY: by contract of this function.
        unsafe { self.shared.finish(self.request(started.direction, arena), batch, &mut parts) };
    }

    fn discard(&self, slot: u32, pages: u32) {
        let end = slot.checked_add(pages).filter(|end| *end <= self.info.pages);
        let end = end.expect("slots within the device");
        if !self.info.read_only {
            (slot..end).for_each(|slot| self.shared.drop_slot(slot));
        }
    }

    /// Slots in the fast level are always scarce: otherwise a page that was read from there would
    /// be in memory twice. A forked child frees none of its parent's slots.
    fn is_scarce(&self, slot: u32) -> bool {
        match self.shared.table.place(slot) {
            Place::Fast(_) => !self.info.read_only,
            Place::Slow(block) => self.shared.slow.device.is_scarce(block),
            Place::Empty => false,
        }
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.shared.fast.device.share_room(next)?;
        self.shared.slow.device.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        Box::new(Tier { info, shared: Arc::new(self.shared.inherit()), worker: None })
    }

    fn thread(&self) -> Option<Body> {
        let own = self.worker.as_ref().and_then(Worker::take_body);
        own.or_else(|| self.shared.slow.device.thread())
    }

    fn pause(&self) {
        self.worker.iter().for_each(Worker::pause);
        self.shared.levels().for_each(|level| level.device.pause());
    }

    fn resume(&self) {
        self.shared.levels().for_each(|level| level.device.resume());
        self.worker.iter().for_each(Worker::resume);
    }

    fn is_remote(&self) -> bool {
        self.shared.slow.device.is_remote()
    }

    fn resident(&self) -> Bytes {
        Bytes(self.shared.levels().map(|level| level.device.resident().0).sum())
    }

    fn limit_resident(&self, most: Bytes) {
        if self.worker.is_some() {
            self.shared.fast.limit(most);
            self.wake_if_high();
        }
    }

    fn tables(&self) -> Bytes {
        let of_levels: u64 = self.shared.levels().map(|level| level.device.tables().0).sum();
        Bytes(of_levels + self.shared.flights.bytes())
    }

    fn altered(&self) -> bool {
        self.shared.levels().any(|level| level.device.altered())
    }

    fn injected(&self) -> u64 {
        self.shared.levels().map(|level| level.device.injected()).sum()
    }

    fn forget(&self) {
        self.shared.levels().for_each(|level| level.device.forget());
    }

    fn compression(&self) -> Option<Compression> {
        self.shared.fast.device.compression()
    }

    fn replication(&self) -> Option<Replication> {
        self.shared.slow.device.replication()
    }

    fn lost_replica(&self) -> Option<LostReplica> {
        self.shared.slow.device.lost_replica()
    }

    fn tiering(&self) -> Option<Tiering> {
        self.worker.as_ref().map(|_| self.shared.tiering())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.shared.levels().flat_map(|level| level.device.descriptors()).collect()
    }

    fn set_copies(&self, copies: &[RawFd]) {
        let (fast, slow) = (&self.shared.fast.device, &self.shared.slow.device);
        let (of_fast, of_slow) = copies.split_at(fast.descriptors().len());
        fast.set_copies(of_fast);
        slow.set_copies(of_slow);
    }
}
