//! A device, and which of its slots are taken: the blocks of a level.
//!
//! Locks: one around the free blocks, for some tens of instructions. No device is used under it.

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
    /// A level without contents.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(device: Box<dyn Device>) -> Result<Level, i32> {
        let pages = device.info().pages;
        Ok(Level { device, pages, blocks: Arc::new(Mutex::new(Blocks::new(pages)?)) })
    }

    /// The same in a forked child, which takes no blocks and frees none.
    pub(super) fn inherit(&self) -> Level {
        let (device, blocks) = (self.device.inherit(), self.blocks.clone());
        Level { device, pages: self.pages, blocks }
    }

    /// Blocks.
    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    /// Takes up to `most` blocks in a row. None if all are taken.
    pub(super) fn take(&self, near: Near, most: usize) -> Option<Range<u32>> {
        self.lock().take(near, most as u32)
    }

    /// Frees a block, and what it holds.
    pub(super) fn free(&self, block: u32) {
        self.device.discard(block, 1);
        self.lock().free(block);
    }

    /// Blocks taken.
    pub(super) fn used(&self) -> u32 {
        self.lock().used()
    }

    /// How full it is, in thousandths: of blocks, or of memory where it holds pages compressed.
    pub(super) fn use_per_mille(&self) -> u64 {
        let share = |part: u64, all: u64| part * 1000 / all.max(1);
        let memory = self.device.compression().map_or(0, |held| share(held.used.0, held.limit.0));
        share(self.used().into(), self.pages.into()).max(memory)
    }

    /// Whether freeing a block would gain room: pages of one word take none where they are
    /// compressed.
    pub(super) fn gains(&self, block: u32) -> bool {
        self.device.footprint(block) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
