//! Two devices with the same pages: writes go to both, reads to one, and either may fail.
//!
//! ```text
//! Replicated |- Replica x 2   device, sealed by itself
//!            |                stale     slots whose last write there failed
//!            |                Standby   whether it is in use
//!            |                pace      nanoseconds of a read, on average          choice
//!            |- SlotQuota     room that several processes share, once for both
//!            \- Flights       transfers of both while a batch is under way         flight
//! write    start on both, then wait for both   succeeds if one has it; stale on the other
//! read     the faster one that has all pages   read
//! ```
//! A replica whose server does not answer for [`PATIENCE`] is lost and does not come back: writes
//! that it carries out later are never read. The last replica is waited for as long as the user
//! says. A page that is stale on both replicas, or on the one that is left, is an error.
//!
//! Each replica has keys and tags of its own, so that a page that one replica returns changed is
//! read from the other.
//!
//! Locks: none. A slot's bits are changed by the thread that writes the slot.

mod choice;
mod flight;
mod read;
#[cfg(test)]
mod replicate_fuzz;
mod survivor;

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::flights::Flights;
use crate::pool::Started;
use crate::quota::{Lenders, SlotQuota};
use crate::remote::LOST;
use crate::replication::{LostReplica, Replication};
use crate::slot_set::SlotSet;
use crate::standby::{Standby, Standing};
use crate::transfer::admit;
use choice::{Pace, Rest, written};
use flight::Flight;
use highwater_platform::{DeviceInfo, Direction, Io, IoError, Latency};
use highwater_units::Bytes;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
pub(crate) use survivor::Survivor;

/// How long a server is waited for while the other replica is in use.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// No replica in use has the page.
const NOWHERE: IoError = IoError::Failed(libc::EIO);

/// A device and another one with the same pages.
pub(crate) struct Replicated {
    info: DeviceInfo,
    replicas: [Replica; 2],
    quota: SlotQuota,
    flights: Flights<Flight>,
    altered: AtomicBool,
    /// Reads so far.
    reads: AtomicU64,
    single_writes: AtomicU64,
    second_reads: AtomicU64,
    hedged_reads: AtomicU64,
}

struct Replica {
    device: Box<dyn Device>,
    standby: Standby,
    stale: Arc<SlotSet>,
    pace: Pace,
    rest: Rest,
}

impl Replica {
    fn is_lost(&self) -> bool {
        self.standby.standing() == Standing::Lost
    }

    /// Whether the replica is in use and has the pages of a transfer.
    fn has(&self, io: &Io) -> bool {
        !self.is_lost() && self.is_current(io.slot, io.frames.len() as u32)
    }

    /// Whether the last write to each of these slots succeeded here.
    fn is_current(&self, slot: u32, pages: u32) -> bool {
        self.stale.missing(slot, pages) == pages
    }

    /// None of these slots is stale any more. Most slots never were, and their part of the set
    /// takes no memory.
    fn refresh(&self, slot: u32, pages: u32) {
        if !self.is_current(slot, pages) {
            self.stale.remove(slot, pages);
        }
    }

    /// Records whether the replica has the last write of these slots.
    fn note(&self, io: &Io, result: Result<(), IoError>) {
        let pages = io.frames.len() as u32;
        match result {
            Ok(()) => {
                self.rest.end();
                self.refresh(io.slot, pages);
            }
            Err(_) => drop(self.stale.insert(io.slot, pages)),
        }
    }

    fn inherit(&self) -> Replica {
        let (standby, stale) = (self.standby.clone(), self.stale.clone());
        let (pace, rest) = (Pace::default(), Rest::default());
        Replica { device: self.device.inherit(), standby, stale, pace, rest }
    }
}

impl Replicated {
    /// Two empty devices of the same size. The last replica is waited for as long as `patience`.
    pub(crate) fn new(
        name: String,
        devices: [Box<dyn Device>; 2],
        patience: Duration,
    ) -> Result<Replicated, Reason> {
        let info = DeviceInfo { name, latency: Latency::Asynchronous, ..devices[0].info() };
        assert!(devices[1].info().pages == info.pages, "replicas have the same slots");
        let sets = || SlotSet::new(info.pages).map_err(|no| Reason::from_errno("map memory", no));
        let mut stale = [sets()?, sets()?].into_iter();
        let mut standbys = Standby::pair(patience).into_iter();
        let replicas = devices.map(|device| {
            let standby = standbys.next().expect("one for each");
            device.stand_by(&standby);
            let stale = Arc::new(stale.next().expect("one for each"));
            let (pace, rest) = (Pace::default(), Rest::default());
            Replica { device, standby, stale, pace, rest }
        });
        Ok(Replicated::of(info, replicas))
    }

