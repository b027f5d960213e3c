//! Recency: active and inactive lists of anonymous and of files' pages per node (a lruvec), fed
//! through per-CPU batches.
//!
//! ```text
//! Lru -- CPU batches: Lock<CpuBatch>     15 pages, then to their lists under one lock
//!     |- Lock<IndexLists>                front = newest, back = next to scan
//!     |- len[list]                       for decisions without the lock
//!     \- Workingset                      refaults and costs                workingset.rs
//! ```
//! Locking: a CPU's batch, then the lists (`LruBatch -> Lru`). Pages are taken off in batches of 32
//! ([`Lru::isolate`]) and looked at without a lock. A page dropped meanwhile comes out of
//! [`Lru::add`] or [`Lru::putback`] as an orphan, for the caller to free: see
//! [`crate::frame::Place`]. New anonymous pages start active and must be found unused twice before
//! they go (a second chance). New pages of files start inactive, and are activated when they are
//! used again: what is read once goes soon.

#[cfg(test)]
mod lru_fuzz;
mod workingset;

pub use crate::frame::Kind;
pub use workingset::Workingset;

use crate::frame::{Frames, Place};
use highwater_platform::{Atomic, FrameRange, Guard, Lock, LockClass, Platform};
use highwater_units::{BATCH_PAGES_MAX, CpuId, FrameBatch, IndexLists, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// Pages a CPU collects before it takes the lists' lock (folio_batch).
const CPU_BATCH: usize = 15;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Anonymous, candidates for eviction.
    InactiveAnon = 0,
    /// Anonymous, used lately.
    ActiveAnon = 1,
    /// Of files, candidates for eviction.
    InactiveFile = 2,
    /// Of files, used again lately.
    ActiveFile = 3,
}

impl List {
    /// All of them, in the order of their values.
    pub const ALL: [List; 4] =
        [List::InactiveAnon, List::ActiveAnon, List::InactiveFile, List::ActiveFile];

    /// The active list of a kind.
    pub fn active(kind: Kind) -> List {
        match kind {
            Kind::Anon => List::ActiveAnon,
            Kind::File => List::ActiveFile,
        }
    }

    /// The inactive list of a kind.
    pub fn inactive(kind: Kind) -> List {
        match kind {
            Kind::Anon => List::InactiveAnon,
            Kind::File => List::InactiveFile,
        }
    }

    /// Where its pages say they are.
    pub fn place(self) -> Place {
        match self {
            List::InactiveAnon => Place::InactiveAnon,
            List::ActiveAnon => Place::ActiveAnon,
            List::InactiveFile => Place::InactiveFile,
            List::ActiveFile => Place::ActiveFile,
        }
    }
}

/// What came of taking a page off its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was on a list or on none: the caller has the frame now.
    Taken,
    /// Another thread has it in its hands and will free it.
    Abandoned,
}

/// Pages of a CPU on their way to lists.
struct CpuBatch {
    pages: FrameBatch,
    /// Of each page.
    lists: [List; BATCH_PAGES_MAX],
}

impl CpuBatch {
    fn new() -> CpuBatch {
        CpuBatch { pages: FrameBatch::default(), lists: [List::ActiveAnon; BATCH_PAGES_MAX] }
    }

    fn push(&mut self, pfn: Pfn, list: List) {
        self.lists[self.pages.len()] = list;
        self.pages.push(pfn);
    }
}

/// The lists of one node.
pub struct Lru<P: Platform> {
    range: FrameRange,
    lists: P::Lock<IndexLists>,
    batches: Vec<P::Lock<CpuBatch>>,
    len: [P::Atomic<u32>; 4],
    workingset: Workingset<P>,
}

impl<P: Platform> Lru<P> {
    /// Empty lists for the frames of a node.
    pub fn new(platform: &P, range: FrameRange) -> Lru<P> {
        let batch = |_| platform.new_lock(LockClass::LruBatch, CpuBatch::new());
        let lists = IndexLists::new(4, range.frames as usize);
        Lru {
            range,
            lists: platform.new_lock(LockClass::Lru, lists),
            batches: (0..platform.cpus()).map(batch).collect(),
            len: [0; 4].map(Atomic::new),
            workingset: Workingset::new(),
        }
    }

    /// Refaults and costs.
    pub fn workingset(&self) -> &Workingset<P> {
        &self.workingset
    }

    /// Pages on a list; those in batches do not count.
    pub fn len(&self, list: List) -> u32 {
        self.len[list as usize].load(Relaxed)
    }

    /// Pages of a kind on its two lists.
    pub fn len_of(&self, kind: Kind) -> u32 {
        self.len(List::active(kind)) + self.len(List::inactive(kind))
    }

    /// Pages on all lists.
    pub fn listed(&self) -> u32 {
        self.len_of(Kind::Anon) + self.len_of(Kind::File)
    }

    /// Whether all lists are empty.
    pub fn is_empty(&self) -> bool {
        self.listed() == 0
    }

    /// Adds pages that just came into use to `list`, through the CPU's batch. Returns orphans to
    /// free.
    pub fn add(&self, frames: &Frames<P>, cpu: CpuId, pages: &[Pfn], list: List) -> FrameBatch {
        for pfn in pages {
            let entered = frames.place(*pfn).change(Place::Off, Place::Batch);
            debug_assert_eq!(entered, Ok(()), "{pfn:?} was on a list already");
        }
        let mut batch = self.batches[usize::from(cpu.0)].lock();
        batch.visits(1);
        let mut orphans = FrameBatch::default();
        if batch.pages.len() + pages.len() >= CPU_BATCH {
            let mut lists = self.lists.lock();
            lists.visits(batch.pages.len() + pages.len());
            self.link_batch(frames, &mut lists, &mut batch, &mut orphans);
            self.link(frames, &mut lists, pages, Place::Batch, list, &mut orphans);
        } else {
            pages.iter().for_each(|pfn| batch.push(*pfn, list));
        }
        orphans
    }

