//! Maps frames into the program and unmaps them.

use crate::memory::WORDS_PER_FRAME;
use highwater_units::{Pfn, SpaceId, Vpn};
use std::ops::Range;

/// Which accesses to a mapped page do not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Reads. The first write faults, so until then the page equals its slot or its file.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// How the manager finds out whether a page was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recency {
    /// Every access pins the page through the manager, which sets an accessed bit (guards).
    AccessedBit,
    /// There is no such bit. The manager unmaps the page; a page in use faults and is mapped again.
    Unmapping,
}

/// Why a batch stopped at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The page is pinned for I/O or shared with another process. It stays mapped.
    Busy,
    /// The page is not mapped: the program dropped it by a call that the manager did not see.
    Vanished,
    /// A page is mapped there already.
    Occupied,
    /// The operating system's error number, for anything else.
    Failed(i32),
}

/// How many pages of a batch were done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of pages that were done, counted from the first.
    pub done: usize,
    /// Why the next page was not done; `None` if and only if all were.
    pub stop: Option<Stop>,
}

impl Progress {
    /// All `pages` pages were done.
    pub fn all(pages: usize) -> Progress {
        Progress { done: pages, stop: None }
    }

    /// The first `done` pages were done; the next one was not.
    pub fn until(done: usize, stop: Stop) -> Progress {
        Progress { done, stop: Some(stop) }
    }
}

/// A page of a batch that is unmapped together.
#[derive(Clone, Copy, Debug)]
pub struct UnmapPage {
    /// Its space.
    pub space: SpaceId,
    /// Its number there.
    pub vpn: Vpn,
    /// Its frame.
    pub pfn: Pfn,
    /// How it is mapped: a page mapped read-only cannot change.
    pub mapped: Protection,
    /// The outcome, set by the platform.
    pub result: Result<(), Stop>,
}

/// Most pages of a batch that is unmapped together.
pub const UNMAP_PAGES_MAX: usize = 128;

/// The operating system refused to create a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachError(
    /// The operating system's error number.
    pub i32,
);

/// The page tables of the program.
///
/// Purpose: the manager decides which page is in which frame; this trait makes a frame accessible
/// to the program, and inaccessible again. While a frame is mapped, its contents are reached only
/// through the space; while it is not, only through [`crate::Memory`] and [`crate::Block`].
///
/// Obligations:
/// - The pages of one call are consecutive. The frames are populated, up to 512, in any order; runs
///   of adjacent frames should take one system call and one TLB flush.
/// - The caller holds the entries of the pages, so calls for one page never overlap. Exceptions are
///   [`Mmu::coalesce`] and [`Mmu::holds`].
/// - [`Mmu::map`] publishes: a thread that accesses the page sees all that was written to the frame
///   before. [`Mmu::unmap`] collects: when it returns, the frame has every store of the program,
///   and no CPU has a translation of the page.
/// - Pages before [`Progress::done`] are done, and the others are as they were. The caller looks at
///   [`Progress::stop`], handles that page, and calls again for the rest.
/// - A thread that faults while its page is being unmapped must fault again or be reported to the
///   manager. It must not be lost.
///
/// Cost: `map` and `unmap` are on the path of every fault and of reclaim; for up to 16 pages they
/// should cost about one system call. The caller holds no locks but entries.
///
/// Used by `core/mm/src/fault/map.rs` (`map`), `core/mm/src/run.rs` (`unmap`),
/// `core/mm/src/range.rs` (`discard`, `poison`, `unpoison`), `core/mm/src/snapshot.rs` (`copy`),
/// `core/mm/src/snapshot/shared.rs` (`map`, `inherit`),
/// `core/mm/src/khugepaged/mod.rs` (`coalesce`), `core/mm/src/fault/resident.rs` (`allow_write`,
/// `holds`), `core/mm/src/fault/pointers.rs` (`addresses`, `peek`),
/// `core/mm/src/reclaim/aging.rs` (`recency`) and `core/mm/src/reclaim/region.rs`
/// (`unmap_batch`).
pub trait Mmu {
    /// How the manager finds out whether a page was used. Constant.
    fn recency(&self) -> Recency;

