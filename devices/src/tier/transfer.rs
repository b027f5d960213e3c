//! Splits a caller's batch between the levels.
//!
//! ```text
//! read    fast level: pinned, page by page            |  slow level: gathered, in flight together
//! write   fast level: as many pages as it has room for |  slow level: the rest, in flight together
//! ```
//! The fast level has no queue, so there is nothing to gather for it.

use crate::arena::Arena;
use crate::tier::blocks::Near;
use crate::tier::shared::Shared;
use crate::tier::table::Place;
use crate::transfer::admit;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{FrameList, IoFrames, PAGE_SIZE, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// Parts of the slow level in flight together.
const PARTS: usize = 32;

/// The slots of a part.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    /// The transfer of the caller's batch.
    io: usize,
    /// The slot of its first page.
    slot: u32,
}

/// Parts for the slow level.
struct Parts {
    ios: [Io; PARTS],
    origins: [Origin; PARTS],
    len: usize,
}

impl Parts {
    fn new() -> Parts {
        let none = Io::new(0, FrameList::default());
        Parts { ios: [none; PARTS], origins: [Origin::default(); PARTS], len: 0 }
    }

    fn is_full(&self) -> bool {
        self.len == PARTS
    }

    fn push(&mut self, origin: Origin, io: Io) {
        self.ios[self.len] = io;
        self.origins[self.len] = origin;
        self.len += 1;
    }

    /// Adds a page to the last part if it is adjacent; returns whether it was.
    fn extend(&mut self, origin: usize, block: u32, pfn: Pfn) -> bool {
        let Some(last) = self.len.checked_sub(1) else { return false };
        let Io { slot, frames: IoFrames::List(list), .. } = &mut self.ios[last] else {
            return false;
        };
        let follows = self.origins[last].io == origin
            && *slot + list.len() as u32 == block
            && !list.is_full();
        if follows {
            list.push(pfn);
        }
        follows
    }

    fn take(&mut self) -> (&[Origin], &mut [Io]) {
        let len = std::mem::take(&mut self.len);
        (&self.origins[..len], &mut self.ios[..len])
    }
}