    fn of(info: DeviceInfo, replicas: [Replica; 2]) -> Replicated {
        Replicated {
            info,
            replicas,
            quota: SlotQuota::default(),
            flights: Flights::new(),
            altered: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            single_writes: AtomicU64::new(0),
            second_reads: AtomicU64::new(0),
            hedged_reads: AtomicU64::new(0),
        }
    }

    fn devices(&self) -> impl Iterator<Item = &dyn Device> {
        self.replicas.iter().map(|replica| &*replica.device)
    }

    /// Starts a write on both replicas.
    ///
    /// # Safety
    /// As for [`Device::start`].
    unsafe fn start_write(&self, flight: &mut Flight, arena: Arena, batch: &mut [Io]) {
        for (index, io) in batch.iter_mut().enumerate() {
            let admitted = admit(&self.info, Direction::Write, arena, io);
            io.result = admitted.and_then(|()| self.quota.take(io));
            if io.result.is_ok() {
                flight.push(index, io);
            }
        }
        let started = flight.ios.iter_mut().zip(&mut flight.started);
        for (replica, (ios, started)) in self.replicas.iter().zip(started) {
            match replica.is_lost() || ios.is_empty() {
                true => ios.iter_mut().for_each(|io| io.result = Err(LOST)),
                // SAFETY: by contract of this function; the transfers stay until `finish_write`.
                false => *started = unsafe { replica.device.start(arena, Direction::Write, ios) },
            }
        }
    }

    /// Waits for a write on both replicas.
    ///
    /// # Safety
    /// As for [`Device::finish`].
    unsafe fn finish_write(&self, flight: &mut Flight, arena: Arena, batch: &mut [Io]) {
        let Flight { ios, origins, started } = flight;
        for (replica, (ios, started)) in self.replicas.iter().zip(ios.iter_mut().zip(started)) {
            if let Some(started) = started.take() {
                // SAFETY: by contract: the transfers that were started.
                unsafe { replica.device.finish(arena, started, ios) };
            }
        }
        for (at, origin) in origins.iter().enumerate() {
            let results = [0, 1].map(|replica: usize| ios[replica][at].result);
            let io = &mut batch[*origin];
            self.replicas.iter().zip(results).for_each(|(it, result)| it.note(io, result));
            io.result = written(results);
            if results.iter().filter(|result| result.is_ok()).count() == 1 {
                self.single_writes.fetch_add(io.frames.len() as u64, Relaxed);
            }
        }
    }
}