    /// Creates the address range of a space of `pages` pages of 4 KiB, all unmapped. The manager
    /// calls it once for each space, before any other call that names the space.
    ///
    /// # Errors
    /// The operating system refuses the address range, or the handling of its faults.
    fn attach(&self, space: SpaceId, pages: u64) -> Result<(), AttachError>;

    /// The addresses of a space's pages in the program. `None`: they have none that the program
    /// could keep as pointers.
    fn addresses(&self, _space: SpaceId) -> Option<Range<u64>> {
        None
    }

    /// Copies the words of a mapped page, whose entry the caller holds. `false` if the program may
    /// not read it, or it has vanished. Only for spaces with [`Mmu::addresses`].
    fn peek(&self, _space: SpaceId, _vpn: Vpn, _words: &mut [u64; WORDS_PER_FRAME]) -> bool {
        false
    }

    /// Maps `frames` at `first` and the following pages, and wakes the threads that wait for these
    /// pages. [`Stop::Occupied`] is a defect of the manager or the platform: only the manager maps
    /// pages.
    fn map(&self, space: SpaceId, first: Vpn, frames: &[Pfn], protection: Protection) -> Progress;

    /// Counts frames as those of pages that are mapped already: a fork has shared them with this
    /// process. They are not populated.
    fn inherit(&self, _frames: &[Pfn]) {}

    /// Unmaps the pages from `first` on, at which `frames` are mapped. When it returns, no access
    /// is in progress, every further access faults, and the frames have the contents. At a page
    /// that is [`Stop::Busy`] nothing changes. At a page that is [`Stop::Vanished`] the frame is
    /// populated again, with undefined contents.
    fn unmap(&self, space: SpaceId, first: Vpn, frames: &[Pfn]) -> Progress;

    /// Unmaps up to [`UNMAP_PAGES_MAX`] pages, of any spaces, each as by [`Mmu::unmap`] and with a
    /// result of its own. The caller holds their entries. They are mostly pages of few blocks of
    /// 2 MiB, in any order: a platform whose TLB flushes are expensive should flush once for many.
    fn unmap_batch(&self, pages: &mut [UnmapPage]) {
        for page in pages {
            let stop = self.unmap(page.space, page.vpn, &[page.pfn]).stop;
            page.result = stop.map_or(Ok(()), Err);
        }
    }

    /// Unmaps a page for which [`Mmu::unmap`] returned [`Stop::Busy`], and drops its contents. The
    /// frame is then populated, with undefined contents.
    fn discard(&self, space: SpaceId, vpn: Vpn, pfn: Pfn);

    /// Arranges that accesses to an unmapped page fail without asking the manager, and wakes the
    /// threads that wait for the page. Does nothing to a page that is poisoned. `false`: the
    /// platform cannot. By default accesses go on asking the manager, which refuses them.
    fn poison(&self, _space: SpaceId, _vpn: Vpn) -> bool {
        true
    }

    /// Ends [`Mmu::poison`]: accesses to the page fault as those to other unmapped pages do. Does
    /// nothing to a page that is not poisoned.
    fn unpoison(&self, _space: SpaceId, _vpn: Vpn) {}

    /// Copies a mapped page for which [`Mmu::unmap`] returned [`Stop::Busy`] from its frame `from`
    /// into another frame, which is populated and not mapped. The page stays mapped.
    fn copy(&self, space: SpaceId, vpn: Vpn, from: Pfn, to: Pfn);

    /// Lets the processor translate a block of 2 MiB by one TLB entry, if it can. The pages from
    /// `first` on were mapped to the frames from `head` on when the caller looked. This is a hint
    /// and may be slow. The caller holds no entries, so pages of the block may be unmapped at the
    /// same time; accesses go on, and no contents change.
    fn coalesce(&self, space: SpaceId, first: Vpn, head: Pfn);

    /// Allows writes to consecutive pages that were mapped [`Protection::ReadOnly`] or that
    /// [`Mmu::unmap_batch`] made read-only while it unmapped the pages around them, and wakes the
    /// threads that wait to write to them. Does nothing to a page that is not mapped any more.
    fn allow_write(&self, space: SpaceId, first: Vpn, pages: usize);

    /// Whether a page is mapped. Slow; the manager calls it only when the program faults on a page
    /// whose entry says mapped. The caller may hold no entry, so the answer is a hint.
    fn holds(&self, space: SpaceId, vpn: Vpn) -> bool;
}
