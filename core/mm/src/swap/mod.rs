//! Frames to slots and back: devices of clusters of slots, the swap cache, streams, transfers. And
//! transfers of files' pages, which have their places and need no slots.
//!
//! ```text
//! Swap -- Device x n   slots: counts, who allocates from where, what CPUs keep     device.rs
//!      |    |- SwapCache   frames of slots that are being written                  cache.rs
//!      |    \- Standing    whether it takes pages                                  standing.rs
//!      |- Order        which device is next                                        order.rs
//!      |- Streams      who reads sequentially, and how far ahead                   readahead.rs
//!      \- FileStreams  the same, of files                                          file_streams.rs
//! Wishes -- what is to be read before it is used                                   wishes.rs
//! ```
//! How a device guards and finds its slots is a setting ([`crate::config::SwapConfig`]); what it
//! does is not. By default one lock for a cluster of 2 MiB covers counts and cache (the design of
//! Linux 6.18, beyond the seeds' 64 MiB trunks). No lock is held during a transfer.
//! Life of a slot: free -> allocated with count 1 and its frame in the cache -> written, out of the
//! cache -> read back; free again when the count is 0 and the cache has no frame.
//! `swap` never allocates frames: it fills and drains those it is handed.

mod cache;
mod cluster;
mod device;
mod file_streams;
mod large;
mod lists;
mod order;
mod readahead;
mod search;
mod settings;
mod slot_cache;
mod standing;
#[cfg(test)]
mod swap_fuzz;
mod usage;
mod wishes;

pub use device::Device;
pub use file_streams::{ALONE, Expected, FileStreams, Seen, TRACE_MIN, Window, lasting, window};
pub use readahead::{Ahead, SlotWindows, Source, Streams};
pub use wishes::{Asked, Wish, Wishes};

use crate::config::Config;
use crate::frame::Owner;
use crate::stats::{Counter, Stats};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Platform};
use highwater_units::{CpuId, Nanos, Pfn, Slot};
use order::Order;
use settings::{SwapConfig, SwapIn, Switch};
use standing::Turn;

/// What became of a slot's place in the swap cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// The frame was still there and is now out: it belongs to the caller.
    Removed,
    /// A fault claimed it first.
    Claimed,
}

/// A batch that a device is at.
pub struct InFlight<P: Platform> {
    device: u8,
    start: Nanos,
    transfer: P::Transfer,
}

impl<P: Platform> InFlight<P> {
    /// Whether finishing it would not wait.
    pub fn is_over(&self, platform: &P) -> bool {
        platform.is_over(&self.transfer)
    }
}

/// All swap devices.
pub struct Swap<P: Platform> {
    devices: Vec<Device<P>>,
    order: Order<P>,
    /// Sequential readers.
    pub streams: Streams<P>,
    /// Readers of slots around others.
    pub slot_windows: SlotWindows,
    /// Sequential readers of files.
    pub file_streams: FileStreams<P>,
}

impl<P: Platform> Swap<P> {
    /// The platform's devices, all slots free.
    pub fn new(platform: &P, config: &Config) -> Swap<P> {
        let config = SwapConfig::of(config);
        let infos = platform.devices();
        let order = Order::new(platform, &infos, &config);
        let device = |(index, info)| Device::new(platform, index as u8, info, config);
        let devices = infos.into_iter().enumerate().map(device).collect();
        Swap {
            devices,
            order,
            streams: Streams::new(platform.cpus()),
            slot_windows: SlotWindows::new(platform.cpus()),
            file_streams: FileStreams::new(),
        }
    }

    /// Takes slots for the first frames of `frames` (not empty): adjacent slots, count 1, frames in
    /// the swap cache. Returns the first slot and how many; `None` if all devices are full.
    pub fn alloc(&self, cpu: CpuId, frames: &[Pfn]) -> Option<(Slot, usize)> {
        let from = |turn| {
            let mut devices = self.order.of(cpu).map(|index| &self.devices[index]);
            devices.find_map(|device| device.alloc(cpu, frames, turn))
        };
        let found = from(Turn::First).or_else(|| match self.any_passed_over() {
            true => from(Turn::Last),
            false => None,
        })?;
        self.order.took(cpu, found.1);
        Some(found)
    }

    fn own_devices(&self) -> impl Iterator<Item = &Device<P>> {
        self.devices.iter().filter(|device| device.info().gives_slots())
    }

    fn any_passed_over(&self) -> bool {
        self.own_devices().any(|device| !device.standing.is_open())
    }

    /// Slots that pages may go to, as far as is known: free ones, less those of devices without
    /// room.
    pub fn room(&self) -> u64 {
        self.own_devices().map(|device| u64::from(device.room())).sum()
    }

    /// For an allocation that would fail: devices that refuse pages, for want of room, are tried
    /// with some more. The slowest of them; `None` if there are none.
    pub fn try_refusing(&self) -> Option<Latency> {
        let tried = self.own_devices().filter(|device| device.standing.grant());
        let latencies: Vec<_> = tried.map(|device| device.info().latency).collect();
        let slow = latencies.contains(&Latency::Asynchronous);
        let latency = if slow { Latency::Asynchronous } else { Latency::Synchronous };
        (!latencies.is_empty()).then_some(latency)
    }

