//! A device against a model of its contents, for tests of servers.

use super::{Frames, random_batch, read, write};
use highwater_devices::Device;
use highwater_platform::{Direction, Io, IoError};
use highwater_units::{Bytes, Pfn, Prng};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const SIZE: Bytes = Bytes(8 << 20);
pub(crate) const SLOTS: u32 = 2048;
/// Far above what any step takes.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Waits until something is so.
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIME_LIMIT, "{what}: not within {TIME_LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A device with a model of its contents.
pub(crate) struct Check<'a> {
    device: &'a dyn Device,
    frames: &'a Frames,
    first: u32,
    own: Vec<Pfn>,
    model: Vec<u64>,
    random: Prng,
}

impl<'a> Check<'a> {
    /// Of `slots` slots from `first` on, by as many frames.
    pub(crate) fn new(
        device: &'a dyn Device,
        frames: &'a Frames,
        first: u32,
        slots: u32,
    ) -> Check<'a> {
        let own = (first..first + slots).map(Pfn).collect();
        let (model, random) = (vec![0; slots as usize], Prng::new(first.into()));
        Check { device, frames, first, own, model, random }
    }

    pub(crate) fn step(&mut self) {
        let slots = self.model.len() as u32;
        let start = self.random.below(slots.into()) as u32;
        let most = 1 + self.random.below(self.own.len() as u64) as usize;
        let mut batch =
            random_batch(&mut self.random, self.first + start, slots - start, &self.own[..most]);
        let pages: Vec<(u32, Pfn)> =
            batch.iter().flat_map(|io| (io.slot..).zip(io.frames.iter())).collect();
        let direction = match self.random.below(5) {
            0 => {
                let slot = self.random.below(slots.into()) as u32;
                let count = 1 + self.random.below(u64::from(slots - slot)) as u32;
                self.device.discard(self.first + slot, count);
                let freed = slot as usize..(slot + count) as usize;
                return self.model[freed].fill(0);
            }
            1 | 2 => Direction::Write,
            _ => Direction::Read,
        };
        for (slot, pfn) in &pages {
            let seed = self.random.next_u64() | 1;
            self.frames.fill(*pfn, seed);
            if direction == Direction::Write {
                self.model[(slot - self.first) as usize] = seed;
            }
        }
        self.transfer(direction, &mut batch);
        assert!(batch.iter().all(|io| io.result == Ok(())), "{direction:?}");
        for (slot, pfn) in pages {
            let expected = self.model[(slot - self.first) as usize];
            // A freed slot reads as anything.
            assert!(expected == 0 || self.frames.holds(pfn, expected), "slot {slot}");
        }
    }

    /// At once, or with the wait apart.
    fn transfer(&mut self, direction: Direction, batch: &mut [Io]) {
        let arena = self.frames.arena();
        if self.random.percent(50) {
            // SAFETY: the frames are populated, and the test keeps others off them.
            return unsafe { self.device.read_or_write(arena, direction, batch) };
        }
        // SAFETY: as above.
        if let Some(started) = unsafe { self.device.start(arena, direction, batch) } {
            while self.random.percent(50) && !self.device.is_over(&started) {}
            // SAFETY: as above; the batch that was started.
            unsafe { self.device.finish(arena, started, batch) };
        }
    }
}

/// Fills the slots from 0 on, in runs of 16.
pub(crate) fn fill(device: &dyn Device, frames: &Frames, slots: u32) -> Result<(), IoError> {
    for first in (0..slots).step_by(16) {
        (first..first + 16).for_each(|slot| frames.fill(Pfn(slot), slot.into()));
        let mut batch = [Io::new(first, (first..first + 16).map(Pfn).collect())];
        write(device, frames, &mut batch);
        batch[0].result?;
    }
    Ok(())
}

/// Reads a run of 16 slots that [`fill`] has written.
pub(crate) fn read_run(device: &dyn Device, frames: &Frames, first: u32) -> Result<(), IoError> {
    (first..first + 16).for_each(|slot| frames.fill(Pfn(slot), 0xdead));
    let mut batch = [Io::new(first, (first..first + 16).map(Pfn).collect())];
    read(device, frames, &mut batch);
    batch[0].result?;
    assert!((first..first + 16).all(|slot| frames.holds(Pfn(slot), slot.into())), "run {first}");
    Ok(())
}
