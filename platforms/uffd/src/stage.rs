//! The stage: memory for frames that have contents while their page is not in the program.
//!
//! ```text
//! frame -- table -- a page of the stage    filled by a device, or copied out of the program
//!                |- the program            its page is mapped: the frame has no memory here
//!                \- nothing                free, or zeros that were never stored to
//! ```
//! A mapped page exists only in the program. A page is swapped in by UFFDIO_COPY from the stage,
//! and evicted by a copy to the stage. The stage's pages are reused at once, so they stay in the
//! CPU's cache. Mapping a page flushes no TLB, because no other mapping of this process changes. A
//! frame without a page of the stage reads as zeros: page 0 is the kernel's zero page.
//!
//! Conservation: frames that are mapped, plus frames with a page of the stage, are at most the
//! frames in use; `mapped + pool.backed()` is the memory of the budget in use, plus the pages that
//! the pool keeps for later.

use crate::drops::Drops;
use crate::pool::Pool;
use highwater_devices::Arena;
use highwater_os::sys::{self, Advice};
use highwater_platform::{OutOfHostMemory, WORDS_PER_FRAME};
use highwater_units::{Bytes, CpuId, PAGE_SIZE, Pfn};
use std::io;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Pages of zeros to copy from with one call: a large page.
const ZEROS: usize = 512;

/// The stage.
pub(crate) struct Stage {
    base: *mut u8,
    len: usize,
    /// The page of each frame; 0: none.
    table: Vec<AtomicU32>,
    zeros: *mut u8,
    pool: Pool,
    mapped: AtomicU64,
    /// Common pages that have parted so far, see `parting.rs` ([`Stage::parted`]).
    parted: AtomicU64,
    peak: AtomicU64,
}

// SAFETY: `base` and `zeros` live as long as the stage; a frame's page belongs to the frame's user.
unsafe impl Send for Stage {}
// SAFETY: as for Send; the rest is Sync.
unsafe impl Sync for Stage {}

impl Stage {
    pub(crate) fn new(frames: u32, cpus: usize) -> io::Result<Stage> {
        let len = (Pool::size(frames, cpus) as usize + 1) * PAGE_SIZE;
        let base = sys::map_anonymous(len)?;
        // A forked child has a stage of its own. Kernels without huge pages refuse the second
        // advice, and do not need it. Page 0 and the zeros are only read, so that the kernel's zero
        // page backs them.
        // SAFETY: the stage was just made.
        unsafe {
            sys::advise(base, len, Advice::LinuxDontFork)?;
            let _ = sys::advise(base, len, Advice::LinuxNoHugepage);
            sys::protect(base, PAGE_SIZE, libc::PROT_READ)?;
        }
        let zeros = sys::map_anonymous(ZEROS * PAGE_SIZE)?;
        // SAFETY: as above.
        let _ = unsafe { sys::advise(zeros, ZEROS * PAGE_SIZE, Advice::LinuxNoHugepage) };
        Ok(Stage {
            base,
            len,
            table: highwater_os::zeros::<u32>(frames as usize),
            zeros,
            pool: Pool::new(base, frames, cpus),
            mapped: AtomicU64::new(0),
            parted: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        })
    }

    /// A page of zeros, only to be read.
    pub(crate) fn zeros(&self) -> *mut u8 {
        self.zeros
    }

    /// The number of frames.
    pub(crate) fn frames(&self) -> u32 {
        self.table.len() as u32
    }

    /// Address and length.
    pub(crate) fn range(&self) -> (u64, usize) {
        (self.base as u64, self.len)
    }

    /// The frames as devices see them.
    pub(crate) fn arena(&self) -> Arena {
        // SAFETY: the table's pages lie in the stage, which lives as long as the platform. Page 0
        // is only read: devices fill frames that are populated.
        unsafe { Arena::with_table(self.base, &self.table) }
    }

    /// Pages of the stage with memory.
    #[cfg(test)]
    pub(crate) fn backed(&self) -> u32 {
        self.pool.backed()
    }

    /// The most memory that was in use at once: in the program and here.
    pub(crate) fn peak(&self) -> Bytes {
        Bytes::of_pages(self.peak.load(Relaxed))
    }

    /// Pages with memory, in the program and here.
    pub(crate) fn in_use(&self) -> u64 {
        self.mapped.load(Relaxed) + u64::from(self.pool.backed())
    }

