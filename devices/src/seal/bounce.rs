//! Bounce pages: they hold the encrypted contents of a write until it is on the device. The frames
//! themselves may be mapped, and keep their contents.
//!
//! ```text
//! places   [ 64 pages | 64 pages | ... ], each with the transfers of one batch, or of a part of it
//!            16 kept    memory is given back after each batch
//! ```
//! Locks: none ([`Places`]). Batches that are finished later may take only some of the places; the
//! rest are for batches that the caller waits for. A thread that waits for a place holds none of
//! the rest, so one of them becomes free.

use crate::arena::Arena;
use crate::busy::PLACES;
use crate::places::{Places, Taken};
use crate::sys::Mapping;
use crate::uring::DEPTH;
use highwater_platform::{Io, IoError};
use highwater_units::{FrameList, PAGE_SIZE, Pfn, RUN_PAGES_MAX};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages of a place: as many as the transfers of a ring, each of which may have one page. A reclaim
/// batch has at most 32.
pub(super) const PAGES: usize = DEPTH;

/// Places for batches that are finished later.
const LATER_MAX: usize = PLACES - 8;

/// Places that keep memory. The lowest free place is used next, so the others are needed only while
/// many batches are in flight. To take memory again costs less than 1 us for each page.
const KEPT: u32 = 2;
/// Pages that such a place keeps: a run. Every process has a device of its own: with all pages,
/// eight processes kept 4 MiB.
const KEPT_PAGES: usize = RUN_PAGES_MAX;

/// The places of a device.
pub(super) struct Bounce {
    memory: Mapping,
    places: Places<Batch>,
    /// Pages with memory.
    touched: AtomicU64,
}

/// The transfers from a place, each with its index in the caller's batch.
#[derive(Default)]
struct Batch {
    ios: Vec<Io>,
    origins: Vec<usize>,
    pages: usize,
    /// Pages with memory, from the first on.
    touched: usize,
}

impl Bounce {
    /// Free places.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new() -> Result<Bounce, i32> {
        Ok(Bounce {
            memory: Mapping::new(PLACES * PAGES * PAGE_SIZE)?,
            places: Places::new(),
            touched: AtomicU64::new(0),
        })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        self.touched.load(Relaxed) * PAGE_SIZE as u64
    }

    /// A place for a batch that is waited for.
    pub(super) fn take(&self) -> Held<'_> {
        self.held(self.places.take()).emptied()
    }

    /// A place for a batch that is finished later; `None`: all are taken.
    pub(super) fn take_for_later(&self) -> Option<Held<'_>> {
        self.places.try_take(LATER_MAX).map(|batch| self.held(batch).emptied())
    }

    /// The place that was left under this number.
    pub(super) fn back(&self, index: u32) -> Held<'_> {
        self.held(self.places.back(index))
    }

    fn held<'a>(&'a self, batch: Taken<'a, Batch>) -> Held<'a> {
        Held { bounce: self, batch }
    }
}

/// A place that a batch holds.
pub(super) struct Held<'a> {
    bounce: &'a Bounce,
    batch: Taken<'a, Batch>,
}

