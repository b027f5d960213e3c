//! Virtual devices: queueing in virtual time, slot contents, and checks of both.
//!
//! ```text
//! start:  mark frames and slots busy -> compute the completion time (device.rs)
//! finish: wait for it -> move the contents -> clear the marks
//! ```
//! A synchronous device is memory: the CPU copies, and spins while the bus is busy. An asynchronous
//! device transfers while the thread sleeps. A slot must be written before it is read, and takes
//! part in either one write or several reads at a time; otherwise the simulator panics.

use crate::Sim;
use crate::contents::Words;
use crate::device::Device;
use crate::engine::{Bar, Engine};
use crate::machine::{Answer, Role};
use highwater_platform::{Block, DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
use highwater_units::NodeId;
use std::ops::Range;
use std::sync::Arc;

/// The errno of a failed transfer.
const EIO: i32 = 5;
/// Length of an injected stall, ns.
const STALL: u64 = 20_000_000;

/// Pages per request of a direct read by the program: the kernel's bio.
const DIRECT_PART: u64 = 256;

/// The injected outcome of a transfer.
struct Fate {
    outcome: Result<(), IoError>,
    /// Pages that a read fills: all, or the first few of a failed read.
    pages: usize,
    delay: u64,
    /// The contents that a write stores if the device samples them at its start; otherwise empty.
    early: Vec<Arc<Words>>,
}

/// A batch in flight on a device.
pub struct Transfer {
    device: u8,
    direction: Direction,
    answer: Answer,
    begin: u64,
    /// Completion time of the last page; 0: already complete.
    done: u64,
    fates: Vec<Fate>,
}

impl Sim {
    /// Draws the outcome of a transfer.
    fn fate(&self, engine: &Engine, io: &Io, direction: Direction) -> Fate {
        let faults = self.injected_faults();
        let fails = match direction {
            Direction::Read => faults.inject(engine, |t| &t.reads),
            Direction::Write => faults.inject(engine, |t| &t.writes),
        };
        let full = direction == Direction::Write && faults.inject(engine, |t| &t.full);
        let outcome = match (fails, full) {
            (_, true) => Err(IoError::Full),
            (true, _) => Err(IoError::Failed(EIO)),
            _ => Ok(()),
        };
        let pages = match outcome {
            Ok(()) => io.frames.len(),
            Err(_) if faults.inject(engine, |t| &t.short) => {
                engine.draw(io.frames.len() as u64) as usize
            }
            Err(_) => 0,
        };
        let slow = if faults.inject(engine, |t| &t.delays) { 100 } else { 0 };
        let stall = if faults.inject(engine, |t| &t.stalls) { STALL } else { 0 };
        let early = if direction == Direction::Write && engine.draw(2) == 0 {
            self.contents().with(|c| io.frames.iter().map(|f| c.get(f).clone()).collect())
        } else {
            Vec::new()
        };
        Fate { outcome, pages, delay: slow * self.delay_unit() + stall, early }
    }

    /// A synchronous device: the CPU copies the pages, and spins while the bus is busy.
    fn copy_through(&self, index: u8, batch: &[Io], direction: Direction) {
        let (engine, device) = (self.engine(), &self.devices()[usize::from(index)]);
        let costs = &engine.machine.costs;
        let own = engine.machine.node_of(engine.running_cpu());
        for io in batch {
            let away = device.with(|device| device.spec().node) != own.0;
            engine.sync();
            let begin = engine.now().0;
            let free = device.with(|device| device.carry(begin, slots(io), direction));
            let page = |pfn: highwater_units::Pfn| {
                if away {
                    (costs.copy_page as f64 * costs.remote_factor) as u64
                } else {
                    self.remote(pfn, costs.copy_page)
                }
            };
            engine.charge(costs.io_synchronous + io.frames.iter().map(page).sum::<u64>());
            engine.spin_until(free);
            self.trace_transfer(index, io, direction, begin);
        }
    }

    /// An asynchronous device: queues the batch. Returns its completion time.
    fn queue_up(&self, index: u8, batch: &[Io], fates: &[Fate], direction: Direction) -> u64 {
        let (engine, device) = (self.engine(), &self.devices()[usize::from(index)]);
        let mut done = 0;
        for (io, fate) in batch.iter().zip(fates) {
            engine.charge(engine.machine.costs.io_submit);
            engine.sync();
            let now = engine.now().0;
            let end = device.with(|device| device.queue(now, slots(io), direction, fate.delay));
            done = done.max(end);
        }
        done
    }

    /// Sleeps until the batch has completed.
    fn wait_for(&self, transfer: &Transfer, batch: &[Io]) {
        let engine = self.engine();
        let now = engine.now().0;
        if transfer.done > now {
            engine.sleep(Some(transfer.done - now), "a device");
        } else {
            engine.sync();
        }
        engine.charge(engine.machine.costs.io_complete * batch.len() as u64);
        let Transfer { device, direction, begin, .. } = *transfer;
        batch.iter().for_each(|io| self.trace_transfer(device, io, direction, begin));
    }

    fn trace_transfer(&self, index: u8, io: &Io, direction: Direction, begin: u64) {
        let engine = self.engine();
        let end = engine.now().0;
        engine.trace(|_| Bar::transfer(index, direction.name(), io.frames.len(), begin, end));
    }

    fn move_contents(&self, index: u8, io: &Io, fate: &Fate, direction: Direction) {
        let device = &self.devices()[usize::from(index)];
        match direction {
            Direction::Read => {
                let pages = device.with(|device| device.end_read(io));
                self.contents().with(|contents| {
                    for (at, (pfn, words)) in io.frames.iter().zip(pages).enumerate() {
                        if at < fate.pages { contents.set(pfn, words) } else { contents.spoil(pfn) }
                    }
                });
            }
            Direction::Write => {
                let late = || {
                    self.contents().with(|c| {
                        io.frames.iter().map(|pfn| c.get(pfn).clone()).collect::<Vec<_>>()
                    })
                };
                let words = if fate.early.is_empty() { late() } else { fate.early.clone() };
                device.with(|device| device.end_write(io, words, fate.outcome));
            }
        }
    }

    /// Sets the contents of a device before the simulation starts.
    pub fn preset(&self, device: u8, page: impl Fn(u32) -> Arc<Words>) {
        self.devices()[usize::from(device)].with(|device| device.preset(page));
    }

    /// A direct read (O_DIRECT) of slots into the program's own memory, as one transfer. Calls
    /// `see` with the contents of each slot. The CPU time covers pinning the program's pages and
    /// submitting requests of 1 MiB. Never fails. A synchronous device copies nothing.
    pub fn read_past(&self, device: u8, slots: Range<u32>, mut see: impl FnMut(u32, &Words)) {
        let (engine, device) = (self.engine(), &self.devices()[usize::from(device)]);
        let costs = &engine.machine.costs;
        let parts = u64::from(slots.end - slots.start).div_ceil(DIRECT_PART);
        let pages = u64::from(slots.end - slots.start);
        engine.charge(costs.io_submit * parts + 2 * costs.atomic * pages);
        engine.sync();
        let now = engine.now().0;
        let done = device.with(|device| device.queue(now, slots.clone(), Direction::Read, 0));
        engine.sleep(Some(done.saturating_sub(now)), "a device");
        engine.charge(costs.io_complete * parts);
        slots.for_each(|slot| see(slot, &device.with(|device| device.page(slot))));
    }

    /// A hundredth of the delay injected into a slow transfer.
    fn delay_unit(&self) -> u64 {
        self.engine().machine.costs.wake_latency
    }
}

impl Block for Sim {
    type Transfer = Transfer;

    fn devices(&self) -> Vec<DeviceInfo> {
        let info = |device: &Device| DeviceInfo {
            name: device.spec().name.clone(),
            pages: device.pages(),
            latency: match device.spec().answer {
                Answer::Synchronous => Latency::Synchronous,
                Answer::Asynchronous => Latency::Asynchronous,
            },
            medium: match device.spec().seek {
                0 => Medium::SolidState,
                _ => Medium::Rotational,
            },
            node: Some(NodeId(device.spec().node)),
            priority: Some(device.spec().priority),
            role: match device.spec().role {
                Role::Swap => DeviceRole::Swap,
                Role::File => DeviceRole::File,
                Role::Place => DeviceRole::Place,
            },
            read_only: false,
        };
        self.devices().iter().map(|device| device.with(|device| info(device))).collect()
    }

    fn read(&self, device: u8, batch: &mut [Io]) {
        let transfer = Block::start(self, device, Direction::Read, batch);
        self.finish(transfer, batch);
    }

    fn write(&self, device: u8, batch: &mut [Io]) {
        let transfer = Block::start(self, device, Direction::Write, batch);
        self.finish(transfer, batch);
    }

    fn start(&self, index: u8, direction: Direction, batch: &mut [Io]) -> Transfer {
        let engine = self.engine();
        self.flush();
        engine.sync();
        let device = &self.devices()[usize::from(index)];
        let fates: Vec<Fate> = batch.iter().map(|io| self.fate(engine, io, direction)).collect();
        for io in batch.iter() {
            device.with(|device| device.begin(io, direction));
            self.watch().with(|watch| match direction {
                Direction::Read => watch.read_in(&io.frames),
                Direction::Write => watch.write_out(&io.frames),
            });
            engine.event(64 + u64::from(index));
        }
        let (begin, answer) = (engine.now().0, device.with(|device| device.spec().answer));
        let done = match answer {
            Answer::Synchronous => {
                self.copy_through(index, batch, direction);
                0
            }
            Answer::Asynchronous => self.queue_up(index, batch, &fates, direction),
        };
        Transfer { device: index, direction, answer, begin, done, fates }
    }

    fn is_over(&self, transfer: &Transfer) -> bool {
        transfer.done <= self.engine().now().0
    }

    fn finish(&self, transfer: Transfer, batch: &mut [Io]) {
        let engine = self.engine();
        if transfer.answer == Answer::Asynchronous {
            self.wait_for(&transfer, batch);
        }
        let Transfer { device, direction, .. } = transfer;
        for (io, fate) in batch.iter_mut().zip(transfer.fates) {
            engine.event(320 + u64::from(device));
            self.watch().with(|watch| watch.end(&io.frames));
            self.move_contents(device, io, &fate, direction);
            io.result = fate.outcome;
        }
    }

    fn vacate(&self, index: u8) {
        self.devices()[usize::from(index)].with(|device| device.clear());
    }
}

/// The slots of a transfer.
fn slots(io: &Io) -> Range<u32> {
    io.slot..io.slot + io.frames.len() as u32
}
