//! The platform's frames have memory on the stage while they hold contents there.

use crate::uffd::Uffd;
use highwater_platform::{Cpu, FrameRange, Memory, OutOfHostMemory};
use highwater_units::{NodeId, Pfn};
use std::sync::atomic::Ordering::Relaxed;

impl Memory for Uffd {
    fn ranges(&self) -> Vec<FrameRange> {
        vec![FrameRange { node: NodeId(0), first: Pfn(0), frames: self.stage.frames() }]
    }

    fn populate(&self, frames: &[Pfn]) -> Result<(), OutOfHostMemory> {
        let cpu = self.cpu();
        frames.iter().try_for_each(|pfn| self.stage.populate(cpu, *pfn))
    }

    fn release(&self, frames: &[Pfn]) {
        self.stage.release(self.cpu(), frames, &self.drops);
    }

    fn borrow(&self, frames: u32) -> u32 {
        self.lender.get().map_or(0, |lender| lender.borrow(frames))
    }

    fn give_back(&self, frames: u32) {
        if let Some(lender) = self.lender.get() {
            lender.give_back(frames);
        }
    }

    fn borrowable(&self) -> u32 {
        self.lender.get().map_or(0, |lender| lender.room())
    }

    fn owed(&self) -> u32 {
        let (devices, parted) = (&self.devices, self.stage.parted());
        self.lender.get().map_or(0, |lender| lender.owed(devices.resident(), parted))
    }

    fn pay(&self, frames: u32) {
        if let Some(lender) = self.lender.get() {
            lender.pay(frames);
        }
    }

    fn zero(&self, frames: &[Pfn]) {
        self.release(frames);
    }

    fn copy_frame(&self, from: Pfn, to: Pfn) {
        self.stage.copy(from, to);
    }

    fn is_zero(&self, pfn: Pfn) -> bool {
        self.stage.is_zero(pfn)
    }

    fn load(&self, pfn: Pfn, word: usize) -> u64 {
        self.stage.word(pfn, word).load(Relaxed)
    }

    fn store(&self, pfn: Pfn, word: usize, value: u64) {
        self.stage.populate(self.cpu(), pfn).expect("memory for a page that a test stores to");
        self.stage.word(pfn, word).store(value, Relaxed);
    }
}
