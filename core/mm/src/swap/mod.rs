//! Swap: the devices and their slots, the swap cache, readahead, and transfers. It also transfers
//! pages of files, which have fixed places and need no slots.
//!
//! ```text
//! Swap -- Device x n      slots and the swap cache of a device     device.rs; swapon.rs
//!      |- Order           the device that comes next               order.rs
//!      |- Streams         sequential faults: pages to read along   readahead.rs
//!      |- SlotWindows     slots to read along, on rotating disks   readahead.rs
//!      |- Pointers        pages that pointers name                 pointers.rs
//!      |- FileStreams     sequential readers of files              file_streams.rs
//!      |- Loops           whether pages are used in a loop         loops.rs
//!      \- EvictionClock   how long ago pages were evicted          reuse.rs
//! ReadaheadQueue          pages to be read before they are used    readahead_queue.rs
//! ```
//! How a slot is chosen: `alloc.rs`, `Device::search`. In short: the CPU's own cluster of 512
//! slots, a new cluster from the lists, other CPUs' clusters.
//!
//! Life of a slot: free; taken, with count 1 and its frame in the swap cache; written, and out of
//! the cache; read back; free again when the count is 0 and the cache has no frame. One lock for
//! each cluster (2 MiB) guards counts and cache (Linux 6.18). No lock is held during a transfer.
//! `swap` allocates no frames: it fills and drains frames that it is given.
//!
//! Mechanisms of earlier kernels are in `history/`, compiled with the feature `history` only.

mod alloc;
mod by_slot;
mod cache;
mod cluster;
mod clusters;
mod device;
mod file_streams;
#[cfg(feature = "history")]
mod history;
mod large;
mod lists;
mod loops;
mod order;
mod pointers;
mod position;
mod readahead;
mod readahead_queue;
mod reuse;
mod standing;
#[cfg(test)]
mod swap_fuzz;
mod swapon;
mod usage;

pub use cache::Cached;
#[cfg(not(feature = "history"))]
pub use device::Device;
pub use file_streams::{ALONE, Expected, FileStreams, Seen, TRACE_MIN, Window, lasting, window};
#[cfg(feature = "history")]
pub use history::device::Device;
pub use loops::{Loops, Now, Sample, Task};
pub use pointers::{Cursor, Pointers, WATCHED_IN};
pub use readahead::{Ahead, SlotWindows, Streams, Trust};
pub use readahead_queue::{Landing, Queued, ReadaheadQueue, ReadaheadRequest};

pub use swapon::{Taken, Use};

use crate::config::Config;
use crate::frame::Owner;
use crate::stats::{Counter, Stats};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Platform};
use highwater_units::{CpuId, Nanos, Pfn, Slot};
#[cfg(feature = "history")]
use history::order::Order;
#[cfg(not(feature = "history"))]
use order::Order;
use reuse::{EvictionClock, slots_from};
use standing::Turn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire};

/// A swap device as /proc/swaps lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapUse {
    /// Its size in pages.
    pub pages: u64,
    /// Pages of it that are in use.
    pub used: u64,
    /// Its priority, if it was given one.
    pub priority: Option<u16>,
}

/// A batch in flight.
pub struct InFlight<P: Platform> {
    device: u8,
    start: Nanos,
    transfer: P::Transfer,
}

impl<P: Platform> InFlight<P> {
    /// Whether the device is done: finishing it does not wait.
    pub fn is_over(&self, platform: &P) -> bool {
        platform.is_over(&self.transfer)
    }
}

/// All swap devices.
pub struct Swap<P: Platform> {
    /// By device number; those of vacant places are not set.
    devices: Vec<OnceLock<Device<P>>>,
    /// The order of the devices at the start, and another one for each time that some were added.
    #[cfg(not(feature = "history"))]
    orders: Vec<OnceLock<Order>>,
    #[cfg(feature = "history")]
    orders: Vec<OnceLock<Order<P>>>,
    /// The index of the last order.
    order: AtomicUsize,
    reads_ahead: bool,
    /// Pages evicted so far.
    evicted: EvictionClock,
    /// Whether pages are used in a loop.
    pub loops: Loops,
    /// Sequential faults.
    pub streams: Streams<P>,
    /// Pages that pointers name.
    pub pointers: Pointers<P>,
    /// How many slots a CPU's faults read around the one they need.
    pub slot_windows: SlotWindows,
    /// Sequential readers of files.
    pub file_streams: FileStreams<P>,
}

