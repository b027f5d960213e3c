//! Reads, clears and copies frames, at the costs of their nodes.

use crate::Sim;
use crate::contents::Words;
use highwater_platform::{FrameRange, Memory, OutOfHostMemory, WORDS_PER_FRAME};
use highwater_units::Pfn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Sim {
    /// A snapshot of a frame's words: later writes may be missing from it.
    pub fn words(&self, pfn: Pfn) -> Arc<Words> {
        self.contents().with(|contents| contents.get(pfn).clone())
    }

    /// A frame's words for writing through atomics, valid until the frame is copied or transferred.
    /// The caller has pinned the page, and holds no other reference.
    pub fn words_mut(&self, pfn: Pfn) -> Arc<Words> {
        self.contents().with(|contents| contents.get_mut(pfn).clone())
    }

    /// Copies a frame, at the cost of the more distant of the two frames.
    pub(crate) fn copy_contents(&self, from: Pfn, to: Pfn) {
        let engine = self.engine();
        self.contents().with(|contents| {
            let words = contents.get(from).clone();
            contents.set(to, words);
        });
        let cost = engine.machine.costs.copy_page;
        engine.charge(self.remote(from, cost).max(self.remote(to, cost)));
    }

    /// The cost of bulk work on a frame: higher if the frame is on another node than the CPU.
    pub(crate) fn remote(&self, pfn: Pfn, nanos: u64) -> u64 {
        let engine = self.engine();
        let own = engine.machine.node_of(engine.running_cpu());
        if self.node_of_frame(pfn) == own {
            nanos
        } else {
            (nanos as f64 * engine.machine.costs.remote_factor) as u64
        }
    }
}

impl Memory for Sim {
    fn ranges(&self) -> Vec<FrameRange> {
        self.frame_ranges().to_vec()
    }

    fn populate(&self, _: &[Pfn]) -> Result<(), OutOfHostMemory> {
        if self.injected_faults().inject(self.engine(), |faults| &faults.populate) {
            Err(OutOfHostMemory)
        } else {
            Ok(())
        }
    }

    fn borrow(&self, frames: u32) -> u32 {
        self.engine().sync();
        self.lender().map_or(0, |lender| lender.borrow(frames))
    }

    fn give_back(&self, frames: u32) {
        self.engine().sync();
        if let Some(lender) = self.lender() {
            lender.give_back(frames);
        }
    }

    fn borrowable(&self) -> u32 {
        self.lender().map_or(0, |lender| lender.room())
    }

    fn owed(&self) -> u32 {
        self.engine().sync();
        self.owed_frames().with(|owed| *owed)
    }

    fn pay(&self, frames: u32) {
        self.engine().sync();
        self.owed_frames().with(|owed| *owed = owed.saturating_sub(frames));
    }

    fn zero(&self, frames: &[Pfn]) {
        let engine = self.engine();
        engine.sync();
        for pfn in frames {
            self.watch().with(|watch| watch.touch(*pfn, "zeroed"));
            self.contents().with(|contents| contents.clear(*pfn));
            engine.charge(self.remote(*pfn, engine.machine.costs.zero_page));
        }
    }

    fn copy_frame(&self, from: Pfn, to: Pfn) {
        let engine = self.engine();
        engine.sync();
        self.watch().with(|watch| {
            watch.touch(from, "copied");
            watch.touch(to, "copied to");
        });
        self.copy_contents(from, to);
    }

    fn is_zero(&self, pfn: Pfn) -> bool {
        let engine = self.engine();
        engine.sync();
        self.watch().with(|watch| watch.touch(pfn, "compared"));
        let words = self.contents().with(|contents| contents.get(pfn).clone());
        let used = words.iter().position(|word| word.load(Relaxed) != 0);
        // The cost covers the words up to the first one that is not zero.
        let read = used.unwrap_or(WORDS_PER_FRAME) as u64;
        let cost = engine.machine.costs.zero_page * read / WORDS_PER_FRAME as u64;
        engine.charge(self.remote(pfn, cost.max(engine.machine.costs.scan)));
        used.is_none()
    }

    fn load(&self, pfn: Pfn, word: usize) -> u64 {
        self.engine().sync();
        self.contents().with(|contents| contents.get(pfn)[word].load(Relaxed))
    }

    fn store(&self, pfn: Pfn, word: usize, value: u64) {
        self.engine().sync();
        self.contents().with(|contents| contents.get_mut(pfn)[word].store(value, Relaxed));
    }
}
