//! Splits a caller's batch between the levels.
//!
//! ```text
//! read    fast level: pinned, page by page       |  slow level: gathered, in flight together
//! write   fast level: small pages, page by page  |  slow level: the rest, in flight together
//! ```
//! The fast level has no queue, so there is nothing to gather for it. A page that hardly compresses
//! would take as much memory there as in its frame, so it goes to the slow level at once, and to
//! the fast one only if the slow one has no room.

use crate::arena::Arena;
use crate::device::Offer;
use crate::tier::blocks::Near;
use crate::tier::parts::{Origin, Parts};
use crate::tier::shared::Shared;
use crate::tier::table::Place;
use crate::transfer::admit;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{FrameList, PAGE_SIZE, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// The direction of a batch, and where its slots and frames are.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// The properties of the tier.
    pub(super) info: &'a DeviceInfo,
    pub(super) direction: Direction,
    /// The frames.
    pub(super) arena: Arena,
}

impl Request<'_> {
    fn admit(&self, io: &Io) -> Result<(), IoError> {
        admit(self.info, self.direction, self.arena, io)
    }
}

impl Shared {
    /// Makes a batch, and waits for it.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    pub(super) unsafe fn read_or_write(&self, request: Request<'_>, batch: &mut [Io]) {
        if let ([io], Direction::Read) = (&mut *batch, request.direction)
            && io.frames.len() == 1
        {
            // SAFETY: by contract of this function.
            return unsafe { self.read_one(request, io) };
        }
        let mut parts = self.flights.take();
        // SAFETY: by contract of this function.
        unsafe { self.split(request, batch, &mut parts) };
        // SAFETY: as above.
        unsafe { self.finish(request, batch, &mut parts) };
    }

    /// Reads a page, as most faults do, without a place for parts: so threads that wait for the
    /// slow level do not block reads from the fast one.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    unsafe fn read_one(&self, request: Request<'_>, io: &mut Io) {
        let (arena, pfn) = (request.arena, io.frames.at(0));
        io.result = request.admit(io).and_then(|()| {
            // SAFETY: admitted, and the caller vouches for the frame.
            let Some(block) = (unsafe { self.read_at_once(arena, io.slot, pfn) })? else {
                return Ok(());
            };
            let mut one = [Io::new(block, FrameList::one(pfn))];
            // SAFETY: as above.
            unsafe { self.slow.device.read(arena, &mut one) };
            self.counts.slow_reads.fetch_add(one[0].result.is_ok().into(), Relaxed);
            one[0].result
        });
    }

    /// Makes the part of a batch that is for the fast level, and starts the rest. If
    /// `parts.started` is `None`, all transfers are done.
    ///
    /// # Safety
    /// As for [`crate::Device::start`].
    pub(super) unsafe fn start(&self, request: Request<'_>, batch: &mut [Io], parts: &mut Parts) {
        let Request { direction, arena, .. } = request;
        // SAFETY: by contract of this function.
        unsafe { self.split(request, batch, parts) };
        if !parts.ios.is_empty() {
            // SAFETY: as above; the transfers stay in their place.
            parts.started = unsafe { self.slow.device.start(arena, direction, &mut parts.ios) };
        }
        if parts.started.is_none() {
            self.settle(direction, parts, batch);
            self.empty_failed(request, batch);
        }
    }

    /// Makes the transfers left of a batch, and waits for them.
    ///
    /// # Safety
    /// As for [`crate::Device::finish`].
    pub(super) unsafe fn finish(&self, request: Request<'_>, batch: &mut [Io], parts: &mut Parts) {
        // SAFETY: by contract of this function.
        unsafe { self.make(request.direction, request.arena, batch, parts) };
        self.empty_failed(request, batch);
    }

    /// Makes the part of a batch that is for the fast level, and collects the rest; makes the
    /// collected parts whenever they are too many for one batch.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    unsafe fn split(&self, request: Request<'_>, batch: &mut [Io], parts: &mut Parts) {
        let Request { direction, arena, .. } = request;
        for index in 0..batch.len() {
            batch[index].result = request.admit(&batch[index]);
            let Io { slot, frames, result: Ok(()) } = batch[index] else { continue };
            match direction {
                Direction::Read => {
                    for (slot, pfn) in (slot..).zip(frames.iter()) {
                        let origin = Origin { io: index, slot };
                        // SAFETY: admitted, and the caller vouches for the frames.
                        unsafe { self.read_page(arena, origin, pfn, parts, batch) };
                    }
                }
                Direction::Write => {
                    self.empty(&batch[index]);
                    for (offset, list) in frames.lists() {
                        let origin = Origin { io: index, slot }.after(offset);
                        // SAFETY: as above.
                        unsafe { self.write_list(arena, origin, &list, parts, batch) };
                    }
                }
            }
        }
    }

    /// Reads a page that is in the fast level, or adds it to the parts.
    ///
    /// # Safety
    /// Only the caller uses the frame.
    unsafe fn read_page(
        &self,
        arena: Arena,
        origin: Origin,
        pfn: Pfn,
        parts: &mut Parts,
        batch: &mut [Io],
    ) {
        // SAFETY: by contract of this function.
        match unsafe { self.read_at_once(arena, origin.slot, pfn) } {
            Ok(None) => {}
            Ok(Some(block)) if parts.extend(origin.io, block, pfn) => {}
            Ok(Some(block)) => {
                if parts.is_full() {
                    // SAFETY: as above, of all parts.
                    unsafe { self.make(Direction::Read, arena, batch, parts) };
                }
                parts.push(origin, Io::new(block, FrameList::one(pfn)));
            }
            Err(error) => batch[origin.io].result = Err(error),
        }
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
    /// As for [`crate::Device::write`], and the transfer was admitted.
    unsafe fn write_list(
        &self,
        arena: Arena,
        origin: Origin,
        frames: &FrameList,
        parts: &mut Parts,
        batch: &mut [Io],
    ) {
        let offer = if self.fast.is_at_limit() { Offer::Filled } else { Offer::Small };
        // The first of the pages that the fast level has refused.
        let mut refused = 0;
        for (at, pfn) in frames.iter().enumerate() {
            let slot = origin.slot + at as u32;
            // SAFETY: by contract of this function.
            if unsafe { self.write_fast(arena, slot, *pfn, offer) } {
                let rest = &frames[refused..at];
                // SAFETY: as above.
                unsafe { self.write_slow(arena, origin.after(refused), rest, parts, batch) };
                refused = at + 1;
            }
        }
        // SAFETY: as above.
        unsafe {
            self.write_slow(arena, origin.after(refused), &frames[refused..], parts, batch);
        }
    }

    /// Offers a page to the fast level; returns whether it is there.
    ///
    /// # Safety
    /// Only the caller uses the frame.
    unsafe fn write_fast(&self, arena: Arena, slot: u32, pfn: Pfn, offer: Offer) -> bool {
        // Distant slots get distant blocks: a compressing device selects its shard by the block.
        let Some(block) = self.fast.take(Near::Block(slot), 1) else { return false };
        let mut one = [Io::new(block.start, FrameList::one(pfn))];
        // SAFETY: by contract of this function.
        unsafe { self.fast.device.write_offer(arena, &mut one, offer) };
        if one[0].result.is_err() {
            self.fast.free(block.start);
            return false;
        }
        self.table.set(slot, Place::Fast(block.start), self.arrive(1));
        true
    }

    /// Adds pages to the parts for the slow level. Pages for which the slow level has no room go to
    /// the fast level, small or not.
    ///
    /// # Safety
    /// As for [`crate::Device::write`].
    unsafe fn write_slow(
        &self,
        arena: Arena,
        origin: Origin,
        frames: &[Pfn],
        parts: &mut Parts,
        batch: &mut [Io],
    ) {
        let mut at = 0;
        while at < frames.len() && batch[origin.io].result.is_ok() {
            if parts.is_full() {
                // SAFETY: by contract of this function, of all parts.
                unsafe { self.make(Direction::Write, arena, batch, parts) };
            }
            let part = origin.after(at);
            if let Some(run) = self.slow.take(Near::Last, frames.len() - at) {
                let list = frames[at..at + run.len()].iter().copied().collect();
                at += run.len();
                parts.push(part, Io::new(run.start, list));
                continue;
            }
            // SAFETY: as above.
            let keeps = || unsafe { self.write_fast(arena, part.slot, frames[at], Offer::Any) };
            if self.fast.is_at_limit() || !keeps() {
                batch[origin.io].result = Err(IoError::Full);
            }
            at += 1;
        }
    }

    /// Makes the parts, or finishes started ones, and waits for them.
    ///
    /// # Safety
    /// As for [`crate::Device::finish`].
    unsafe fn make(&self, direction: Direction, arena: Arena, batch: &mut [Io], parts: &mut Parts) {
        if parts.ios.is_empty() {
            return;
        }
        let ios = &mut parts.ios;
        match parts.started.take() {
            // SAFETY: by contract of this function.
            Some(started) => unsafe { self.slow.device.finish(arena, started, ios) },
            // SAFETY: as above.
            None => unsafe { self.slow.device.read_or_write(arena, direction, ios) },
        }
        self.settle(direction, parts, batch);
    }

    /// Passes the results of parts that are done on to the batch, and to the table.
    fn settle(&self, direction: Direction, parts: &mut Parts, batch: &mut [Io]) {
        parts.settle(|origin, block, pages, result| {
            let slots = (origin.slot..).zip(block..block + pages);
            match (result, direction) {
                (Ok(()), Direction::Read) => {
                    self.counts.slow_reads.fetch_add(pages.into(), Relaxed);
                }
                (Ok(()), Direction::Write) => {
                    self.counts.slow_writes.fetch_add(pages.into(), Relaxed);
                    slots.for_each(|(slot, block)| {
                        self.table.set(slot, Place::Slow(block), self.now());
                    });
                }
                (Err(error), Direction::Read) => batch[origin.io].result = Err(error),
                (Err(error), Direction::Write) => {
                    batch[origin.io].result = Err(error);
                    slots.for_each(|(_, block)| self.slow.free(block));
                }
            }
        });
    }

    /// Frees the blocks of slots whose write failed: such slots are never read.
    fn empty_failed(&self, request: Request<'_>, batch: &[Io]) {
        let is_failed = |io: &&Io| io.result.is_err() && request.admit(io).is_ok();
        if request.direction == Direction::Write {
            batch.iter().filter(is_failed).for_each(|io| self.empty(io));
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