impl<P: Platform> Swap<P> {
    /// The platform's devices, with all slots free. Vacant ones ([`DeviceInfo::is_vacant`]) can be
    /// added later.
    pub fn new(platform: &P, config: &Config) -> Swap<P> {
        let infos = platform.devices();
        let frames = platform.ranges().iter().map(|range| range.frames).sum();
        let vacant = infos.iter().filter(|info| info.is_vacant()).count();
        let device = |(index, info): (usize, DeviceInfo)| match info.is_vacant() {
            true => OnceLock::new(),
            false => OnceLock::from(Device::new(platform, index as u8, info, config)),
        };
        let mut swap = Swap {
            devices: infos.into_iter().enumerate().map(device).collect(),
            orders: (0..=vacant).map(|_| OnceLock::new()).collect(),
            order: AtomicUsize::new(0),
            reads_ahead: false,
            evicted: EvictionClock::new(frames),
            loops: Loops::new(),
            streams: Streams::new(platform.cpus()),
            pointers: Pointers::new(),
            slot_windows: SlotWindows::new(platform.cpus()),
            file_streams: FileStreams::new(),
        };
        let reads_ahead = swap.devices().any(|device| device.reads_ahead());
        swap.reads_ahead = reads_ahead;
        swap.set_order(platform, config);
        swap
    }

    /// Takes adjacent slots for the first of `frames` (not empty): count 1, frames in the swap
    /// cache. Returns the first slot and how many; `None` if all devices are full.
    pub fn alloc(&self, cpu: CpuId, frames: &[Pfn]) -> Option<(Slot, usize)> {
        let order = self.order();
        let from = |turn| {
            let mut devices = order.of(cpu).map(|index| self.at(index));
            devices.find_map(|device| device.alloc(cpu, frames, turn))
        };
        let found = from(Turn::First)
            .or_else(|| if self.any_passed_over() { from(Turn::Last) } else { None })?;
        order.took(cpu, found.1);
        self.note_evicted(found.0, found.1);
        Some(found)
    }

    /// Notes that pages are evicted to adjacent slots, or were written there before.
    pub fn note_evicted(&self, first: Slot, pages: usize) {
        self.device(first).ages.evicted(slots_from(first, pages), &self.evicted);
    }

    /// The number of pages evicted since the page of a slot was evicted, if that is known. The
    /// caller holds the page.
    pub fn distance(&self, slot: Slot) -> Option<u32> {
        self.device(slot).ages.distance(slot.index, &self.evicted)
    }

