//! A device with more slots than room, like compressed memory and sparse files: it keeps a number
//! of pages, refuses others, and counts both kinds.

use highwater_devices::{Arena, Device, Lenders, Reason, Spec, open};
use highwater_platform::{DeviceInfo, Io, IoError, Latency};
use highwater_units::Bytes;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The state of a device, which a test reads and changes.
#[derive(Default)]
pub(crate) struct Room {
    /// The most pages that it keeps.
    pub(crate) pages: AtomicUsize,
    /// Every write fails.
    pub(crate) broken: AtomicBool,
    /// Pages in every third cluster are turned away.
    pub(crate) busy: AtomicBool,
    /// Writes to every third cluster fail.
    pub(crate) worn: AtomicBool,
    /// Pages of writes that were refused or that failed.
    pub(crate) refused: AtomicUsize,
    /// Writes that were refused or that failed.
    pub(crate) refusals: AtomicUsize,
    held: Mutex<BTreeSet<u32>>,
}

impl Room {
    /// The state of a device with room for `room` pages.
    pub(crate) fn of(pages: usize) -> Arc<Room> {
        Arc::new(Room { pages: AtomicUsize::new(pages), ..Room::default() })
    }

    /// The number of pages that the device keeps now.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().expect("no panic").len()
    }

    fn admit(&self, io: &Io) -> Result<(), IoError> {
        let slots = || io.slot..io.slot + io.frames.len() as u32;
        let mut held = self.held.lock().expect("no panic");
        let new = slots().filter(|slot| !held.contains(slot)).count();
        let result = if self.broken.load(Relaxed) {
            Err(IoError::Failed(5))
        } else if self.busy.load(Relaxed) && is_of_third_cluster(io.slot) {
            Err(IoError::Busy)
        } else if self.worn.load(Relaxed) && is_of_third_cluster(io.slot) {
            Err(IoError::Failed(5))
        } else if held.len() + new > self.pages.load(Relaxed) {
            Err(IoError::Full)
        } else {
            Ok(())
        };
        match result {
            Ok(()) => held.extend(slots()),
            Err(_) => {
                self.refused.fetch_add(io.frames.len(), Relaxed);
                self.refusals.fetch_add(1, Relaxed);
            }
        }
        result
    }
}

/// Whether a slot is in a third cluster, of clusters of 512 slots.
fn is_of_third_cluster(slot: u32) -> bool {
    (slot / 512).is_multiple_of(3)
}

struct Bounded {
    inner: Box<dyn Device>,
    room: Arc<Room>,
}

/// A device of `slots` slots with room for fewer pages.
pub(crate) fn bounded(slots: u64, latency: Latency, room: &Arc<Room>) -> Box<dyn Device> {
    let mut inner = open(&Spec::Ram { size: Bytes::of_pages(slots) }).expect("memory");
    inner.info_mut().latency = latency;
    Box::new(Bounded { inner, room: room.clone() })
}

impl Device for Bounded {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        self.inner.info_mut()
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.inner.read(arena, batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        for io in batch {
            io.result = self.room.admit(io);
            if io.result.is_ok() {
                // SAFETY: by contract of this function.
                unsafe { self.inner.write(arena, std::slice::from_mut(io)) };
            }
        }
    }

    fn discard(&self, slot: u32, pages: u32) {
        let mut held = self.room.held.lock().expect("no panic");
        (slot..slot + pages).for_each(|slot| {
            held.remove(&slot);
        });
        self.inner.discard(slot, pages);
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.inner.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.inner.inherit()
    }

    fn resident(&self) -> Bytes {
        self.inner.resident()
    }
}
