//! A device: the timing of its channels and buses, and the contents of its slots.
//!
//! ```text
//! transfer --> the first free channel: latency (and a seek) --> the bus: bytes / bandwidth
//!                                                 several buses: each stripe over its own bus
//! ```
//! One channel and a fast bus make a queue with constant service time (M/D/1). With many channels,
//! the latency at depth 1 and the throughput at full depth equal the values in the machine file.
//! With several buses, a transfer ends when the last bus has carried its part, so a single stream
//! does not keep all buses busy.

use crate::contents::{Words, filled};
use crate::machine::{DeviceSpec, Role};
use highwater_platform::{Direction, FileAccess, Io, IoError};
use highwater_units::PAGE_SIZE;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// The contents of a slot.
#[derive(Clone)]
enum Behind {
    /// Never written.
    Nothing,
    /// Undefined after a failed write.
    Garbage,
    Page(Arc<Words>),
}

#[derive(Clone)]
struct Slot {
    behind: Behind,
    readers: u16,
    writing: bool,
}

/// A device.
pub(crate) struct Device {
    spec: DeviceSpec,
    slots: Vec<Slot>,
    /// The open file whose pages the first slots hold.
    file: Option<SimFile>,
    /// When each channel becomes free.
    channels: Vec<u64>,
    /// When each bus becomes free.
    buses: Vec<u64>,
    /// The slot after the end of the last transfer.
    head: u32,
}

impl Device {
    pub(crate) fn new(spec: &DeviceSpec, pages: u32) -> Device {
        let behind = match spec.role {
            Role::Swap | Role::Place => Behind::Nothing,
            Role::File => Behind::Page(filled(0)),
        };
        let slot = Slot { behind, readers: 0, writing: false };
        Device {
            slots: vec![slot; pages as usize],
            file: None,
            channels: vec![0; usize::from(spec.channels)],
            buses: vec![0; usize::from(spec.buses)],
            head: 0,
            spec: spec.clone(),
        }
    }

    pub(crate) fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    pub(crate) fn pages(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Occupies the buses for some slots, from `now` or from when they become free. Returns the
    /// end.
    pub(crate) fn carry(&mut self, now: u64, slots: Range<u32>, direction: Direction) -> u64 {
        let mb_per_s = match direction {
            Direction::Read => self.spec.read_mb_per_s,
            Direction::Write => self.spec.write_mb_per_s,
        };
        let buses = self.buses.len() as u64;
        let nanos = |slots: u32| u64::from(slots) * PAGE_SIZE as u64 * 1000 * buses / mb_per_s;
        let stripe = match buses {
            1 => u32::MAX,
            _ => (self.spec.stripe_kib * 1024 / PAGE_SIZE as u64) as u32,
        };
        let (mut first, mut done) = (slots.start, now);
        while first < slots.end {
            let number = first / stripe;
            let end = slots.end.min((number + 1).saturating_mul(stripe));
            let bus = &mut self.buses[bus_of(number, buses)];
            *bus = (*bus).max(now) + nanos(end - first);
            (done, first) = (done.max(*bus), end);
        }
        done
    }

    /// Queues a transfer that arrives at `now`. Returns its completion time.
    pub(crate) fn queue(
        &mut self,
        now: u64,
        slots: Range<u32>,
        direction: Direction,
        delay: u64,
    ) -> u64 {
        let latency = match direction {
            Direction::Read => self.spec.read_latency,
            Direction::Write => self.spec.write_latency,
        };
        let seek = if self.head == slots.start { 0 } else { self.spec.seek };
        self.head = slots.end;
        let channel = self.channels.iter_mut().min().expect("a device has a channel");
        *channel = (*channel).max(now) + latency + seek + delay;
        let ready = *channel;
        self.carry(ready, slots, direction)
    }

    /// Sets the contents of all slots.
    pub(crate) fn preset(&mut self, page: impl Fn(u32) -> Arc<Words>) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            slot.behind = Behind::Page(page(number as u32));
        }
    }

    /// Forgets the contents of all slots.
    pub(crate) fn clear(&mut self) {
        for slot in &mut self.slots {
            assert!(!slot.writing && slot.readers == 0, "a device goes during a transfer");
            slot.behind = Behind::Nothing;
        }
    }

    /// Opens a file on the device.
    pub(crate) fn insert(&mut self, file: SimFile) {
        assert!(self.file.is_none(), "there is one file at a time");
        for (slot, words) in self.slots.iter_mut().zip(file.pages().iter()) {
            slot.behind = Behind::Page(words.clone());
        }
        self.file = Some(file);
    }

    /// Closes the file and copies the slots back to it. A slot whose write failed becomes zeros.
    pub(crate) fn eject(&mut self) {
        let file = self.file.take().expect("there is a file");
        for (slot, words) in self.slots.iter_mut().zip(file.pages().iter_mut()) {
            assert!(
                !slot.writing && slot.readers == 0,
                "a file goes while a transfer is under way"
            );
            *words = match std::mem::replace(&mut slot.behind, Behind::Nothing) {
                Behind::Page(words) => words,
                Behind::Nothing | Behind::Garbage => filled(0),
            };
        }
    }

    /// The contents of a slot.
    ///
    /// # Panics
    /// If the slot was never written.
    pub(crate) fn page(&self, slot: u32) -> Arc<Words> {
        match &self.slots[slot as usize].behind {
            Behind::Page(words) => words.clone(),
            Behind::Nothing | Behind::Garbage => panic!("slot {slot} is read, but holds nothing"),
        }
    }

    fn slots_of(&mut self, io: &Io) -> &mut [Slot] {
        let first = io.slot as usize;
        &mut self.slots[first..first + io.frames.len()]
    }

    /// Marks the slots of a transfer busy.
    pub(crate) fn begin(&mut self, io: &Io, direction: Direction) {
        for (index, slot) in self.slots_of(io).iter_mut().enumerate() {
            let number = io.slot as usize + index;
            assert!(!slot.writing, "slot {number} is in a transfer while it is written");
            match direction {
                Direction::Read => slot.readers += 1,
                Direction::Write => {
                    assert_eq!(slot.readers, 0, "slot {number} is written while it is read");
                    slot.writing = true;
                }
            }
            if direction == Direction::Read {
                let there = matches!(slot.behind, Behind::Page(_));
                assert!(there, "slot {number} is read, but its contents were never written");
            }
        }
    }

    /// Ends a read. Returns the pages.
    pub(crate) fn end_read(&mut self, io: &Io) -> Vec<Arc<Words>> {
        let page = |slot: &mut Slot| {
            slot.readers -= 1;
            match &slot.behind {
                Behind::Page(words) => words.clone(),
                Behind::Nothing | Behind::Garbage => unreachable!("checked when the read began"),
            }
        };
        self.slots_of(io).iter_mut().map(page).collect()
    }

    /// Ends a write. A failed write leaves its slots undefined.
    pub(crate) fn end_write(
        &mut self,
        io: &Io,
        words: Vec<Arc<Words>>,
        outcome: Result<(), IoError>,
    ) {
        for (slot, words) in self.slots_of(io).iter_mut().zip(words) {
            slot.writing = false;
            slot.behind = match outcome {
                Ok(()) => Behind::Page(words),
                Err(_) => Behind::Garbage,
            };
        }
    }
}