    /// Pages evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.pages()
    }

    /// Counts pages that reclaim has evicted.
    pub fn count_evicted(&self, pages: u32) {
        self.evicted.advance(pages);
    }

    /// The order in which devices are asked.
    #[cfg(not(feature = "history"))]
    fn order(&self) -> &Order {
        self.orders[self.order.load(Acquire)].get().expect("it was set before its index")
    }

    #[cfg(feature = "history")]
    fn order(&self) -> &Order<P> {
        self.orders[self.order.load(Acquire)].get().expect("it was set before its index")
    }

    fn own_devices(&self) -> impl Iterator<Item = &Device<P>> {
        self.devices().filter(|device| device.info().gives_slots())
    }

    fn any_passed_over(&self) -> bool {
        self.own_devices().any(|device| device.standing.is_passed_over())
    }

    /// Free slots of devices that are believed to have room for their pages.
    pub fn room(&self) -> u64 {
        self.own_devices().map(|device| u64::from(device.room())).sum()
    }

    /// Lets an allocation that would fail try some pages on devices that refuse for want of room,
    /// and takes back those that are leaving. Returns the latency of the slowest; `None` if there
    /// are none.
    pub fn try_refusing(&self) -> Option<Latency> {
        let returns = |device: &Device<P>| device.standing.is_leaving() && device.standing.reopen();
        let is_tried = |device: &&Device<P>| returns(device) || device.standing.grant();
        let tried = self.own_devices().filter(is_tried);
        let latencies: Vec<_> = tried.map(|device| device.info().latency).collect();
        let slow = latencies.contains(&Latency::Asynchronous);
        let latency = if slow { Latency::Asynchronous } else { Latency::Synchronous };
        (!latencies.is_empty()).then_some(latency)
    }

    /// Lets some pages be tried on devices whose last write failed.
    pub fn retry_failing(&self) {
        self.own_devices().for_each(|device| device.standing.retry_failing());
    }

    /// Notes the pages, from `owner` on, for which slots were just taken.
    pub fn note_owners(&self, first: Slot, slots: usize, owner: Owner) {
        if let Some(owners) = &self.device(first).owners {
            owners.note(first.index, slots, owner);
        }
    }

    /// The page for which a slot was taken last, if that is noted: a hint.
    pub fn owner(&self, slot: Slot) -> Option<Owner> {
        self.own(slot)?.owners.as_ref()?.get(slot.index)
    }

    /// What a fault reads along with the page of a slot.
    pub fn ahead(&self, slot: Slot) -> Ahead {
        self.device(slot).ahead()
    }

    /// Takes the frame of a swapped page out of the swap cache, if it is there.
    pub fn claim(&self, cpu: CpuId, slot: Slot) -> Option<Pfn> {
        self.own(slot)?.claim(cpu, slot.index)
    }

    /// Whether the swap cache has a frame for a slot. While the caller holds the entry that refers
    /// to the slot, false stays false.
    pub fn is_cached(&self, slot: Slot) -> bool {
        self.own(slot).is_some_and(|own| own.is_cached(slot.index))
    }

    /// Takes the frames of a run (at most 16 slots) out of the cache after their write, except
    /// those that a fault claimed. Calls `outcome` for each.
    pub fn uncache(
        &self,
        platform: &P,
        first: Slot,
        frames: &[Pfn],
        outcome: impl FnMut(usize, Cached),
    ) {
        let own = self.own(first).expect("inherited slots are never written");
        own.uncache(platform, first.index, frames, outcome);
    }

    /// Drops a reference. The slot is free when none is left and the cache has no frame; its device
    /// may then drop the contents.
    pub fn release(&self, platform: &P, cpu: CpuId, slot: Slot) {
        if let Some(own) = self.own(slot) {
            own.release(platform, cpu, slot.index);
        }
    }

    /// Adds a reference, for a forked child's copy of a page table.
    pub fn duplicate(&self, cpu: CpuId, slot: Slot) {
        if let Some(own) = self.own(slot) {
            own.duplicate(cpu, slot.index);
        }
    }

    /// Whether a clean page should keep its slot: a write costs more than the slot, and slots are
    /// not scarce.
    pub fn retains(&self, platform: &P, slot: Slot) -> bool {
        self.device(slot).keeps_clean(platform.recency())
            && !platform.is_scarce(slot.device, slot.index)
    }

    /// Whether the device of a slot answers at memory speed.
    pub fn latency(&self, slot: Slot) -> Latency {
        self.device(slot).info().latency
    }

    /// Whether a readahead thread can spare faults the wait for one of the devices that exist at
    /// the start, when the threads are made.
    pub fn reads_ahead(&self) -> bool {
        self.reads_ahead
    }

    /// Whether any device has a queue: a transfer waits.
    pub fn any_asynchronous(&self) -> bool {
        self.devices().any(|device| device.info().latency == Latency::Asynchronous)
    }

    /// Whether there is swap, and no transfer to it waits. Places for files do not count: most have
    /// none.
    pub fn is_in_memory(&self) -> bool {
        let waits = |info: &DeviceInfo| {
            info.latency == Latency::Asynchronous && info.role != DeviceRole::Place
        };
        !self.devices().any(|device| waits(device.info()))
            && self.own_devices().any(|device| !device.standing.is_removed())
    }

    /// Slots in use, and all slots, of the devices that slots are allocated from.
    pub fn usage(&self) -> (u64, u64) {
        self.swaps().fold((0, 0), |sum, (_, swap)| (sum.0 + swap.used, sum.1 + swap.pages))
    }

    /// The devices that slots are allocated from, with their numbers. Those that were removed, or
    /// not added yet, have no pages.
    pub fn swaps(&self) -> impl Iterator<Item = (u8, SwapUse)> {
        let places = (0..).zip(self.devices.iter().map(OnceLock::get));
        let own = places.filter(|(_, it)| it.is_none_or(|device| device.info().gives_slots()));
        own.map(|(number, device)| {
            let Some(device) = device.filter(|device| !device.standing.is_removed()) else {
                return (number, SwapUse { pages: 0, used: 0, priority: None });
            };
            let DeviceInfo { pages, priority, .. } = *device.info();
            (number, SwapUse { pages: pages.into(), used: device.in_use().into(), priority })
        })
    }

    /// Whether a device accepts pages in runs of any length: it refused none lately.
    pub fn accepts_runs(&self, device: u8) -> bool {
        self.at(device.into()).standing.is_open()
    }

    /// Whether no device has a free slot that it has room for.
    pub fn is_full(&self) -> bool {
        self.own_devices().all(|device| device.is_full())
    }

    /// Reads `batch` from a device and waits. The caller holds the entries of its pages.
    pub fn read(&self, platform: &P, stats: &Stats, device: u8, batch: &mut [Io]) {
        let start = platform.now();
        self.at(device.into()).read(platform, batch);
        self.have_read(platform, stats, device, start, batch);
    }

    /// Begins to read `batch` from a device. The caller holds the entries of its pages.
    pub fn start_read(&self, platform: &P, device: u8, batch: &mut [Io]) -> InFlight<P> {
        let start = platform.now();
        let transfer = platform.start(device, Direction::Read, batch);
        InFlight { device, start, transfer }
    }

    /// Waits for a batch of [`Swap::start_read`].
    pub fn finish_read(&self, platform: &P, stats: &Stats, begun: InFlight<P>, batch: &mut [Io]) {
        let InFlight { device, start, transfer } = begun;
        platform.finish(transfer, batch);
        self.have_read(platform, stats, device, start, batch);
    }

    fn have_read(&self, platform: &P, stats: &Stats, device: u8, start: Nanos, batch: &[Io]) {
        let counters = match self.at(device.into()).info().role {
            DeviceRole::Swap => [Counter::SwapInNanos, Counter::SwapInIos, Counter::PswpIn],
            DeviceRole::File | DeviceRole::Place => {
                [Counter::FileInNanos, Counter::FileInIos, Counter::PgFileIn]
            }
        };
        account(platform, stats, counters, start, batch);
        self.note_reuse(platform, stats, device, batch);
    }

    fn note_reuse(&self, platform: &P, stats: &Stats, device: u8, batch: &[Io]) {
        let ages = &self.at(device.into()).ages;
        for io in batch.iter().filter(|io| io.result.is_ok()) {
            let slots = io.slot..io.slot + io.frames.len() as u32;
            if let Some(pages) = ages.sampled_distance(slots, &self.evicted) {
                self.loops.note(pages, self.evicted());
                stats.reuse(platform.cpu(), pages.into());
            }
        }
    }

    /// Writes `batch` to a device and waits.
    pub fn write(&self, platform: &P, stats: &Stats, device: u8, batch: &mut [Io]) {
        let start = platform.now();
        self.at(device.into()).write(platform, batch);
        self.written(platform, stats, device, start, batch);
    }

    /// Begins to write `batch` to a device.
    pub fn start_write(&self, platform: &P, device: u8, batch: &mut [Io]) -> InFlight<P> {
        let start = platform.now();
        let transfer = self.at(device.into()).start_write(platform, batch);
        InFlight { device, start, transfer }
    }

    /// Waits for a batch of [`Swap::start_write`].
    pub fn finish_write(&self, platform: &P, stats: &Stats, begun: InFlight<P>, batch: &mut [Io]) {
        let InFlight { device, start, transfer } = begun;
        self.at(device.into()).finish_write(platform, transfer, batch);
        self.written(platform, stats, device, start, batch);
    }

    fn written(&self, platform: &P, stats: &Stats, device: u8, start: Nanos, batch: &[Io]) {
        let counters = match self.at(device.into()).info().role {
            DeviceRole::Swap => [Counter::SwapOutNanos, Counter::SwapOutIos, Counter::PswpOut],
            DeviceRole::File | DeviceRole::Place => {
                [Counter::FileOutNanos, Counter::FileOutIos, Counter::PgFileOut]
            }
        };
        account(platform, stats, counters, start, batch);
        stats.add(platform.cpu(), Counter::SwapWriteErrors, errors(batch));
        let own = self.at(device.into());
        if own.info().role == DeviceRole::Swap {
            stats.add(platform.cpu(), Counter::SwapRefused, pages_with_error(batch, IoError::Full));
            stats.add(platform.cpu(), Counter::SwapBusy, pages_with_error(batch, IoError::Busy));
            for io in batch {
                own.standing.answered(io.frames.len(), io.result);
                // Other places of a disk, or other servers, may accept it.
                if matches!(io.result, Err(IoError::Busy | IoError::Failed(_))) {
                    own.set_aside(io.slot);
                }
            }
        }
    }

    /// What the platform reports of a device.
    pub fn info(&self, device: u8) -> Option<&DeviceInfo> {
        self.devices.get(usize::from(device))?.get().map(|device| device.info())
    }

    /// The devices that are there, in the order of their numbers.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device<P>> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    /// The device of a number, which is there.
    pub(crate) fn at(&self, device: usize) -> &Device<P> {
        self.devices[device].get().expect("slots are of devices that are there")
    }

    fn device(&self, slot: Slot) -> &Device<P> {
        self.at(slot.device.into())
    }

    /// The device of a slot whose references are counted here. The slots of an inherited device are
    /// the parent's and stay as they are; pages of files have none.
    fn own(&self, slot: Slot) -> Option<&Device<P>> {
        Some(self.device(slot)).filter(|device| device.info().gives_slots())
    }
}

