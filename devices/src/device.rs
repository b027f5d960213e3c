//! The contract of a swap device.

use crate::arena::Arena;
use crate::compression::Compression;
use crate::pool::Started;
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, PAGE_SIZE};
use std::os::fd::RawFd;

/// A swap device of this process.
///
/// A transfer that names slots outside the device or frames outside the arena fails with EINVAL,
/// a write to a read-only device with EROFS; both are defects of the caller.
pub trait Device: Send + Sync {
    /// What the manager needs to know of it. Constant.
    fn info(&self) -> DeviceInfo;

    /// The same, for what the user knows better, before the device is used.
    fn info_mut(&mut self) -> &mut DeviceInfo;

    /// Reads every transfer of the batch and waits for them; sets every `result`. After an error
    /// the frames of that transfer hold anything. A slot never written reads as zeros.
    ///
    /// # Safety
    /// The frames named are populated memory of `arena`, and nobody else touches them meanwhile.
    unsafe fn read(&self, arena: Arena, batch: &mut [Io]);

    /// Writes likewise. After an error the slots of that transfer hold anything.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn write(&self, arena: Arena, batch: &mut [Io]);

    /// Begins every transfer of the batch, and goes on without them where a queue takes them.
    /// `None`: they were made at once, and every `result` is set.
    ///
    /// # Safety
    /// As for [`Device::read`], until [`Device::finish`] has returned.
    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        match direction {
            // SAFETY: as the caller promises.
            Direction::Read => unsafe { self.read(arena, batch) },
            // SAFETY: as the caller promises.
            Direction::Write => unsafe { self.write(arena, batch) },
        }
        None
    }

    /// Whether finishing would not wait.
    fn is_over(&self, _started: &Started) -> bool {
        true
    }

    /// Waits for what this thread started here; sets every `result`. Every batch that was started
    /// is to be finished: its queue is in use until then.
    ///
    /// # Safety
    /// `batch` is what it was then, wherever it is now.
    unsafe fn finish(&self, _arena: Arena, _started: Started, _batch: &mut [Io]) {
        unreachable!("this device makes all transfers at once");
    }

    /// The slots hold nothing any more: what they took may be used for others. Until they are
    /// written again they read as anything. Nobody else uses them meanwhile.
    fn discard(&self, _slot: u32, _pages: u32) {}

    /// Bytes that discarding a slot would free.
    fn footprint(&self, _slot: u32) -> usize {
        PAGE_SIZE
    }

    /// Makes what was written durable: it is there after a loss of power. Nothing for a device
    /// whose contents end with the process.
    ///
    /// # Errors
    /// The system's; what was written before may be lost.
    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// What a thread is to do that moves contents of the device's own accord, the first time this
    /// is asked; the caller makes the thread, which ends when the device is dropped.
    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }

    /// From now on the device moves no contents of its own accord, until [`Device::resume`]. To be
    /// called before a fork, with nothing else held that a transfer needs, and taken back in the
    /// parent.
    fn pause(&self) {}

    /// Takes one [`Device::pause`] back.
    fn resume(&self) {}

    /// The same content for a forked child, read-only. To be called in the child before anything
    /// else is done with a device of its parent; of the parent's device only dropping is left then.
    /// The parent promises not to overwrite slots that the child still needs.
    fn inherit(&self) -> Box<dyn Device>;

    /// Memory that the contents take. Whoever keeps within a budget counts it.
    fn resident(&self) -> Bytes;

    /// What it holds compressed, and what that takes; `None` if it does not compress.
    fn compression(&self) -> Option<Compression> {
        None
    }

    /// What it has at which level; `None` if it has one level, or is inherited.
    fn tiering(&self) -> Option<Tiering> {
        None
    }

    /// The descriptors that [`Device::inherit`] needs. A child that has not inherited them is given
    /// copies under the same numbers.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}