    /// Only `frames` of the frames are used from now on.
    pub(crate) fn fit(&self, frames: u64, drops: &Drops) {
        self.pool.fit(frames.min(self.frames().into()) as u32, drops);
    }

    /// Gives a frame a page, unless it has one.
    pub(crate) fn populate(&self, cpu: CpuId, pfn: Pfn) -> Result<(), OutOfHostMemory> {
        let page = &self.table[pfn.index()];
        if page.load(Relaxed) == 0 {
            page.store(self.pool.take(cpu)?, Release);
        }
        Ok(())
    }

    /// Gives the pages of frames back to the pool.
    pub(crate) fn release(&self, cpu: CpuId, frames: &[Pfn], drops: &Drops) {
        for pfn in frames {
            match self.table[pfn.index()].swap(0, AcqRel) {
                0 => {}
                page => self.pool.give(cpu, page, drops),
            }
        }
    }

    /// Stretches of frames with adjacent memory: offset in the list, address, pages. Frames without
    /// a page are zeros.
    pub(crate) fn stretches<'a>(
        &'a self,
        frames: &'a [Pfn],
    ) -> impl Iterator<Item = (usize, u64, usize)> + 'a {
        let page = |pfn: &Pfn| self.table[pfn.index()].load(Relaxed);
        let mut at = 0;
        std::iter::from_fn(move || {
            let (first, rest) = (page(frames.get(at)?), &frames[at..]);
            let (offset, zeros) = (at, first == 0);
            let follows = |(index, pfn): &(usize, &Pfn)| match page(pfn) {
                0 => zeros && *index < ZEROS,
                page => !zeros && page == first + *index as u32,
            };
            let pages = rest.iter().enumerate().take_while(follows).count();
            at += pages;
            let address = if zeros { self.zeros } else { self.page(first) };
            Some((offset, address as u64, pages))
        })
    }

    /// Counts pages that were mapped into the program.
    pub(crate) fn count_mapped(&self, pages: usize) {
        self.mapped.fetch_add(pages as u64, Relaxed);
        let now = self.in_use().min(self.table.len() as u64);
        if now > self.peak.load(Relaxed) {
            self.peak.fetch_max(now, Relaxed);
        }
    }

    /// Counts pages that were taken out of the program.
    pub(crate) fn count_dropped(&self, pages: usize) {
        self.mapped.fetch_sub(pages as u64, Relaxed);
    }

    /// Counts pages that other processes may map, and that were taken out of the program or are
    /// about to be written to.
    pub(crate) fn count_parted(&self, pages: usize) {
        self.parted.fetch_add(pages as u64, Relaxed);
    }

    /// The number of pages counted by [`Stage::count_parted`] so far.
    pub(crate) fn parted(&self) -> u64 {
        self.parted.load(Relaxed)
    }

    /// The memory of a frame, for a page's bytes.
    pub(crate) fn address(&self, pfn: Pfn) -> *mut u8 {
        self.page(self.table[pfn.index()].load(Relaxed))
    }

    /// Copies the contents of one frame to another, which is populated.
    pub(crate) fn copy(&self, from: Pfn, to: Pfn) {
        assert_ne!(from, to, "a frame is copied to another");
        // SAFETY: two frames that only the caller uses now (contract of Memory).
        unsafe { self.address(to).copy_from_nonoverlapping(self.address(from), PAGE_SIZE) };
    }

    /// Whether a frame holds only zeros.
    pub(crate) fn is_zero(&self, pfn: Pfn) -> bool {
        // SAFETY: a page that is aligned to 8 and that only the caller uses now (contract of
        // Memory).
        let words =
            unsafe { slice::from_raw_parts(self.address(pfn).cast::<u64>(), WORDS_PER_FRAME) };
        words.iter().all(|word| *word == 0)
    }

    /// A word of a frame.
    pub(crate) fn word(&self, pfn: Pfn, word: usize) -> &AtomicU64 {
        assert!(word < WORDS_PER_FRAME, "word {word} of a frame");
        // SAFETY: a word of a page of the stage, aligned to 8.
        unsafe { AtomicU64::from_ptr(self.address(pfn).cast::<u64>().add(word)) }
    }

    fn page(&self, page: u32) -> *mut u8 {
        self.base.wrapping_add(page as usize * PAGE_SIZE)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let (_, len) = self.range();
        // SAFETY: mapped in `new` and used by `self` only.
        unsafe {
            sys::unmap(self.base, len);
            sys::unmap(self.zeros, ZEROS * PAGE_SIZE);
        }
    }
}
