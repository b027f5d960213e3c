//! The contract of a swap device.

use crate::arena::Arena;
use crate::compression::Compression;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::Lenders;
use crate::replication::{LostReplica, Replication};
use crate::standby::Standby;
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, PAGE_SIZE};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// The pages that a compressing device is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Pages filled with one repeated word: they take none of its memory.
    Filled,
    /// Pages of which two take the memory of one, and filled pages.
    Small,
    /// All pages.
    Any,
}

/// A swap device of this process.
///
/// A transfer that names slots outside the device or frames outside the arena fails with EINVAL,
/// a write to a read-only device with EROFS; both are defects of the caller.
pub trait Device: Send + Sync {
    /// The device that this one wraps. By default each method below calls the wrapped device,
    /// except the methods that transfer pages.
    fn inner(&self) -> Option<&dyn Device> {
        None
    }

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

    /// [`Device::read`] or [`Device::write`].
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn read_or_write(&self, arena: Arena, direction: Direction, batch: &mut [Io]) {
        match direction {
            // SAFETY: by contract of this function.
            Direction::Read => unsafe { self.read(arena, batch) },
            // SAFETY: by contract of this function.
            Direction::Write => unsafe { self.write(arena, batch) },
        }
    }

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
        // SAFETY: by contract of this function.
        unsafe { self.read_or_write(arena, direction, batch) };
        None
    }

    /// Whether [`Device::finish`] would return without waiting.
    fn is_over(&self, started: &Started) -> bool {
        self.inner().is_none_or(|inner| inner.is_over(started))
    }

    /// Whether [`Device::await_over`] keeps to its limit, and [`Device::cancel`] works.
    fn can_cancel(&self) -> bool {
        self.inner().is_some_and(|inner| inner.can_cancel())
    }

    /// Waits up to `most` for a batch that was started; returns whether [`Device::finish`] would
    /// return without waiting.
    fn await_over(&self, started: &Started, most: Duration) -> bool {
        match self.inner() {
            Some(inner) => inner.await_over(started, most),
            None => self.is_over(started),
        }
    }

    /// Ends a batch of reads that was started, in place of [`Device::finish`]: its frames are not
    /// touched any more, and no `result` is set.
    fn cancel(&self, started: Started) {
        self.inner().expect("a device that can cancel").cancel(started);
    }

    /// Waits for a batch that this thread started and sets every `result`. Each started batch must
    /// be finished: its queue is in use until then.
    ///
    /// # Safety
    /// `batch` holds the transfers that were started; it may have moved in memory.
    unsafe fn finish(&self, _arena: Arena, _started: Started, _batch: &mut [Io]) {
        unreachable!("this device has no queue");
    }

    /// [`Device::write`] of the pages that the offer names; the others are refused as if the device
    /// were full. For a device that does not compress, all pages are small and none is filled.
    ///
    /// # Safety
    /// As for [`Device::write`].
    unsafe fn write_offer(&self, arena: Arena, batch: &mut [Io], offer: Offer) {
        match offer {
            Offer::Filled => batch.iter_mut().for_each(|io| io.result = Err(IoError::Full)),
            // SAFETY: by contract of this function.
            Offer::Small | Offer::Any => unsafe { self.write(arena, batch) },
        }
    }

    /// Frees the contents of slots that no other thread uses. Until they are written again, reads
    /// of them return arbitrary contents.
    fn discard(&self, slot: u32, pages: u32) {
        if let Some(inner) = self.inner() {
            inner.discard(slot, pages);
        }
    }

    /// Frees the contents of all slots, their memory or disk space, and all room that was taken for
    /// them. No slot is in use, here or by a forked child.
    fn vacate(&self) {
        if let Some(inner) = self.inner() {
            inner.vacate();
        }
    }

    /// The bytes that discarding a slot would free.
    fn footprint(&self, slot: u32) -> usize {
        self.inner().map_or(PAGE_SIZE, |inner| inner.footprint(slot))
    }

    /// Makes the device take room for its contents from lenders, one for each of its levels
    /// ([`Spec::levels`](crate::Spec::levels)). Lenders grant room that devices of several
    /// processes share. Called at most once, before the device is used.
    ///
    /// # Errors
    /// The system is out of memory.
    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason>;

    /// Whether the room that a slot takes is wanted for other pages: most of the room that devices
    /// of several processes share is in use.
    fn is_scarce(&self, slot: u32) -> bool {
        self.inner().is_some_and(|inner| inner.is_scarce(slot))
    }

    /// Makes all finished writes durable against a loss of power. No effect on devices whose
    /// contents end with the process.
    ///
    /// # Errors
    /// The system's error; earlier writes may be lost.
    fn sync(&self) -> Result<(), IoError> {
        self.inner().map_or(Ok(()), |inner| inner.sync())
    }

    /// The body of one of the device's background threads; `None`: all have been returned. The
    /// caller starts the threads, which end when the device is dropped.
    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.inner().and_then(|inner| inner.thread())
    }

    /// Stops the background thread until [`Device::resume`]: once this returns, the thread changes
    /// nothing. Called before a fork, without locks that a transfer needs, and undone in the
    /// parent.
    fn pause(&self) {
        if let Some(inner) = self.inner() {
            inner.pause();
        }
    }

    /// Undoes one [`Device::pause`].
    fn resume(&self) {
        if let Some(inner) = self.inner() {
            inner.resume();
        }
    }

    /// A read-only device with these contents, for a forked child. The child calls this method
    /// before any other use of its parent's device, and may only drop that device afterwards. The
    /// parent does not overwrite slots that the child still needs.
    fn inherit(&self) -> Box<dyn Device>;

    /// Memory that the contents take, which counts against the user's memory limit.
    fn resident(&self) -> Bytes;

    /// From now on, moves contents out of memory, where they can be moved, until the rest takes at
    /// most `most`. No effect on devices of one level.
    fn limit_resident(&self, most: Bytes) {
        if let Some(inner) = self.inner() {
            inner.limit_resident(most);
        }
    }

    /// Memory that the device takes for itself while it is used, beside its contents.
    fn tables(&self) -> Bytes {
        self.inner().map_or(Bytes(0), |inner| inner.tables())
    }

    /// Statistics of compression; `None` if the device does not compress.
    fn compression(&self) -> Option<Compression> {
        self.inner().and_then(|inner| inner.compression())
    }

    /// Statistics of the levels; `None` if the device has one level, or is inherited.
    fn tiering(&self) -> Option<Tiering> {
        self.inner().and_then(|inner| inner.tiering())
    }

    /// Whether a read found a page that differs from the last one written to its slot. That read
    /// failed with EBADMSG.
    fn altered(&self) -> bool {
        self.inner().is_some_and(|inner| inner.altered())
    }

    /// Transfers that an injected fault has struck.
    fn injected(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.injected())
    }

    /// Whether the contents are on a server. A forked child then has to register with the server
    /// before its parent ends, by [`Device::inherit`].
    fn is_remote(&self) -> bool {
        self.inner().is_some_and(|inner| inner.is_remote())
    }

    /// Called when the process ends: makes contents that outlive it unreadable, and deletes pages
    /// on a server that no other process needs. Transfers fail from now on.
    fn forget(&self) {
        if let Some(inner) = self.inner() {
            inner.forget();
        }
    }

    /// Tells the device that `standby` has the same pages from now on: a server that does not
    /// answer is given up soon and not used any more, unless it is the last one.
    fn stand_by(&self, standby: &Standby) {
        if let Some(inner) = self.inner() {
            inner.stand_by(standby);
        }
    }

    /// Statistics of its replicas; `None` if it has none.
    fn replication(&self) -> Option<Replication> {
        self.inner().and_then(|inner| inner.replication())
    }

    /// The replica that is not used any more, if there is one.
    fn lost_replica(&self) -> Option<LostReplica> {
        self.inner().and_then(|inner| inner.lost_replica())
    }

    /// The descriptors that [`Device::inherit`] uses. A child that has not inherited these
    /// descriptors is given copies with the same numbers before that call.
    fn descriptors(&self) -> Vec<RawFd> {
        self.inner().map_or_else(Vec::new, |inner| inner.descriptors())
    }

    /// Sets the numbers that copies of [`Device::descriptors`] have in another process that shares
    /// this memory, in the same order.
    fn set_copies(&self, copies: &[RawFd]) {
        if let Some(inner) = self.inner() {
            inner.set_copies(copies);
        }
    }

    /// [`Device::read`] in a process that has a copy of the device's file; `false`: another process
    /// has to do the read, and no `result` is set.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn read_by(&self, _copy: BorrowedFd<'_>, _arena: Arena, _batch: &mut [Io]) -> bool {
        false
    }
}
