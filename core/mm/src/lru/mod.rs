//! Recency: an active and an inactive list per node, fed through per-CPU batches.
//!
//! ```text
//! Lru -- CPU batches: Lock<FrameBatch>   15 pages, then to the active list under one lock
//!     \- Lock<IndexLists>                ACTIVE, INACTIVE; front = newest, back = next to scan
//!     \- len[list]                       for decisions without the lock
//! ```
//! Locking: a CPU's batch, then the lists (`LruBatch -> Lru`). Pages are taken off in batches of 32
//! ([`Lru::isolate`]) and looked at without a lock. A page dropped meanwhile comes out of
//! [`Lru::add`] or [`Lru::putback`] as an orphan, for the caller to free: see
//! [`crate::frame::Place`]. New pages start active and must be found unused twice before they go (a
//! second chance).

#[cfg(test)]
mod lru_fuzz;

use crate::frame::{Frames, Place};
use highwater_platform::{Atomic, FrameRange, Guard, Lock, LockClass, Platform};
use highwater_units::{BATCH_PAGES_MAX, CpuId, FrameBatch, IndexLists, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// Pages a CPU collects before it takes the lists' lock (folio_batch).
const CPU_BATCH: usize = 15;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Used lately.
    Active = 0,
    /// Candidates for eviction.
    Inactive = 1,
}

impl List {
    fn place(self) -> Place {
        match self {
            List::Active => Place::Active,
            List::Inactive => Place::Inactive,
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

/// The lists of one node.
pub struct Lru<P: Platform> {
    range: FrameRange,
    lists: P::Lock<IndexLists>,
    batches: Vec<P::Lock<FrameBatch>>,
    len: [P::Atomic<u32>; 2],
}

impl<P: Platform> Lru<P> {
    /// Empty lists for the frames of a node.
    pub fn new(platform: &P, range: FrameRange) -> Lru<P> {
        let batch = |_| platform.new_lock(LockClass::LruBatch, FrameBatch::default());
        let lists = IndexLists::new(2, range.frames as usize);
        Lru {
            range,
            lists: platform.new_lock(LockClass::Lru, lists),
            batches: (0..platform.cpus()).map(batch).collect(),
            len: [Atomic::new(0), Atomic::new(0)],
        }
    }

    /// Pages on a list; those in batches do not count.
    pub fn len(&self, list: List) -> u32 {
        self.len[list as usize].load(Relaxed)
    }

    /// Whether both lists are empty.
    pub fn is_empty(&self) -> bool {
        self.len(List::Active) + self.len(List::Inactive) == 0
    }

    /// Adds pages that just came into use; a list at a time through the CPU's batch. Returns
    /// orphans to free.
    pub fn add(&self, frames: &Frames<P>, cpu: CpuId, pages: &[Pfn]) -> FrameBatch {
        for pfn in pages {
            let entered = frames.place(*pfn).change(Place::Off, Place::Batch);
            debug_assert_eq!(entered, Ok(()), "{pfn:?} was on a list already");
        }
        let mut batch = self.batches[usize::from(cpu.0)].lock();
        batch.visits(1);
        let mut orphans = FrameBatch::default();
        if batch.len() + pages.len() >= CPU_BATCH {
            let mut lists = self.lists.lock();
            lists.visits(batch.len() + pages.len());
            self.link(frames, &mut lists, &batch, Place::Batch, List::Active, &mut orphans);
            self.link(frames, &mut lists, pages, Place::Batch, List::Active, &mut orphans);
            *batch = FrameBatch::default();
        } else {
            pages.iter().for_each(|pfn| batch.push(*pfn));
        }
        orphans
    }

    /// Puts what CPUs hold in batches on the active list. Returns orphans to free, of one CPU at a
    /// time through `orphaned`.
    pub fn drain(&self, frames: &Frames<P>, mut orphaned: impl FnMut(&[Pfn])) {
        for batch in &self.batches {
            let mut batch = batch.lock();
            batch.visits(1);
            // Most are, on a machine of many CPUs: they need no turn at the lists.
            if batch.is_empty() {
                continue;
            }
            let mut orphans = FrameBatch::default();
            let mut lists = self.lists.lock();
            lists.visits(batch.len());
            self.link(frames, &mut lists, &batch, Place::Batch, List::Active, &mut orphans);
            drop(lists);
            *batch = FrameBatch::default();
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
                Place::Active => self.unlink(frames, pfn, List::Active),
                Place::Inactive => self.unlink(frames, pfn, List::Inactive),
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
            batch.lock().iter().for_each(|pfn| found(*pfn, Place::Batch));
        }
        let lists = self.lists.lock();
        for list in [List::Active, List::Inactive] {
            let pages = lists.iter(list as usize).map(|index| self.range.first.offset(index));
            pages.for_each(|pfn| found(pfn, list.place()));
        }
    }
}
