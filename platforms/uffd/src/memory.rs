//! The platform's frames are those of the arena.

use crate::uffd::Uffd;
use highwater_platform::{FrameRange, Memory, OutOfHostMemory};
use highwater_units::Pfn;
use std::sync::atomic::Ordering::Relaxed;

impl Memory for Uffd {
    fn ranges(&self) -> Vec<FrameRange> {
        self.memory.mapping.ranges()
    }

    fn populate(&self, frames: &[Pfn]) -> Result<(), OutOfHostMemory> {
        frames.iter().try_for_each(|pfn| self.memory.populate(*pfn))
    }

    fn zero(&self, frames: &[Pfn]) {
        self.memory.mapping.zero(frames);
    }

    fn copy_frame(&self, from: Pfn, to: Pfn) {
        self.memory.mapping.copy(from, to);
    }

    fn is_zero(&self, pfn: Pfn) -> bool {
        self.memory.mapping.is_zero(pfn)
    }

    fn load(&self, pfn: Pfn, word: usize) -> u64 {
        self.memory.mapping.word(pfn, word).load(Relaxed)
    }

    fn store(&self, pfn: Pfn, word: usize, value: u64) {
        self.memory.mapping.word(pfn, word).store(value, Relaxed);
    }
}