/// Counts a finished batch: time, transfers and pages by the given counters, and errors.
fn account<P: Platform>(
    platform: &P,
    stats: &Stats,
    [nanos, ios, pages]: [Counter; 3],
    start: Nanos,
    batch: &[Io],
) {
    let cpu = platform.cpu();
    stats.add(cpu, nanos, platform.now().since(start).0);
    stats.add(cpu, ios, batch.len() as u64);
    stats.add(cpu, pages, pages_done(batch));
    stats.add(cpu, Counter::SwapIoErrors, errors(batch));
}

fn pages_done(batch: &[Io]) -> u64 {
    batch.iter().filter(|io| io.result.is_ok()).map(|io| io.frames.len() as u64).sum()
}

/// Pages whose transfer ended in this error.
fn pages_with_error(batch: &[Io], error: IoError) -> u64 {
    let ended_so = |io: &&Io| io.result == Err(error);
    batch.iter().filter(ended_so).map(|io| io.frames.len() as u64).sum()
}

/// Failed transfers. A refusal, by a full device or at these slots, is no failure.
fn errors(batch: &[Io]) -> u64 {
    let failed = |io: &&Io| matches!(io.result, Err(IoError::Failed(_)));
    batch.iter().filter(failed).count() as u64
}

/// The first error of a batch.
pub fn first_error(batch: &[Io]) -> Option<IoError> {
    batch.iter().find_map(|io| io.result.err())
}