    /// Notes for which pages, from `owner` on, slots were just taken.
    pub fn note_owners(&self, first: Slot, slots: usize, owner: Owner) {
        if let Some(owners) = &self.device(first).owners {
            owners.note(first.index, slots, owner);
        }
    }

    /// For which page a slot was taken last, where that is noted: a hint.
    pub fn owner(&self, slot: Slot) -> Option<Owner> {
        self.own(slot)?.owners.as_ref()?.get(slot.index)
    }

    /// What is read along with the page of a slot.
    pub fn ahead(&self, slot: Slot) -> Ahead {
        self.device(slot).ahead()
    }

    /// Takes the frame of a swapped page out of the swap cache, if it is there.
    pub fn claim(&self, cpu: CpuId, slot: Slot) -> Option<Pfn> {
        self.own(slot)?.claim(cpu, slot.index)
    }

    /// Whether the swap cache has a frame for a slot. Once false it stays so while the caller holds
    /// the entry that refers to the slot.
    pub fn is_cached(&self, slot: Slot) -> bool {
        self.own(slot).is_some_and(|own| own.is_cached(slot.index))
    }

    /// Takes the frames of a run (at most 16 slots) out of the cache after their write, as far as
    /// no fault did; says for each which it was.
    pub fn uncache(
        &self,
        platform: &P,
        first: Slot,
        frames: &[Pfn],
        outcome: impl FnMut(usize, Cached),
    ) {
        let own = self.own(first).expect("only slots of one's own are written");
        own.uncache(platform, first.index, frames, outcome);
    }

    /// One reference less; the slot is free when none is left and the cache has no frame. Its
    /// device may then free what it holds for it.
    pub fn release(&self, platform: &P, cpu: CpuId, slot: Slot) {
        if let Some(own) = self.own(slot) {
            own.release(platform, cpu, slot.index);
        }
    }

    /// One reference more, for the copy of a page table that a forked child has.
    pub fn duplicate(&self, cpu: CpuId, slot: Slot) {
        if let Some(own) = self.own(slot) {
            own.duplicate(cpu, slot.index);
        }
    }

    /// Whether a clean page should keep its slot: worth it where a write costs more than the slot,
    /// and slots are not scarce. Kernels that read through the swap cache keep it on any device.
    pub fn retains(&self, slot: Slot) -> bool {
        let device = self.device(slot);
        let worth = match device.config.swap_in {
            SwapIn::Cached => true,
            SwapIn::Direct => device.info().latency == Latency::Asynchronous,
        };
        worth && !device.is_scarce()
    }

    /// Whether the device of a slot answers at memory speed.
    pub fn latency(&self, slot: Slot) -> Latency {
        self.device(slot).info().latency
    }

    /// Whether a readahead thread can save faults time: a device answers later, and pages are not
    /// read through the swap cache.
    pub fn reads_ahead(&self) -> bool {
        let gains = |device: &&Device<P>| device.reads_ahead();
        self.devices.iter().any(|device| gains(&device))
    }

    /// Whether any device does not.
    pub fn any_asynchronous(&self) -> bool {
        self.devices.iter().any(|device| device.info().latency == Latency::Asynchronous)
    }

    /// Slots in use and in all, of the devices that can be allocated from.
    pub fn usage(&self) -> (u64, u64) {
        self.usages().fold((0, 0), |sum, device| (sum.0 + device.0, sum.1 + device.1))
    }

    /// Slots in use and in all, by device.
    #[cfg(feature = "inspect")]
    pub fn usage_by_device(&self) -> Vec<(u64, u64)> {
        self.usages().collect()
    }

    fn usages(&self) -> impl Iterator<Item = (u64, u64)> {
        let own = self.own_devices();
        own.map(|device| (device.in_use().into(), device.info().pages.into()))
    }

    /// Whether the last search for a slot found none, and none of a full cluster was freed since;
    /// or what there are is of no use.
    pub fn is_full(&self) -> bool {
        self.own_devices().all(Device::is_full)
    }

    /// Reads `batch` from a device and waits. The caller holds the entries of its pages.
    pub fn read(&self, platform: &P, stats: &Stats, device: u8, batch: &mut [Io]) {
        let start = platform.now();
        let own = &self.devices[usize::from(device)];
        let enter = |io: &Io| {
            let lists = io.frames.lists();
            lists.for_each(|(at, list)| own.enter(platform, io.slot + at as u32, &list));
        };
        // Upwards: who waits for a slot that others share has entered only lower ones.
        let mut last = None;
        let after = |last: Option<u32>| {
            let left = batch.iter().filter(|io| last.is_none_or(|last| io.slot > last));
            left.min_by_key(|io| io.slot)
        };
        while let Some(io) = after(last) {
            enter(io);
            last = Some(io.slot);
        }
        platform.read(device, batch);
        batch.iter().for_each(|io| own.leave(platform, io.slot, io.frames.len()));
        self.have_read(platform, stats, device, start, batch);
    }