impl Held<'_> {
    fn emptied(mut self) -> Self {
        self.empty();
        let batch = &mut *self.batch;
        // Once in the life of a place: later batches allocate nothing.
        batch.ios.reserve_exact(PAGES);
        batch.origins.reserve_exact(PAGES);
        self
    }

    /// Removes its transfers.
    pub(super) fn empty(&mut self) {
        let batch = &mut *self.batch;
        batch.ios.clear();
        batch.origins.clear();
        batch.pages = 0;
    }

    /// How many more pages fit.
    pub(super) fn room(&mut self) -> usize {
        PAGES - self.batch.pages
    }

    /// Adds a transfer for pages of one of the caller's transfers, which fit; returns the addresses
    /// to fill, in order.
    pub(super) fn push(
        &mut self,
        origin: usize,
        slot: u32,
        pages: usize,
    ) -> impl Iterator<Item = *mut u8> + use<> {
        let arena = self.arena();
        let bounce = self.bounce;
        let batch = &mut *self.batch;
        let frames = (batch.pages..batch.pages + pages).map(|page| Pfn(page as u32));
        batch.ios.push(Io::new(slot, frames.clone().collect::<FrameList>()));
        batch.origins.push(origin);
        batch.pages += pages;
        if let Some(new) = batch.pages.checked_sub(batch.touched) {
            batch.touched = batch.pages;
            bounce.touched.fetch_add(new as u64, Relaxed);
        }
        frames.map(move |frame| arena.address(frame))
    }

    /// The addresses of the frames of its transfers.
    pub(super) fn arena(&self) -> Arena {
        let base = self.bounce.memory.at(self.offset());
        // SAFETY: the mapping has so many pages for each place, and outlives the transfers.
        unsafe { Arena::new(base, PAGES as u32) }
    }

    /// Where its pages begin.
    fn offset(&self) -> usize {
        self.batch.index as usize * PAGES * PAGE_SIZE
    }

    /// Its transfers.
    pub(super) fn ios(&mut self) -> &mut [Io] {
        &mut self.batch.ios
    }

    /// Passes the errors of its transfers on to those of the caller's batch.
    pub(super) fn report(&mut self, batch: &mut [Io]) {
        let sent = &*self.batch;
        for (origin, io) in sent.origins.iter().zip(&sent.ios) {
            let result: &mut Result<(), IoError> = &mut batch[*origin].result;
            *result = result.and(io.result);
        }
    }

    /// Frees the place: its transfers have ended.
    pub(super) fn done(mut self) {
        let kept = if self.batch.index < KEPT { KEPT_PAGES } else { 0 };
        if let Some(pages) = self.batch.touched.checked_sub(kept).filter(|pages| *pages > 0) {
            self.batch.touched = kept;
            let offset = self.offset() + kept * PAGE_SIZE;
            // SAFETY: pages of the place, whose transfers have ended.
            unsafe { self.bounce.memory.give_back(offset, pages * PAGE_SIZE) };
            self.bounce.touched.fetch_sub(pages as u64, Relaxed);
        }
    }

    /// Keeps the place for [`Bounce::back`].
    pub(super) fn leave(self) -> u32 {
        self.batch.leave()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_places_have_memory_only_while_they_hold_a_batch() {
        let bounce = Bounce::new().unwrap();
        let pages = |count: u32| u64::from(count) * 4 * PAGE_SIZE as u64;
        let take = || (0..KEPT + 3).map(|_| bounce.take()).collect::<Vec<_>>();
        let fill = |held: &mut Held<'_>| -> Vec<u8> {
            let pages = held.push(0, 0, 4);
            // SAFETY: pages of the place.
            pages.map(|page| unsafe { page.replace(7) }).collect()
        };
        let mut first = take();
        first.iter_mut().for_each(|held| assert_eq!(fill(held), [0; 4]));
        assert_eq!(bounce.bytes(), pages(KEPT + 3));
        first.into_iter().for_each(Held::done);
        assert_eq!(bounce.bytes(), pages(KEPT));
        let mut second = take();
        let found: Vec<_> = second.iter_mut().map(fill).collect();
        assert!(found[..KEPT as usize].iter().all(|bytes| *bytes == [7; 4]));
        assert!(found[KEPT as usize..].iter().all(|bytes| *bytes == [0; 4]));
        assert_eq!(bounce.bytes(), pages(KEPT + 3));
    }

    #[test]
    fn a_place_keeps_one_run() {
        let bounce = Bounce::new().unwrap();
        for pages in [PAGES, KEPT_PAGES - 1, KEPT_PAGES + 1] {
            let mut held = bounce.take();
            for first in (0..pages).step_by(RUN_PAGES_MAX) {
                let run = held.push(0, 0, RUN_PAGES_MAX.min(pages - first));
                // SAFETY: pages of the place.
                run.for_each(|page| unsafe { page.write(7) });
            }
            let most = pages.max(KEPT_PAGES);
            assert_eq!(bounce.bytes(), (most * PAGE_SIZE) as u64, "{pages} pages");
            held.done();
            assert_eq!(bounce.bytes(), (KEPT_PAGES * PAGE_SIZE) as u64, "after {pages} pages");
        }
    }
}