    /// Puts what CPUs hold in batches on the lists. Returns orphans to free, of one CPU at a time
    /// through `orphaned`.
    pub fn drain(&self, frames: &Frames<P>, mut orphaned: impl FnMut(&[Pfn])) {
        for batch in &self.batches {
            let mut batch = batch.lock();
            batch.visits(1);
            // Most are, on a machine of many CPUs: they need no turn at the lists.
            if batch.pages.is_empty() {
                continue;
            }
            let mut orphans = FrameBatch::default();
            let mut lists = self.lists.lock();
            lists.visits(batch.pages.len());
            self.link_batch(frames, &mut lists, &mut batch, &mut orphans);
            drop(lists);
            drop(batch);
            orphaned(&orphans);
        }
    }

    /// Takes up to `max` (at most 32) of the oldest pages off a list.
    pub fn isolate(&self, frames: &Frames<P>, list: List, max: usize) -> FrameBatch {
        let mut lists = self.lists.lock();
        let mut taken = FrameBatch::default();
        while taken.len() < max.min(BATCH_PAGES_MAX) {
            let Some(index) = lists.pop_back(list as usize) else { break };
            let pfn = self.range.first.offset(index);
            let changed = frames.place(pfn).change(list.place(), Place::Isolated);
            debug_assert_eq!(changed, Ok(()), "listed pages change place under this lock only");
            taken.push(pfn);
        }
        lists.visits(taken.len());
        self.count(&lists, list);
        taken
    }

    /// Puts isolated pages back, as the newest of `list`. Returns orphans to free.
    pub fn putback(&self, frames: &Frames<P>, pages: &[Pfn], list: List) -> FrameBatch {
        let mut orphans = FrameBatch::default();
        if !pages.is_empty() {
            let mut lists = self.lists.lock();
            lists.visits(pages.len());
            self.link(frames, &mut lists, pages, Place::Isolated, list, &mut orphans);
        }
        orphans
    }

    /// Takes a page out of wherever it is. The caller holds the lock of the page's entry, and has
    /// made the frame nobody's.
    pub fn remove(&self, frames: &Frames<P>, pfn: Pfn) -> Removal {
        loop {
            let place = frames.place(pfn).get();
            let outcome = match place {
                Place::Off => return Removal::Taken,
                Place::InactiveAnon => self.unlink(frames, pfn, List::InactiveAnon),
                Place::ActiveAnon => self.unlink(frames, pfn, List::ActiveAnon),
                Place::InactiveFile => self.unlink(frames, pfn, List::InactiveFile),
                Place::ActiveFile => self.unlink(frames, pfn, List::ActiveFile),
                // A tail only while its large page is on its way out.
                Place::Batch | Place::Isolated | Place::Tail => {
                    frames.place(pfn).change(place, Place::Orphan).map(|()| Removal::Abandoned)
                }
                Place::Orphan => unreachable!("an orphan has no entry to be removed through"),
            };
            // A change of place between the look and the act: look again.
            if let Ok(removal) = outcome {
                return removal;
            }
        }
    }

    fn unlink(&self, frames: &Frames<P>, pfn: Pfn, list: List) -> Result<Removal, Place> {
        let mut lists = self.lists.lock();
        lists.visits(1);
        frames.place(pfn).change(list.place(), Place::Off)?;
        lists.remove(list as usize, pfn.0 - self.range.first.0);
        self.count(&lists, list);
        Ok(Removal::Taken)
    }

    /// Empties a CPU's batch: stretches of pages that go to one list.
    fn link_batch(
        &self,
        frames: &Frames<P>,
        lists: &mut IndexLists,
        batch: &mut CpuBatch,
        orphans: &mut FrameBatch,
    ) {
        let kept = std::mem::replace(batch, CpuBatch::new());
        let mut at = 0;
        while at < kept.pages.len() {
            let list = kept.lists[at];
            let alike = kept.lists[at..kept.pages.len()].iter().take_while(|l| **l == list);
            let end = at + alike.count();
            self.link(frames, lists, &kept.pages[at..end], Place::Batch, list, orphans);
            at = end;
        }
    }

    /// Puts `pages`, whose place is `from`, on a list, except orphans.
    fn link(
        &self,
        frames: &Frames<P>,
        lists: &mut IndexLists,
        pages: &[Pfn],
        from: Place,
        list: List,
        orphans: &mut FrameBatch,
    ) {
        for pfn in pages {
            match frames.place(*pfn).change(from, list.place()) {
                Ok(()) => lists.push_front(list as usize, pfn.0 - self.range.first.0),
                Err(_) => {
                    let freed = frames.place(*pfn).change(Place::Orphan, Place::Off);
                    debug_assert_eq!(freed, Ok(()), "only an orphan is not where it was");
                    orphans.push(*pfn);
                }
            }
        }
        self.count(lists, list);
    }

    fn count(&self, lists: &IndexLists, list: List) {
        self.len[list as usize].store(lists.len(list as usize), Relaxed);
    }

    /// Calls `found` with every page on a list or in a batch, for [`crate::verify`].
    pub(crate) fn each(&self, mut found: impl FnMut(Pfn, Place)) {
        for batch in &self.batches {
            batch.lock().pages.iter().for_each(|pfn| found(*pfn, Place::Batch));
        }
        let lists = self.lists.lock();
        for list in List::ALL {
            let pages = lists.iter(list as usize).map(|index| self.range.first.offset(index));
            pages.for_each(|pfn| found(pfn, list.place()));
        }
    }
}