    /// Begins to read `batch` from a device, past the swap cache whatever the settings say. The
    /// caller holds the entries of its pages.
    pub fn start_read(&self, platform: &P, device: u8, batch: &mut [Io]) -> InFlight<P> {
        let start = platform.now();
        let transfer = platform.start(device, Direction::Read, batch);
        InFlight { device, start, transfer }
    }

    /// Waits for a batch that was begun, and is the same.
    pub fn finish_read(&self, platform: &P, stats: &Stats, begun: InFlight<P>, batch: &mut [Io]) {
        let InFlight { device, start, transfer } = begun;
        platform.finish(transfer, batch);
        self.have_read(platform, stats, device, start, batch);
    }

    fn have_read(&self, platform: &P, stats: &Stats, device: u8, start: Nanos, batch: &[Io]) {
        let counters = match self.devices[usize::from(device)].info().role {
            DeviceRole::Swap => [Counter::SwapInNanos, Counter::SwapInIos, Counter::PswpIn],
            DeviceRole::File | DeviceRole::Place => {
                [Counter::FileInNanos, Counter::FileInIos, Counter::PgFileIn]
            }
        };
        account(platform, stats, counters, start, batch);
    }

    /// Writes `batch` to a device and waits.
    pub fn write(&self, platform: &P, stats: &Stats, device: u8, batch: &mut [Io]) {
        let start = platform.now();
        self.tag(device, batch, Switch::On);
        platform.write(device, batch);
        self.written(platform, stats, device, start, batch);
    }

    /// Begins to write `batch` to a device.
    pub fn start_write(&self, platform: &P, device: u8, batch: &mut [Io]) -> InFlight<P> {
        let start = platform.now();
        self.tag(device, batch, Switch::On);
        let transfer = platform.start(device, Direction::Write, batch);
        InFlight { device, start, transfer }
    }

    /// Waits for a batch that was begun, and is the same.
    pub fn finish_write(&self, platform: &P, stats: &Stats, begun: InFlight<P>, batch: &mut [Io]) {
        let InFlight { device, start, transfer } = begun;
        platform.finish(transfer, batch);
        self.written(platform, stats, device, start, batch);
    }

    fn written(&self, platform: &P, stats: &Stats, device: u8, start: Nanos, batch: &[Io]) {
        self.tag(device, batch, Switch::Off);
        let counters = match self.devices[usize::from(device)].info().role {
            DeviceRole::Swap => [Counter::SwapOutNanos, Counter::SwapOutIos, Counter::PswpOut],
            DeviceRole::File | DeviceRole::Place => {
                [Counter::FileOutNanos, Counter::FileOutIos, Counter::PgFileOut]
            }
        };
        account(platform, stats, counters, start, batch);
        stats.add(platform.cpu(), Counter::SwapWriteErrors, errors(batch));
        let own = &self.devices[usize::from(device)];
        if own.info().role == DeviceRole::Swap {
            stats.add(platform.cpu(), Counter::SwapRefused, pages_refused(batch));
            batch.iter().for_each(|io| own.standing.answered(io.frames.len(), io.result));
        }
    }

    fn tag(&self, device: u8, batch: &[Io], writeback: Switch) {
        let own = &self.devices[usize::from(device)];
        if own.info().role == DeviceRole::Swap {
            batch.iter().for_each(|io| own.tag(io.slot, io.frames.len(), writeback));
        }
    }

    /// What a device is.
    pub fn info(&self, device: u8) -> Option<&DeviceInfo> {
        self.devices.get(usize::from(device)).map(Device::info)
    }

    /// The devices, for [`crate::verify`].
    pub(crate) fn devices(&self) -> &[Device<P>] {
        &self.devices
    }

    fn device(&self, slot: Slot) -> &Device<P> {
        &self.devices[usize::from(slot.device)]
    }

    /// The device of a slot, unless it is inherited: those slots are the parent's to count, and
    /// stay as they are while this process lives. Or a file's: nobody counts them.
    fn own(&self, slot: Slot) -> Option<&Device<P>> {
        Some(self.device(slot)).filter(|device| device.info().gives_slots())
    }
}

/// Counts a batch that ended now: time, transfers and pages by the given counters, and errors.
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

fn pages_refused(batch: &[Io]) -> u64 {
    let refused = |io: &&Io| io.result == Err(IoError::Full);
    batch.iter().filter(refused).map(|io| io.frames.len() as u64).sum()
}

/// Failures of the device; that it is full is none.
fn errors(batch: &[Io]) -> u64 {
    let failed = |io: &&Io| matches!(io.result, Err(IoError::Failed(_)));
    batch.iter().filter(failed).count() as u64
}

/// The first error of a batch.
pub fn first_error(batch: &[Io]) -> Option<IoError> {
    batch.iter().find_map(|io| io.result.err())
}
