//! Which part of the range core files contain: the blocks in which pages were used.
//!
//! ```text
//! range at the start: MADV_DONTDUMP      a fault in a block of 64 MiB: MADV_DODUMP, once
//! ```
//! The kernel visits every page of a mapping that it dumps, and the core file is as long as the
//! mapping: the whole range would take minutes. The manager's memory is left out. Swapped-out pages
//! are holes in a core file, and read as zeros.

use highwater_mm::Range;
use highwater_os::sys::{self, Advice};
use highwater_units::{PAGE_SIZE, Vpn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Pages per block: few mappings, and little unused memory in them.
const BLOCK: u64 = (64 << 20) / PAGE_SIZE as u64;

/// Which blocks are dumped.
pub(crate) struct Dump {
    base: u64,
    pages: u64,
    /// One bit per block: whether it is dumped.
    blocks: Box<[AtomicU64]>,
    /// Whether the program ever excluded pages.
    leaves_out: AtomicBool,
}

impl Dump {
    /// Excludes `parts` of a range at `base`, except blocks that also contain pages of the
    /// kernel's: to include such a block later would undo the program's advice about those pages.
    /// `parts` are in order.
    pub(crate) fn new(base: u64, pages: u64, parts: &[(Vpn, Vpn)]) -> Dump {
        let words = pages.div_ceil(BLOCK).div_ceil(u64::BITS.into());
        let blocks = (0..words).map(|_| AtomicU64::new(0)).collect();
        let dump = Dump { base, pages, blocks, leaves_out: AtomicBool::new(false) };
        for (first, end) in parts {
            dump.advise(Range { first: *first, end: *end }, Advice::LinuxDontDump);
        }
        let starts = parts.iter().map(|part| part.0).chain([Vpn(pages)]);
        let ends = [Vpn(0)].into_iter().chain(parts.iter().map(|part| part.1));
        for (end, start) in ends.zip(starts).filter(|(end, start)| end < start) {
            (end.0 / BLOCK..start.0.div_ceil(BLOCK)).for_each(|block| dump.begin(block, parts));
        }
        dump
    }

    /// Includes the parts of a block that are not the kernel's, from the beginning.
    fn begin(&self, block: u64, parts: &[(Vpn, Vpn)]) {
        if !self.mark(block) {
            return;
        }
        let (first, end) = (Vpn(block * BLOCK), Vpn((block + 1) * BLOCK));
        let parts = &parts[parts.partition_point(|part| part.1 <= first)..];
        for part in parts.iter().take_while(|part| part.0 < end) {
            let range = Range { first: first.max(part.0), end: end.min(part.1) };
            self.advise(range, Advice::LinuxDoDump);
        }
    }

    /// Includes the blocks of pages that are about to be used.
    pub(crate) fn include(&self, range: Range) {
        for block in range.first.0 / BLOCK..range.end.0.div_ceil(BLOCK) {
            if self.mark(block) {
                let (first, end) = (block * BLOCK, ((block + 1) * BLOCK).min(self.pages));
                self.advise(Range { first: Vpn(first), end: Vpn(end) }, Advice::LinuxDoDump);
            }
        }
    }

    /// Marks a block as dumped; `false`: it was marked already, or is not in the range.
    fn mark(&self, block: u64) -> bool {
        let (word, bit) = (block / u64::from(u64::BITS), 1 << (block % u64::from(u64::BITS)));
        let word = self.blocks.get(word as usize);
        word.is_some_and(|word| {
            word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0
        })
    }

    /// Follows MADV_DONTDUMP and MADV_DODUMP.
    pub(crate) fn follow(&self, range: Range, advice: Advice) {
        self.include(range);
        if advice == Advice::LinuxDontDump {
            self.leaves_out.store(true, Relaxed);
        }
        self.advise(range, advice);
    }

    /// Undoes the program's exclusions for pages that go out of use.
    pub(crate) fn forget(&self, range: Range) {
        if self.leaves_out() {
            self.include(range);
            self.advise(range, Advice::LinuxDoDump);
        }
    }

    /// Whether the program has excluded pages.
    pub(crate) fn leaves_out(&self) -> bool {
        self.leaves_out.load(Relaxed)
    }

    fn advise(&self, range: Range, advice: Advice) {
        let first = self.base + range.first.0 * PAGE_SIZE as u64;
        leave_out_or_not(first, (range.end.0 - range.first.0) as usize * PAGE_SIZE, advice);
    }
}

/// Excludes memory of the manager's from core files.
pub(crate) fn leave_out(address: u64, len: usize) {
    leave_out_or_not(address, len, Advice::LinuxDontDump);
}

/// A refusal is ignored: a core file is only an aid.
fn leave_out_or_not(address: u64, len: usize, advice: Advice) {
    // SAFETY: this advice changes no contents.
    let _ = unsafe { sys::advise(address as *mut u8, len, advice) };
}
