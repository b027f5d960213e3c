//! A device: channels and a bus in time, slots with contents.
//!
//! ```text
//! transfer --> the channel that is free first: latency (and a seek) --> the bus: bytes/bandwidth
//! ```
//! With one channel and a fast bus this is a queue with constant service (M/D/1); with many, a
//! device whose latency at depth 1 and throughput at depth are both what its file says.

use crate::machine::{DeviceSpec, Role};
use crate::memory::{Words, filled};
use highwater_platform::{Direction, Io, IoError};
use highwater_units::PAGE_SIZE;
use std::sync::Arc;

/// What is behind a slot.
#[derive(Clone)]
enum Behind {
    /// Nobody wrote it yet.
    Nothing,
    /// A write failed: anything.
    Garbage,
    Page(Arc<Words>),
}

#[derive(Clone)]
struct Slot {
    behind: Behind,
    readers: u16,
    writing: bool,
}

/// A device at work.
pub(crate) struct Device {
    spec: DeviceSpec,
    slots: Vec<Slot>,
    /// When each channel is free.
    channels: Vec<u64>,
    /// When the bus is.
    bus: u64,
    /// The slot after the last transfer.
    head: u32,
}

impl Device {
    pub(crate) fn new(spec: &DeviceSpec, pages: u32) -> Device {
        let behind = match spec.role {
            Role::Swap => Behind::Nothing,
            Role::File => Behind::Page(filled(0)),
        };
        let slot = Slot { behind, readers: 0, writing: false };
        Device {
            slots: vec![slot; pages as usize],
            channels: vec![0; usize::from(spec.channels)],
            bus: 0,
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

    /// Takes the bus for some pages, from `now` or when it is free; returns until when.
    pub(crate) fn bus(&mut self, now: u64, pages: usize, direction: Direction) -> u64 {
        let mb_per_s = match direction {
            Direction::Read => self.spec.read_mb_per_s,
            Direction::Write => self.spec.write_mb_per_s,
        };
        let nanos = (pages * PAGE_SIZE) as u64 * 1000 / mb_per_s;
        self.bus = self.bus.max(now) + nanos;
        self.bus
    }

    /// Queues a transfer that arrives `now`; returns when it is done.
    pub(crate) fn queue(&mut self, now: u64, io: &Io, direction: Direction, delay: u64) -> u64 {
        let latency = match direction {
            Direction::Read => self.spec.read_latency,
            Direction::Write => self.spec.write_latency,
        };
        let seek = if self.head == io.slot { 0 } else { self.spec.seek };
        self.head = io.slot + io.frames.len() as u32;
        let channel = self.channels.iter_mut().min().expect("a device has a channel");
        *channel = (*channel).max(now) + latency + seek + delay;
        let ready = *channel;
        self.bus(ready, io.frames.len(), direction)
    }

    fn slots_of(&mut self, io: &Io) -> &mut [Slot] {
        let first = io.slot as usize;
        &mut self.slots[first..first + io.frames.len()]
    }

    /// A transfer begins.
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

    /// A read ends; returns the pages.
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

    /// A write ends. What of a failed one was made nobody may count on: the slots hold garbage.
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
