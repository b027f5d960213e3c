//! A level of a tier: a device, and its slots as blocks that are taken and freed.
//!
//! Locks: one around the free blocks, held for some tens of instructions and never during a
//! transfer.

use crate::device::Device;
use crate::tier::blocks::{Blocks, Near};
use highwater_units::Bytes;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A level of a tier.
pub(super) struct Level {
    pub(super) device: Box<dyn Device>,
    pages: u32,
    /// The most memory that its contents may take, in bytes.
    most: AtomicU64,
    blocks: Arc<Mutex<Blocks>>,
}

impl Level {
    /// An empty level.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(device: Box<dyn Device>) -> Result<Level, i32> {
        let pages = device.info().pages;
        let blocks = Arc::new(Mutex::new(Blocks::new(pages)?));
        Ok(Level { device, pages, most: AtomicU64::new(u64::MAX), blocks })
    }

    /// The level for a forked child, which takes and frees no blocks.
    pub(super) fn inherit(&self) -> Level {
        let (device, blocks) = (self.device.inherit(), self.blocks.clone());
        Level { device, pages: self.pages, most: AtomicU64::new(u64::MAX), blocks }
    }

    /// The most memory that its contents can take.
    pub(super) fn capacity(&self) -> Bytes {
        self.memory().1
    }

    /// Takes up to `most` adjacent blocks. `None` if all are taken.
    pub(super) fn take(&self, near: Near, most: usize) -> Option<Range<u32>> {
        self.lock().take(near, most as u32)
    }

    /// Frees a block and its contents.
    pub(super) fn free(&self, block: u32) {
        self.device.discard(block, 1);
        self.lock().free(block);
    }

    /// The number of taken blocks.
    pub(super) fn used(&self) -> u32 {
        self.lock().used()
    }

    /// From now on its contents may take at most `most` of memory.
    pub(super) fn limit(&self, most: Bytes) {
        self.most.store(most.0, Relaxed);
    }

    /// How full it is, in thousandths: of its blocks, or of the memory that it may take, whichever
    /// is more.
    pub(super) fn use_per_mille(&self) -> u64 {
        let share = |part: u64, all: u64| part.saturating_mul(1000) / all.max(1);
        let (memory, limit) = self.memory();
        let limit = limit.0.min(self.most.load(Relaxed));
        share(self.used().into(), self.pages.into()).max(share(memory.0, limit))
    }

    /// Whether its contents take as much memory as [`Level::limit`] allows.
    pub(super) fn is_at_limit(&self) -> bool {
        self.memory().0.0 >= self.most.load(Relaxed)
    }

    /// The memory of its contents, and the most that they may take.
    fn memory(&self) -> (Bytes, Bytes) {
        let whole = || (Bytes::of_pages(self.used().into()), Bytes::of_pages(self.pages.into()));
        self.device.compression().map_or_else(whole, |held| (held.used, held.limit))
    }

    /// Whether freeing a block frees memory. Pages filled with one word take none if the device
    /// compresses.
    pub(super) fn gains(&self, block: u32) -> bool {
        self.device.footprint(block) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
