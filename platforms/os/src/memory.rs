//! The platform's frames are those of the arena.

use crate::os::Os;
use highwater_platform::{FrameRange, Memory, OutOfHostMemory};
use highwater_units::Pfn;
use std::sync::atomic::Ordering::Relaxed;

impl Memory for Os {
    fn ranges(&self) -> Vec<FrameRange> {
        self.memory.ranges()
    }

    fn populate(&self, _: &[Pfn]) -> Result<(), OutOfHostMemory> {
        Ok(())
    }

    fn zero(&self, frames: &[Pfn]) {
        self.memory.zero(frames);
    }

    fn copy_frame(&self, from: Pfn, to: Pfn) {
        self.memory.copy(from, to);
    }

    fn is_zero(&self, pfn: Pfn) -> bool {
        self.memory.is_zero(pfn)
    }

    fn load(&self, pfn: Pfn, word: usize) -> u64 {
        self.memory.word(pfn, word).load(Relaxed)
    }

    fn store(&self, pfn: Pfn, word: usize, value: u64) {
        self.memory.word(pfn, word).store(value, Relaxed);
    }
}
