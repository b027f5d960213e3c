//! Runs of frames that a user allocates besides its pages: it marks them, and checks the marks
//! before freeing them.

use highwater_mm::Manager;
use highwater_mm::Mobility;
use highwater_platform::{Platform, WORDS_PER_FRAME};
use highwater_units::{Order, Pfn, Prng};

/// An allocated run.
struct Run {
    first: Pfn,
    order: Order,
    value: u64,
}

impl Run {
    /// The marked frames: the first and the last.
    fn marked(&self) -> [Pfn; 2] {
        [self.first, self.first.offset(self.order.frames() - 1)]
    }
}

/// The runs of one user.
pub(super) struct Runs {
    random: Prng,
    held: Vec<Run>,
    /// The most frames it may keep.
    room: u32,
    /// The frames it keeps.
    kept: u32,
    count: u64,
}

impl Runs {
    /// No runs yet; at most `room` frames.
    pub(super) fn new(seed: u64, thread: usize, room: u64) -> Runs {
        let random = Prng::new(seed << 8 ^ thread as u64 ^ 0x5002_0000);
        Runs { random, held: Vec::new(), room: room as u32, kept: 0, count: thread as u64 }
    }

    /// Allocates or frees a run in `often` of 1000 calls. `frames`: frames of the platform.
    pub(super) fn step<P: Platform>(&mut self, manager: &Manager<P>, often: u64, frames: u32) {
        if self.random.below(1000) >= often {
            return;
        }
        if self.random.percent(50) && !self.held.is_empty() {
            let at = self.random.below(self.held.len() as u64) as usize;
            return self.give(manager, at);
        }
        let largest = (frames / 4).max(1).ilog2().min(Order::MAX.0.into());
        let order = Order(self.random.below(u64::from(largest) + 1) as u8);
        let mobility = Mobility::ALL[self.random.below(3) as usize];
        let Some(first) = manager.alloc_run(order, mobility) else { return };
        self.count += 256;
        let run = Run { first, order, value: self.count };
        let store = |pfn| manager.platform().store(pfn, WORDS_PER_FRAME / 2, run.value);
        run.marked().into_iter().for_each(store);
        self.held.push(run);
        self.kept += order.frames();
        if self.kept > self.room {
            self.give(manager, self.held.len() - 1);
        }
    }

    /// Frees all runs.
    pub(super) fn end<P: Platform>(&mut self, manager: &Manager<P>) {
        while !self.held.is_empty() {
            self.give(manager, 0);
        }
    }

    fn give<P: Platform>(&mut self, manager: &Manager<P>, at: usize) {
        let run = self.held.swap_remove(at);
        for pfn in run.marked() {
            let found = manager.platform().load(pfn, WORDS_PER_FRAME / 2);
            assert_eq!(found, run.value, "{pfn:?} of a run of {:?}", run.order);
        }
        manager.free_run(run.first);
        self.kept -= run.order.frames();
    }
}
