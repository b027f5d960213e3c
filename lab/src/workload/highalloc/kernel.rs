//! Memory of the kernel: caches of files, and structures of processes.
//!
//! ```text
//! Kernel -- held    allocations for files: inodes, dentries, buffer heads; some are unmovable
//!        \- share   limit in pages; beyond it, each allocation frees a random older one
//! ```
//! Random frees scatter the rest over memory. No locks.

use super::config::{Config, Share};
use crate::workload::Arena;
use highwater_mm::Mobility::{self, Reclaimable, Unmovable};
use highwater_units::{Order, Pfn, Prng};

/// Kinds of allocations: percentage, order, mobility.
const KINDS: [(u64, u8, Mobility); 6] = [
    (20, 3, Reclaimable), // inodes of ext4: 8 pages
    (30, 0, Reclaimable), // dentries, buffer heads
    (10, 1, Reclaimable), // nodes of radix trees
    (20, 0, Unmovable),   // page tables of long-lived processes, small objects
    (10, 1, Unmovable),   // stacks, files
    (10, 3, Unmovable),   // network and block buffers
];

/// Page tables of a process, without those of its heap.
const TABLES: u64 = 6;

/// Kernel memory of one build.
pub(super) struct Kernel {
    held: Vec<(Pfn, Order)>,
    /// Pages of `held`.
    pages: u64,
    share: Share,
    random: Prng,
}

impl Kernel {
    /// Nothing yet.
    pub(super) fn new(config: &Config, build: usize) -> Kernel {
        let pages = config.kernel.pages / config.layout.builds as u64;
        let random = Prng::new(config.seed ^ (build as u64 + 1) << 32);
        Kernel { held: Vec::new(), pages: 0, share: Share { pages, ..config.kernel }, random }
    }

    /// Pages it should hold.
    pub(super) fn share(&self) -> u64 {
        self.share.pages
    }

    /// Pages it holds.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Makes one allocation; beyond the share, frees others.
    pub(super) fn grow(&mut self, memory: &impl Arena) {
        let mut drawn = self.random.below(100);
        let kind = KINDS.iter().find(|(percent, ..)| {
            let is_it = drawn < *percent;
            drawn = drawn.saturating_sub(*percent);
            is_it
        });
        let &(_, order, mobility) = kind.expect("they are 100 percent");
        if let Some(first) = memory.alloc_run(Order(order), mobility) {
            self.held.push((first, Order(order)));
            self.pages += u64::from(Order(order).frames());
        }
        while self.pages > self.share.pages {
            self.shrink(memory);
        }
    }

    /// Frees most of it, as after the files were deleted.
    pub(super) fn forget(&mut self, memory: &impl Arena) {
        let left = self.held.len() * self.share.left_percent as usize / 100;
        while self.held.len() > left {
            self.shrink(memory);
        }
    }

    /// Frees all.
    pub(super) fn end(&mut self, memory: &impl Arena) {
        self.held.drain(..).for_each(|(first, _)| memory.free_run(first));
        self.pages = 0;
    }

    fn shrink(&mut self, memory: &impl Arena) {
        let at = self.random.below(self.held.len() as u64) as usize;
        let (first, order) = self.held.swap_remove(at);
        self.pages -= u64::from(order.frames());
        memory.free_run(first);
    }
}

/// Allocates the stack and page tables of a process of `pages` pages.
pub(super) fn process(memory: &impl Arena, pages: u64) -> Vec<Pfn> {
    let stack = memory.alloc_run(Order(1), Unmovable);
    let tables = (0..TABLES + pages.div_ceil(512)).map(|_| memory.alloc_run(Order(0), Unmovable));
    stack.into_iter().chain(tables.flatten()).collect()
}
