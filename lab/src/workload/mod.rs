//! Workloads: generators of accesses, generic over the memory they run on.
//!
//! ```text
//! Service ── target() ──> Target ── enter() ──> Access ── page() ──> Page (derefs to Words)
//!         ├─ counters() ─> Snapshot, locks() ─> LockStatistics                         ^
//!         └─ Arena: alloc_run() ──> 2^order frames, drop_pages()                       │
//!              └─ Folios: folio() ──> pages of 2^order pages                           │
//! pmbench: pattern ──> page, word ──> one 8-byte load or store ────────────────────────┘
//!          content + history: the value that must be there
//! usemem:  every page once, or pages at random; content, and a mark for each word that was written
//! objects: what the kernel allocates for mmap1 and hackbench, from slabs
//! streams: files from end to end, copied page by page or past memory
//! highalloc: large blocks, while kernels are built; blocks: beside objects in an arena
//! walk:    words at random, each of which decides the next
//! workers: the threads of each; outcome: what they measured; figures: numbers to print
//! ```
//! All calls are monomorphised: on plain memory an access is one instruction. No locks: workers
//! share the target, the history (atomics) and a flag that stops them at the first failure.

pub mod blocks;
pub mod content;
pub mod extent;
pub mod figures;
#[cfg(test)]
mod heap;
pub mod highalloc;
pub mod history;
pub mod host;
pub mod lcg;
pub mod objects;
pub mod outcome;
pub mod pattern;
pub mod pmbench;
pub mod streams;
pub mod tally;
mod ticks;
pub mod usemem;
pub mod walk;
mod workers;
pub mod world;
mod zipf;

use highwater_mm::Mobility;
use highwater_mm::stats::Snapshot;
use highwater_platform::LockStatistics;
use highwater_units::{Nanos, Order, PAGE_SIZE, Pfn};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::AtomicU64;
use world::World;

/// 8-byte words in a page.
pub const WORDS: usize = PAGE_SIZE / 8;

/// A page as its words. An access is one relaxed load or store: never torn.
pub type Words = [AtomicU64; WORDS];

/// What the caller will do with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Load words only.
    Read,
    /// Load and store words.
    Write,
}

/// A page could not be accessed: memory and swap are full, or a device failed. Shown as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied(pub String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Memory under test, shared by all threads of a workload. Starts as zeros.
pub trait Target: Sync {
    /// What one thread keeps to reach the memory.
    type Access<'a>: Access
    where
        Self: 'a;

    /// Its length.
    fn pages(&self) -> u64;

    /// Called once by every thread, on that thread.
    fn enter(&self) -> Self::Access<'_>;
}

/// One thread's access to the pages.
pub trait Access {
    /// A page, held in memory while this exists, if the target has to hold it.
    type Page<'a>: Deref<Target = Words>
    where
        Self: 'a;

    /// Page `index` (below [`Target::pages`]), brought into memory if it is not there.
    ///
    /// # Errors
    /// The page cannot be served.
    fn page(&mut self, index: u64, intent: Intent) -> Result<Self::Page<'_>, Denied>;

    /// Reads the whole page `index` into the reader's own memory, as read(2) does, and shows it.
    ///
    /// # Errors
    /// The page cannot be served.
    fn copy(&mut self, index: u64, see: &mut dyn FnMut(&Words)) -> Result<(), Denied> {
        see(&*self.page(index, Intent::Read)?);
        Ok(())
    }

    /// Reads pages of one file by one transfer, past caches where the subject can (O_DIRECT), and
    /// shows each with its number.
    ///
    /// # Errors
    /// A page cannot be served.
    fn copy_past(
        &mut self,
        mut pages: Range<u64>,
        see: &mut dyn FnMut(u64, &Words),
    ) -> Result<(), Denied> {
        pages.try_for_each(|index| self.copy(index, &mut |words| see(index, words)))
    }

    /// Announces that page `index` will be used soon (prefetch); ignored by subjects without it.
    fn ahead(&mut self, _index: u64) {}
}

/// Memory, the counters of its manager, and the world in which its users run.
pub trait Service {
    /// The memory it serves.
    type Target: Target;
    /// Where its users run.
    type World: World;

    /// The memory.
    fn target(&self) -> &Self::Target;

    /// The threads and clocks of its users.
    fn world(&self) -> &Self::World;

    /// Counts since the service began; only differences of two snapshots are used.
    fn counters(&self) -> Snapshot;

    /// What its locks have cost since it began; `None` where locks are not measured.
    fn locks(&self) -> Option<LockStatistics>;

    /// System calls for pages (userfaultfd, madvise) since it began; `None` where it makes none.
    fn calls(&self) -> Option<u64> {
        None
    }
}

/// Memory whose owner gives out adjacent frames too, and takes pages back.
pub trait Arena: Service {
    /// 2^order adjacent frames, until they are freed.
    fn alloc_run(&self, order: Order, mobility: Mobility) -> Option<Pfn>;

    /// Gives them back.
    fn free_run(&self, first: Pfn);

    /// Drops pages of one space: a process ends, a file is deleted.
    fn drop_pages(&self, pages: Range<u64>);

    /// The calling thread computes for a time.
    fn work(&self, time: Nanos);
}

/// An arena whose set consists of folios, each of 2^order pages that are contiguous in memory, of
/// every order up to 9. A folio begins at each multiple of 2^order pages of the set. A caller uses
/// each part of the set with one order only.
pub trait Folios: Arena {
    /// Shows all pages of a folio with their numbers, while they are held.
    ///
    /// # Errors
    /// It cannot be served.
    fn folio(
        &self,
        first: u64,
        order: Order,
        intent: Intent,
        see: &mut dyn FnMut(u64, &Words),
    ) -> Result<(), Denied>;

    /// Drops a folio.
    fn drop_folio(&self, first: u64, order: Order);
}
