//! Memory of the platform: frames are read, cleared and copied, at the costs of their nodes.

use crate::Sim;
use crate::contents::Words;
use highwater_platform::{FrameRange, Memory, OutOfHostMemory, WORDS_PER_FRAME};
use highwater_units::Pfn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Sim {
    /// A frame's words as they are: what is written to it later may not show.
    pub fn words(&self, pfn: Pfn) -> Arc<Words> {
        self.contents().with(|contents| contents.get(pfn).clone())
    }

    /// A frame's words for writing through atomics, until anybody copies or transfers the frame:
    /// the caller has the page pinned, and holds no other reference.
    pub fn words_mut(&self, pfn: Pfn) -> Arc<Words> {
        self.contents().with(|contents| contents.get_mut(pfn).clone())
    }

    /// Copies a frame, at the costs of the one that is further away.
    pub(crate) fn copy_contents(&self, from: Pfn, to: Pfn) {
        let engine = self.engine();
        self.contents().with(|contents| {
            let words = contents.get(from).clone();
            contents.set(to, words);
        });
        let cost = engine.machine.costs.copy_page;
        engine.charge(self.remote(from, cost).max(self.remote(to, cost)));
    }

    /// By how much bulk work on a frame takes longer than on one of this CPU's node.
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
        // Most of the way is spared where the first words tell.
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