impl Device for Replicated {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        if let Some(side) = self.side(arena, batch) {
            // SAFETY: by contract of this function.
            return unsafe { self.read_from(side, arena, batch) };
        }
        for io in batch {
            io.result = admit(&self.info, Direction::Read, arena, io);
            if io.result.is_ok() {
                io.result = Err(NOWHERE);
                // SAFETY: as above.
                unsafe { self.read_one(None, arena, io) };
            }
        }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        for part in batch.chunks_mut(flight::IOS) {
            let mut flight = self.flights.take();
            // SAFETY: by contract of this function.
            unsafe { self.start_write(&mut flight, arena, part) };
            // SAFETY: as above.
            unsafe { self.finish_write(&mut flight, arena, part) };
        }
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        let side = match direction {
            Direction::Read => self.side(arena, batch),
            Direction::Write => Some(0),
        };
        let flight = self.flights.take_for_later().filter(|_| batch.len() <= flight::IOS);
        let (Some(side), Some(mut flight)) = (side, flight) else {
            // SAFETY: by contract of this function.
            unsafe { self.read_or_write(arena, direction, batch) };
            return None;
        };
        // SAFETY: as above.
        unsafe {
            match direction {
                Direction::Write => self.start_write(&mut flight, arena, batch),
                Direction::Read => {
                    let device = &self.replicas[side].device;
                    flight.started[side] = device.start(arena, direction, batch);
                }
            }
        }
        if flight.started.iter().any(Option::is_some) {
            return Some(Started { index: flight.leave(), direction, left: 0, bounce: None });
        }
        // SAFETY: as above; all transfers are done.
        unsafe {
            match direction {
                Direction::Write => self.finish_write(&mut flight, arena, batch),
                Direction::Read => self.mend(side, arena, batch),
            }
        }
        None
    }

    fn is_over(&self, started: &Started) -> bool {
        let flight = self.flights.back(started.index);
        let mut under_way = self.devices().zip(&flight.started);
        let over =
            under_way.all(|(device, started)| started.as_ref().is_none_or(|it| device.is_over(it)));
        // The batch is still in flight.
        let _ = flight.leave();
        over
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let mut flight = self.flights.back(started.index);
        if started.direction == Direction::Write {
            // SAFETY: by contract of this function.
            return unsafe { self.finish_write(&mut flight, arena, batch) };
        }
        for (side, started) in flight.started.iter_mut().enumerate() {
            if let Some(started) = started.take() {
                // SAFETY: by contract of this function.
                let side = unsafe { self.finish_read(side, started, arena, batch) };
                // SAFETY: as above.
                unsafe { self.mend(side, arena, batch) };
            }
        }
    }

    fn discard(&self, slot: u32, pages: u32) {
        if !self.info.read_only {
            self.quota.discard(slot, pages);
            self.replicas.iter().for_each(|replica| replica.refresh(slot, pages));
        }
        self.devices().for_each(|device| device.discard(slot, pages));
    }

    fn vacate(&self) {
        self.quota.put_spare();
        self.replicas.iter().for_each(|replica| replica.stale.clear());
        self.devices().for_each(|device| device.vacate());
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        let shared = self.quota.share(self.info.pages, next());
        shared.map_err(|errno| Reason::from_errno("map memory", errno))
    }

    fn is_scarce(&self, _slot: u32) -> bool {
        self.quota.is_scarce()
    }

    fn sync(&self) -> Result<(), IoError> {
        let [first, second] = self.replicas.each_ref().map(|replica| replica.device.sync());
        first.or(second)
    }

    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.devices().find_map(|device| device.thread())
    }

    fn pause(&self) {
        self.devices().for_each(|device| device.pause());
    }

    fn resume(&self) {
        self.devices().for_each(|device| device.resume());
    }

    fn inherit(&self) -> Box<dyn Device> {
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        // Read-only: it takes no room.
        Box::new(Replicated::of(info, self.replicas.each_ref().map(Replica::inherit)))
    }

    fn resident(&self) -> Bytes {
        Bytes(self.devices().map(|device| device.resident().0).sum())
    }

    fn tables(&self) -> Bytes {
        let of_devices: u64 = self.devices().map(|device| device.tables().0).sum();
        Bytes(of_devices + self.flights.bytes())
    }

    fn replication(&self) -> Option<Replication> {
        Some(Replication {
            lost: self.replicas.iter().filter(|replica| replica.is_lost()).count() as u64,
            single_writes: self.single_writes.load(Relaxed),
            second_reads: self.second_reads.load(Relaxed),
            hedged_reads: self.hedged_reads.load(Relaxed),
        })
    }

    fn lost_replica(&self) -> Option<LostReplica> {
        let lost = self.replicas.iter().position(Replica::is_lost)?;
        let name = |side: usize| self.replicas[side].device.info().name;
        Some(LostReplica { name: name(lost), left: name(1 - lost) })
    }

    fn altered(&self) -> bool {
        self.altered.load(Relaxed)
    }

    fn injected(&self) -> u64 {
        self.devices().map(|device| device.injected()).sum()
    }

    fn is_remote(&self) -> bool {
        self.devices().any(|device| device.is_remote())
    }

    fn forget(&self) {
        self.devices().for_each(|device| device.forget());
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.devices().flat_map(|device| device.descriptors()).collect()
    }

    fn set_copies(&self, copies: &[RawFd]) {
        let [first, second] = self.replicas.each_ref().map(|replica| &replica.device);
        let (of_first, of_second) = copies.split_at(first.descriptors().len());
        first.set_copies(of_first);
        second.set_copies(of_second);
    }
}
