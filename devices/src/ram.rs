//! Swap in memory beside the budget: swapping a page out or in is a copy.
//!
//! ```text
//! Ram -> Arc<Store>   slots: Mapping, one page per slot     backed: slots with memory
//!     -> SlotQuota    room that several processes share
//! ```
//! Locks: none. The caller never makes two transfers of one slot at once. A slot enters `backed`
//! after it got memory, and stays there.
//!
//! Slots get memory when they are first written, by MADV_POPULATE_WRITE: one call for a run, where
//! touching the pages would fault 16 times. The kernel can refuse this call with an error, but not
//! a touch: the transfer ends as `Full`, and the process survives.
//!
//! At the limit of a memory control group the kernel does not refuse (seen on 6.18): it kills a
//! process of the group, or blocks the caller if the OOM killer is off (version 1). User space
//! cannot turn that into an error, so budget and `ram:` devices together must lie below the limit.
//! This applies to the copies, too, that the kernel makes when a parent overwrites slots that it
//! still shares with a forked child.

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::quota::{Lenders, SlotQuota};
use crate::slot_set::SlotSet;
use crate::spec::Spec;
use crate::sys::{Mapping, io_error};
use crate::transfer::admit;
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
use highwater_units::{Bytes, PAGE_SHIFT, PAGE_SIZE};
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots in memory.
pub(crate) struct Ram {
    info: DeviceInfo,
    store: Arc<Store>,
    quota: SlotQuota,
}

struct Store {
    slots: Mapping,
    backed: SlotSet,
    pages: AtomicU64,
}

impl Ram {
    /// Reserves address space; slots get memory when they are written.
    pub(crate) fn open(spec: &Spec) -> Result<Ram, Reason> {
        let pages = spec.pages();
        let info = DeviceInfo {
            name: spec.to_string(),
            pages,
            latency: Latency::Synchronous,
            medium: Medium::SolidState,
            node: None,
            priority: None,
            role: DeviceRole::Swap,
            read_only: false,
        };
        let store = Store::new(pages).map_err(no_memory)?;
        Ok(Ram { info, store: Arc::new(store), quota: SlotQuota::default() })
    }

    fn prepare(&self, direction: Direction, arena: Arena, io: &Io) -> Result<(), IoError> {
        admit(&self.info, direction, arena, io)?;
        match direction {
            Direction::Read => Ok(()),
            Direction::Write => {
                self.quota.take(io)?;
                self.store.back(io.slot, io.frames.len() as u32)
            }
        }
    }

    /// # Safety
    /// As for [`Device::read`].
    unsafe fn transfer(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        for io in batch {
            io.result = self.prepare(direction, arena, io);
            if io.result.is_ok() {
                // SAFETY: the transfer was admitted, and the caller vouches for the frames.
                unsafe { self.copy(direction, arena, io) };
            }
        }
    }

    /// # Safety
    /// As for [`Device::read`], and the transfer was admitted.
    unsafe fn copy(&self, direction: Direction, arena: Arena, io: &Io) {
        for (offset, frames, pages) in arena.stretches(io.frames.iter()) {
            let slots = self.store.slots.at((io.slot as usize + offset) << PAGE_SHIFT);
            let len = pages * PAGE_SIZE;
            // SAFETY: an admitted transfer lies within slots and arena, which do not overlap; no
            // other thread touches the frames and slots meanwhile.
            unsafe {
                match direction {
                    Direction::Read => copy_nonoverlapping(slots, frames, len),
                    Direction::Write => copy_nonoverlapping(frames, slots, len),
                }
            }
        }
    }
}

impl Device for Ram {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.transfer(Direction::Read, arena, batch) }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.transfer(Direction::Write, arena, batch) }
    }

    fn discard(&self, slot: u32, pages: u32) {
        self.quota.discard(slot, pages);
    }

    fn vacate(&self) {
        self.quota.put_spare();
        self.store.vacate();
    }

    fn is_scarce(&self, _slot: u32) -> bool {
        self.quota.is_scarce()
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.quota.share(self.info.pages, next()).map_err(no_memory)
    }

    fn inherit(&self) -> Box<dyn Device> {
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        // Read-only: it takes no room.
        let quota = SlotQuota::default();
        Box::new(Ram { info, store: Arc::clone(&self.store), quota })
    }

    fn resident(&self) -> Bytes {
        Bytes::of_pages(self.store.pages.load(Relaxed))
    }
}

fn no_memory(errno: i32) -> Reason {
    Reason::from_errno("map memory", errno)
}

impl Store {
    fn new(pages: u32) -> Result<Store, i32> {
        Ok(Store {
            slots: Mapping::new((pages as usize) << PAGE_SHIFT)?,
            backed: SlotSet::new(pages)?,
            pages: AtomicU64::new(0),
        })
    }

    /// Frees the memory of all slots.
    fn vacate(&self) {
        self.backed.clear();
        self.pages.store(0, Relaxed);
        // SAFETY: no slot is in use (contract of Device::vacate).
        unsafe { self.slots.give_back(0, self.slots.len()) };
    }

    /// Populates slots that have no memory yet.
    fn back(&self, slot: u32, pages: u32) -> Result<(), IoError> {
        if self.backed.missing(slot, pages) == 0 {
            return Ok(());
        }
        let (offset, len) = ((slot as usize) << PAGE_SHIFT, (pages as usize) << PAGE_SHIFT);
        let populated = self.slots.populate(offset, len);
        populated.map_err(|errno| io_error(Direction::Write, errno))?;
        let new = self.backed.insert(slot, pages);
        self.pages.fetch_add(new.into(), Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_slots_take_memory() {
        let ram = Ram::open(&Spec::Ram { size: Bytes(1 << 30) }).unwrap();
        assert_eq!(ram.resident(), Bytes(0));
        for (slot, pages, total) in [(60, 16, 16), (70, 16, 26), (0, 1, 27), (60, 26, 27)] {
            ram.store.back(slot, pages).unwrap();
            assert_eq!(ram.resident(), Bytes::of_pages(total));
        }
        let mut held = [0u8; 128];
        let (slots, len) = (ram.store.slots.at(0), held.len() << PAGE_SHIFT);
        // SAFETY: a range of the mapping, and a buffer with one byte per page of it.
        let status = unsafe { libc::mincore(slots.cast(), len, held.as_mut_ptr()) };
        assert_eq!(status, 0);
        let backed = |slot: usize| slot == 0 || (60..86).contains(&slot);
        assert!(held.iter().enumerate().all(|(slot, held)| (held & 1 == 1) == backed(slot)));
        ram.vacate();
        // SAFETY: as above.
        let status = unsafe { libc::mincore(slots.cast(), len, held.as_mut_ptr()) };
        assert!(status == 0 && held.iter().all(|held| held & 1 == 0));
        assert_eq!(ram.resident(), Bytes(0));
        ram.store.back(0, 1).unwrap();
        assert_eq!(ram.resident(), Bytes::of_pages(1));
    }
}
