//! The contract of a swap device.

use crate::arena::Arena;
use crate::compression::Compression;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::Lenders;
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, PAGE_SIZE};
use std::os::fd::{BorrowedFd, RawFd};

/// A swap device of this process.
///
/// A transfer that names slots outside the device or frames outside the arena fails with EINVAL,
/// a write to a read-only device with EROFS; both are defects of the caller.
pub trait Device: Send + Sync {
    /// The properties that the manager needs. Constant while the device is used.
    fn info(&self) -> DeviceInfo;

    /// [`Device::info`] for changes by the user's options, before the device is used.
    fn info_mut(&mut self) -> &mut DeviceInfo;

    /// Reads the batch, waits for all transfers and sets every `result`. After an error the
    /// contents of that transfer's frames are undefined. A slot that was never written reads as
    /// zeros.
    ///
    /// # Safety
    /// The frames are populated memory of `arena`, and no other thread touches them meanwhile.
    unsafe fn read(&self, arena: Arena, batch: &mut [Io]);

    /// Writes the batch, waits for all transfers and sets every `result`. After an error the
    /// contents of that transfer's slots are undefined.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn write(&self, arena: Arena, batch: &mut [Io]);

    /// Starts the batch without waiting, if the device has a queue. `None`: all transfers are done,
    /// and every `result` is set.
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
            // SAFETY: by contract of this function.
            Direction::Read => unsafe { self.read(arena, batch) },
            // SAFETY: by contract of this function.
            Direction::Write => unsafe { self.write(arena, batch) },
        }
        None
    }

    /// Whether [`Device::finish`] would return without waiting.
    fn is_over(&self, _started: &Started) -> bool {
        true
    }

    /// Waits for a batch that this thread started and sets every `result`. Each started batch must
    /// be finished: its queue is in use until then.
    ///
    /// # Safety
    /// `batch` holds the transfers that were started; it may have moved in memory.
    unsafe fn finish(&self, _arena: Arena, _started: Started, _batch: &mut [Io]) {
        unreachable!("this device has no queue");
    }

    /// Frees the contents of slots that no other thread uses. Until they are written again, reads
    /// of them return anything.
    fn discard(&self, _slot: u32, _pages: u32) {}

    /// Frees the contents of all slots, their memory or disk space, and all room that was taken for
    /// them. No slot is in use, here or by a forked child.
    fn vacate(&self) {}

    /// The bytes that discarding a slot would free.
    fn footprint(&self, _slot: u32) -> usize {
        PAGE_SIZE
    }

    /// Lets the contents of the device take room that devices of several processes share, from a
    /// lender for each of its levels ([`Spec::levels`](crate::Spec::levels)). Called once at most,
    /// before the device is used.
    ///
    /// # Errors
    /// The system is out of memory.
    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason>;

    /// Whether most of the room that devices of several processes share is in use.
    fn is_scarce(&self) -> bool {
        false
    }

    /// Makes all finished writes durable against a loss of power. No effect on devices whose
    /// contents end with the process.
    ///
    /// # Errors
    /// The system's error; earlier writes may be lost.
    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// The body of the device's background thread, at the first call; `None` if it has none. The
    /// caller starts the thread, which ends when the device is dropped.
    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }

    /// Stops the background thread until [`Device::resume`]: when this returns it changes nothing.
    /// Called before a fork, without locks that a transfer needs, and undone in the parent.
    fn pause(&self) {}

    /// Undoes one [`Device::pause`].
    fn resume(&self) {}

    /// A read-only device with these contents, for a forked child. The child calls it before any
    /// other use of its parent's device, and may only drop that device afterwards. The parent does
    /// not overwrite slots that the child still needs.
    fn inherit(&self) -> Box<dyn Device>;

    /// Memory that the contents take, which counts against the user's memory limit.
    fn resident(&self) -> Bytes;

    /// Memory that the device itself takes as it is used, beside its contents.
    fn tables(&self) -> Bytes {
        Bytes(0)
    }

    /// Statistics of compression; `None` if the device does not compress.
    fn compression(&self) -> Option<Compression> {
        None
    }

    /// Statistics of the levels; `None` if it has one level, or is inherited.
    fn tiering(&self) -> Option<Tiering> {
        None
    }

    /// Whether a read found a page that is not what was written last to its slot. That transfer
    /// failed with EBADMSG.
    fn altered(&self) -> bool {
        false
    }

    /// Transfers that an injected fault has struck.
    fn injected(&self) -> u64 {
        0
    }

    /// Makes contents that outlive the process unreadable: it ends. Transfers fail from now on.
    fn forget(&self) {}

    /// The descriptors that [`Device::inherit`] uses. A child that has not inherited them gets
    /// copies with the same numbers before.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Tells the numbers that copies of [`Device::descriptors`] have in another process with this
    /// memory, in their order.
    fn set_copies(&self, _copies: &[RawFd]) {}

    /// [`Device::read`] in a process that has a copy of the device's file; `false`: it has to be
    /// done elsewhere, and no `result` is set.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn read_by(&self, _copy: BorrowedFd<'_>, _arena: Arena, _batch: &mut [Io]) -> bool {
        false
    }
}