impl Shared {
    /// # Safety
    /// As for [`crate::Device::read`].
    pub(super) unsafe fn read(&self, info: &DeviceInfo, arena: Arena, batch: &mut [Io]) {
        let mut parts = Parts::new();
        for index in 0..batch.len() {
            batch[index].result = admit(info, Direction::Read, arena, &batch[index]);
            let pages = match batch[index].result {
                Ok(()) => batch[index].frames.len(),
                Err(_) => 0,
            };
            for page in 0..pages {
                let (slot, pfn) = (batch[index].slot + page as u32, batch[index].frames.at(page));
                // SAFETY: admitted, and the caller vouches for the frames.
                match unsafe { self.read_at_once(arena, slot, pfn) } {
                    Ok(None) => {}
                    Ok(Some(block)) if parts.extend(index, block, pfn) => {}
                    Ok(Some(block)) => {
                        if parts.is_full() {
                            // SAFETY: as above, of all parts.
                            unsafe { self.read_parts(arena, &mut parts, batch) };
                        }
                        let io = Io::new(block, FrameList::one(pfn));
                        parts.push(Origin { io: index, slot }, io);
                    }
                    Err(error) => batch[index].result = Err(error),
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.read_parts(arena, &mut parts, batch) };
    }

    /// Reads a page, or returns its block if it is in the slow level.
    ///
    /// # Safety
    /// Only the caller uses the frame.
    unsafe fn read_at_once(
        &self,
        arena: Arena,
        slot: u32,
        pfn: Pfn,
    ) -> Result<Option<u32>, IoError> {
        match self.table.pin(slot, self.now()) {
            Place::Slow(block) => Ok(Some(block)),
            Place::Empty => {
                // SAFETY: the caller vouches for the frame.
                unsafe { arena.address(pfn).write_bytes(0, PAGE_SIZE) };
                Ok(None)
            }
            Place::Fast(block) => {
                let mut one = [Io::new(block, FrameList::one(pfn))];
                // SAFETY: as above.
                unsafe { self.fast.device.read(arena, &mut one) };
                self.table.unpin(slot);
                one[0].result.map(|()| None)
            }
        }
    }

    /// # Safety
    /// Only the caller uses the frames of the parts.
    unsafe fn read_parts(&self, arena: Arena, parts: &mut Parts, batch: &mut [Io]) {
        let (origins, ios) = parts.take();
        if ios.is_empty() {
            return;
        }
        // SAFETY: by contract of this function.
        unsafe { self.slow.device.read(arena, ios) };
        for (origin, io) in origins.iter().zip(ios) {
            match io.result {
                Ok(()) => drop(self.counts.slow_reads.fetch_add(io.frames.len() as u64, Relaxed)),
                Err(error) => batch[origin.io].result = Err(error),
            }
        }
    }

    /// # Safety
    /// As for [`crate::Device::write`].
    pub(super) unsafe fn write(&self, info: &DeviceInfo, arena: Arena, batch: &mut [Io]) {
        let mut parts = Parts::new();
        for index in 0..batch.len() {
            batch[index].result = admit(info, Direction::Write, arena, &batch[index]);
            if batch[index].result.is_ok() {
                self.empty(&batch[index]);
                let Io { slot, frames, .. } = batch[index];
                for (offset, list) in frames.lists() {
                    let origin = Origin { io: index, slot: slot + offset as u32 };
                    // SAFETY: admitted, and the caller vouches for the frames.
                    unsafe { self.write_list(arena, origin, &list, &mut parts, batch) };
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.write_parts(arena, &mut parts, batch) };
        for io in batch.iter().filter(|io| io.result.is_err()) {
            // The transfer failed, so its slots are never read: free what some of them took.
            if admit(info, Direction::Write, arena, io).is_ok() {
                self.empty(io);
            }
        }
    }

    /// # Safety
    /// As for [`crate::Device::write`], and the transfer was admitted.
    unsafe fn write_list(
        &self,
        arena: Arena,
        origin: Origin,
        frames: &FrameList,
        parts: &mut Parts,
        batch: &mut [Io],
    ) {
        // SAFETY: by contract of this function.
        let mut at = unsafe { self.write_fast(arena, origin.slot, frames) };
        while at < frames.len() {
            if parts.is_full() {
                // SAFETY: as above, of all parts.
                unsafe { self.write_parts(arena, parts, batch) };
            }
            let part = Origin { slot: origin.slot + at as u32, ..origin };
            let Some(run) = self.slow.take(Near::Last, frames.len() - at) else {
                batch[origin.io].result = Err(IoError::Full);
                return;
            };
            let list: FrameList = frames[at..at + run.len()].iter().copied().collect();
            at += run.len();
            parts.push(part, Io::new(run.start, list));
        }
    }

    /// Writes pages to the fast level while it has room; returns their number.
    ///
    /// # Safety
    /// Only the caller uses the frames.
    unsafe fn write_fast(&self, arena: Arena, slot: u32, frames: &FrameList) -> usize {
        let mut at = 0;
        while at < frames.len() && !self.fast.is_at_limit() {
            let from = slot + at as u32;
            // Distant slots get distant blocks: a compressing device selects its shard by the
            // block.
            let Some(run) = self.fast.take(Near::Block(from), frames.len() - at) else { break };
            let list = frames[at..at + run.len()].iter().copied().collect();
            let mut one = [Io::new(run.start, list)];
            // SAFETY: by contract of this function.
            unsafe { self.fast.device.write(arena, &mut one) };
            if one[0].result.is_err() {
                run.for_each(|block| self.fast.free(block));
                break;
            }
            let now = self.arrive(run.len());
            at += run.len();
            for (slot, block) in (from..).zip(run) {
                self.table.set(slot, Place::Fast(block), now);
            }
        }
        at
    }

    /// # Safety
    /// Only the caller uses the frames of the parts.
    unsafe fn write_parts(&self, arena: Arena, parts: &mut Parts, batch: &mut [Io]) {
        let (origins, ios) = parts.take();
        if ios.is_empty() {
            return;
        }
        // SAFETY: by contract of this function.
        unsafe { self.slow.device.write(arena, ios) };
        for (origin, io) in origins.iter().zip(ios) {
            let blocks = io.slot..io.slot + io.frames.len() as u32;
            match io.result {
                Ok(()) => {
                    self.counts.slow_writes.fetch_add(blocks.len() as u64, Relaxed);
                    for (slot, block) in (origin.slot..).zip(blocks) {
                        self.table.set(slot, Place::Slow(block), self.now());
                    }
                }
                Err(error) => {
                    blocks.for_each(|block| self.slow.free(block));
                    batch[origin.io].result = Err(error);
                }
            }
        }
    }

    /// Frees the contents of a transfer's slots before new ones are written.
    fn empty(&self, io: &Io) {
        for slot in io.slot..io.slot + io.frames.len() as u32 {
            self.drop_slot(slot);
            self.table.wait_unpinned(slot);
        }
    }

    /// Frees the contents of a slot without waiting.
    pub(super) fn drop_slot(&self, slot: u32) {
        match self.table.drop_slot(slot) {
            Place::Empty => {}
            Place::Fast(block) => self.fast.free(block),
            Place::Slow(block) => self.slow.free(block),
        }
    }
}