/// The bus of a stripe: pseudo-random, but fixed.
fn bus_of(stripe: u32, buses: u64) -> usize {
    let mixed = (u64::from(stripe) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (((mixed >> 32) * buses) >> 32) as usize
}

/// A file. The test may read it while no device has it open.
#[derive(Clone)]
pub struct SimFile {
    pub(crate) access: FileAccess,
    pages: Arc<Mutex<Vec<Arc<Words>>>>,
}

impl SimFile {
    /// A file with these pages.
    pub fn new(access: FileAccess, pages: Vec<Arc<Words>>) -> SimFile {
        SimFile { access, pages: Arc::new(Mutex::new(pages)) }
    }

    /// The pages as of the last close.
    pub fn pages(&self) -> MutexGuard<'_, Vec<Arc<Words>>> {
        self.pages.lock().expect("no panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Answer;

    /// All buses together carry 4096 bytes per microsecond.
    fn device(buses: u16) -> Device {
        let spec = DeviceSpec {
            name: "flash".into(),
            role: Role::File,
            node: 0,
            mib: 16,
            answer: Answer::Asynchronous,
            read_latency: 50_000,
            write_latency: 50_000,
            read_mb_per_s: 4096,
            write_mb_per_s: 4096,
            channels: 4,
            buses,
            stripe_kib: 16,
            seek: 0,
            priority: 0,
        };
        Device::new(&spec, 4096)
    }

    #[test]
    fn a_transfer_takes_as_long_as_its_fullest_bus() {
        for buses in [1, 2, 8] {
            let stripes = 3..35_u32;
            let mut load = vec![0; usize::from(buses)];
            stripes.clone().for_each(|stripe| load[bus_of(stripe, buses.into())] += 1);
            let fullest = 4000 * u64::from(buses) * load.iter().max().expect("a bus");
            let slots = stripes.start * 4..stripes.end * 4;
            let done = device(buses).queue(7, slots, Direction::Read, 0);
            assert_eq!(done, 7 + 50_000 + fullest, "{buses} buses: {load:?}");
        }
    }

    #[test]
    fn buses_together_carry_what_the_device_does() {
        let mut flash = device(8);
        let all = flash.carry(0, 0..4096, Direction::Write);
        let busy: u64 = flash.buses.iter().sum();
        assert_eq!(busy, 8 * 4096 * 1000, "each page is eight times as long on its bus");
        assert!((4_096_000..6_000_000).contains(&all), "{all}: drawn, so not quite even");
    }
}
