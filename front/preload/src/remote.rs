//! A swap file, or a server, as threads of the program use it.
//!
//! ```text
//! thread of the helper   ------------------------------> the file's device
//! thread of the program  -- one read --> preadv by the program's copy of the descriptor
//!                        \- all else ---> Calls --> the file's device, in the helper
//! ```
//! A read that takes no other thread is twice as fast. But the program may close its copy past the
//! C library, and the number may become another file's. So the descriptor is checked after each
//! read: a number once lost never becomes the swap file's again. A write cannot be checked this
//! way: its data would be in the other file by then. Only the helper uses connections to a server.

use crate::process::running;
use highwater_devices::{Arena, Device, Lenders, Reason, Started};
use highwater_os::helper;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::Bytes;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A device of a file or a server.
pub(crate) struct Remote {
    device: Box<dyn Device>,
    copy: OnceLock<Copied>,
}

/// The program's copy of a descriptor.
struct Copied {
    number: RawFd,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// The program has closed it.
    lost: AtomicBool,
}

impl Copied {
    fn of(number: RawFd) -> Option<Copied> {
        let copy = Copied { number, identity: (0, 0), lost: AtomicBool::new(false) };
        Some(Copied { identity: helper::identity_of(copy.borrow())?, ..copy })
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: guarded against the C library's functions; if it is closed all the same, the
        // operation is repeated.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }

    /// Whether the number is still that of the file.
    fn is_whole(&self) -> bool {
        let whole = helper::identity_of(self.borrow()) == Some(self.identity);
        if !whole {
            self.lost.store(true, Relaxed);
        }
        whole
    }
}

impl Remote {
    /// A device that threads of the program can use, too.
    pub(crate) fn of(device: Box<dyn Device>) -> Box<dyn Device> {
        Box::new(Remote { device, copy: OnceLock::new() })
    }

    /// Reads by the program's copy; `false`: the helper has to.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn read_here(&self, arena: Arena, batch: &mut [Io]) -> bool {
        let Some(copy) = self.copy.get().filter(|copy| !copy.lost.load(Relaxed)) else {
            return false;
        };
        // SAFETY: by contract.
        unsafe { self.device.read_by(copy.borrow(), arena, batch) && copy.is_whole() }
    }
}

/// Runs `act` in the helper. Paged memory exists only in a process that is served.
fn there<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    match running() {
        Some(process) => process.in_helper(act),
        None => act(),
    }
}

impl Device for Remote {
    fn inner(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        self.device.info_mut()
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract.
        if helper::is_inside() || !unsafe { self.read_here(arena, batch) } {
            // SAFETY: by contract.
            there(|| unsafe { self.device.read(arena, batch) });
        }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract.
        there(|| unsafe { self.device.write(arena, batch) });
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        if helper::is_inside() {
            // SAFETY: by contract.
            return unsafe { self.device.start(arena, direction, batch) };
        }
        // SAFETY: by contract.
        unsafe { self.read_or_write(arena, direction, batch) };
        None
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        // SAFETY: by contract; only threads of the helper have started batches.
        unsafe { self.device.finish(arena, started, batch) };
    }

    fn discard(&self, slot: u32, pages: u32) {
        // Slots are bookkeeping in memory; and this is called under a lock.
        self.device.discard(slot, pages);
    }

    fn vacate(&self) {
        there(|| self.device.vacate());
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.device.share_room(next)
    }

    fn sync(&self) -> Result<(), IoError> {
        there(|| self.device.sync())
    }

    fn inherit(&self) -> Box<dyn Device> {
        Remote::of(self.device.inherit())
    }

    fn resident(&self) -> Bytes {
        self.device.resident()
    }

    fn set_copies(&self, copies: &[RawFd]) {
        if let [number] = copies
            && let Some(copy) = Copied::of(*number)
        {
            let _ = self.copy.set(copy);
        }
    }
}
