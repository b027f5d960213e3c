//! A level of a tier: a device, and its slots as blocks that are taken and freed.
//!
//! Locks: one around the free blocks, held for some tens of instructions and never during a
//! transfer.

use crate::device::Device;
use crate::tier::blocks::{Blocks, Near};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A level of a tier.
pub(super) struct Level {
    pub(super) device: Box<dyn Device>,
    pages: u32,
    blocks: Arc<Mutex<Blocks>>,
}

impl Level {
    /// An empty level.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(device: Box<dyn Device>) -> Result<Level, i32> {
        let pages = device.info().pages;
        Ok(Level { device, pages, blocks: Arc::new(Mutex::new(Blocks::new(pages)?)) })
    }

    /// The level for a forked child, which takes and frees no blocks.
    pub(super) fn inherit(&self) -> Level {
        let (device, blocks) = (self.device.inherit(), self.blocks.clone());
        Level { device, pages: self.pages, blocks }
    }

    /// The number of blocks.
    pub(super) fn pages(&self) -> u32 {
        self.pages
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

    /// Its use in thousandths: of its blocks, or of its memory if it compresses, whichever is more.
    pub(super) fn use_per_mille(&self) -> u64 {
        let share = |part: u64, all: u64| part * 1000 / all.max(1);
        let memory = self.device.compression().map_or(0, |held| share(held.used.0, held.limit.0));
        share(self.used().into(), self.pages.into()).max(memory)
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
