//! The LRU lists of a node (a lruvec): active and inactive pages, anonymous ones and files'.
//!
//! ```text
//! Lru -- CPU batches: Lock<CpuBatch>     15 pages, then to their lists under one lock
//!     |- Shards                          the lists, in one shard or several   shards.rs
//!     \- Workingset                      refaults and costs                   workingset.rs
//! ```
//! Locking: a CPU's batch, then a shard (`LruBatch -> Lru`). Pages are isolated in batches of 32
//! ([`Lru::isolate`]) and used without a lock. A page that is dropped while it is in a batch or
//! isolated comes out of [`Lru::add`] or [`Lru::putback`] as an orphan, which the caller frees: see
//! [`crate::frame::Place`].
//!
//! New anonymous pages start active, so they are evicted when found unused twice. New pages of
//! files start inactive and are activated by a second use, so pages that are read once go first.

mod list;
#[cfg(test)]
mod lru_fuzz;
mod shards;
mod workingset;

pub use crate::frame::Kind;
pub use list::{List, Mode};
pub use shards::ShardHold;
pub use workingset::Workingset;

use crate::frame::{Frames, Place};
use crate::lock_class;
use highwater_platform::{FrameRange, Guard, Lock, Platform};
use highwater_units::{BATCH_PAGES_MAX, CpuId, FrameBatch, Pfn, RUN_PAGES_MAX};
use shards::{Contended, Shards, shards_for};

/// With this many pages, a CPU's batch goes to the lists (folio_batch).
const CPU_BATCH: usize = 15;

/// A batch of up to this many pages has room for one more run: pages of contended shards stay in
/// it.
const ROOM_LEFT: usize = BATCH_PAGES_MAX - RUN_PAGES_MAX;

/// The result of removing a page from its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The frame is the caller's; it was on a list or on none.
    Taken,
    /// Another thread has it in a batch or isolated, and will free it.
    Abandoned,
}

/// A CPU's pages on their way to lists.
struct CpuBatch {
    pages: FrameBatch,
    /// By page.
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
    shards: Shards<P>,
    batches: Vec<P::Lock<CpuBatch>>,
    workingset: Workingset<P>,
}

impl<P: Platform> Lru<P> {
    /// Empty lists for the frames of a node. `shards`: how many; `None`: by its CPUs and frames.
    pub fn new(platform: &P, range: FrameRange, shards: Option<u32>) -> Lru<P> {
        let batch = |_| platform.new_lock(lock_class::LRU_BATCH, CpuBatch::new());
        let own = |cpu: &usize| platform.node_of(CpuId(*cpu as u16)) == range.node;
        let cpus = (0..platform.cpus()).filter(own).count();
        let shards =
            shards.map_or_else(|| shards_for(cpus, range.frames), |shards| shards as usize);
        Lru {
            shards: Shards::new(platform, range, shards),
            batches: (0..platform.cpus()).map(batch).collect(),
            workingset: Workingset::new(),
        }
    }

    /// Refaults and costs.
    pub fn workingset(&self) -> &Workingset<P> {
        &self.workingset
    }

    /// Pages on a list, not counting those in batches. Approximate if there are several shards.
    pub fn len(&self, list: List) -> u32 {
        self.shards.len(list)
    }

    /// Pages of a kind on its two lists.
    pub fn len_of(&self, kind: Kind) -> u32 {
        self.len(List::active(kind)) + self.len(List::inactive(kind))
    }

    /// Pages on all lists.
    pub fn listed(&self) -> u32 {
        self.len_of(Kind::Anon) + self.len_of(Kind::File)
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
        pages.iter().for_each(|pfn| batch.push(*pfn, list));
        match batch.pages.len() {
            0..CPU_BATCH => FrameBatch::default(),
            CPU_BATCH..=ROOM_LEFT => self.empty(frames, &mut batch, Contended::Skip),
            _ => self.empty(frames, &mut batch, Contended::Wait),
        }
    }

    /// Puts the pages of all CPUs' batches on their lists. Calls `orphaned` with the orphans to
    /// free, one CPU's at a time.
    pub fn drain(&self, frames: &Frames<P>, mut orphaned: impl FnMut(&[Pfn])) {
        for cpu in 0..self.batches.len() {
            self.drain_of(frames, CpuId(cpu as u16), &mut orphaned);
        }
    }

    /// Puts the pages of one CPU's batch on their lists.
    pub fn drain_of(&self, frames: &Frames<P>, cpu: CpuId, mut orphaned: impl FnMut(&[Pfn])) {
        let mut batch = self.batches[usize::from(cpu.0)].lock();
        batch.visits(1);
        // With many CPUs most batches are empty.
        if !batch.pages.is_empty() {
            let orphans = self.empty(frames, &mut batch, Contended::Wait);
            drop(batch);
            orphaned(&orphans);
        }
    }

    /// Empties a CPU's batch, except for pages whose shard was skipped. Returns orphans to free.
    fn empty(&self, frames: &Frames<P>, batch: &mut CpuBatch, contended: Contended) -> FrameBatch {
        let CpuBatch { pages, lists } = std::mem::replace(batch, CpuBatch::new());
        let from = Place::Batch;
        let (orphans, busy) = self.link(frames, &pages, from, contended, |index| lists[index]);
        (0..pages.len())
            .filter(|index| busy >> index & 1 == 1)
            .for_each(|index| batch.push(pages[index], lists[index]));
        orphans
    }

    /// Isolates up to `max` (at most 32) of the oldest pages of a list, all of one shard. Returns
    /// none only if the list is empty.
    pub fn isolate(&self, frames: &Frames<P>, cpu: CpuId, list: List, max: usize) -> FrameBatch {
        let mut batch = FrameBatch::default();
        self.shards.pop(cpu, list, max.min(BATCH_PAGES_MAX), |pfn| {
            let changed = frames.place(pfn).change(list.place(), Place::Isolated);
            debug_assert_eq!(changed, Ok(()), "listed pages change place under this lock only");
            batch.push(pfn);
        });
        batch
    }

    /// Locks the shard of a frame, to isolate several pages; `None` if it is contended and `mode`
    /// is [`Mode::Async`].
    pub fn hold_shard(&self, pfn: Pfn, mode: Mode) -> Option<ShardHold<'_, P>> {
        self.shards.hold(pfn, mode)
    }

    /// Isolates the page in a frame and returns the list it was on; `None` if it is on no list, or
    /// its shard is contended and `mode` is [`Mode::Async`].
    pub fn isolate_frame(&self, frames: &Frames<P>, pfn: Pfn, mode: Mode) -> Option<List> {
        let list = List::of(frames.place(pfn).get())?;
        let isolate = || frames.place(pfn).change(list.place(), Place::Isolated);
        let outcome = match mode {
            Mode::Async => self.shards.try_remove(pfn, list, isolate)?,
            Mode::Sync => self.shards.remove(pfn, list, isolate),
        };
        outcome.ok().map(|()| list)
    }

    /// Puts isolated pages back (at most 32), as the newest of `list`. Returns orphans to free.
    pub fn putback(&self, frames: &Frames<P>, pages: &[Pfn], list: List) -> FrameBatch {
        self.link(frames, pages, Place::Isolated, Contended::Wait, |_| list).0
    }

    /// Removes a dropped page from its list, or makes it an orphan. The caller holds the page's
    /// entry, and has cleared the frame's owner.
    pub fn remove(&self, frames: &Frames<P>, pfn: Pfn) -> Removal {
        loop {
            let place = frames.place(pfn).get();
            let outcome = match place {
                Place::Off => return Removal::Taken,
                Place::InactiveAnon => self.unlink(frames, pfn, List::InactiveAnon),
                Place::ActiveAnon => self.unlink(frames, pfn, List::ActiveAnon),
                Place::InactiveFile => self.unlink(frames, pfn, List::InactiveFile),
                Place::ActiveFile => self.unlink(frames, pfn, List::ActiveFile),
                // A frame is a tail here only while its large page is being evicted.
                Place::Batch | Place::Isolated | Place::Tail => {
                    frames.place(pfn).change(place, Place::Orphan).map(|()| Removal::Abandoned)
                }
                Place::Orphan | Place::Run => {
                    unreachable!("{place:?}: no entry to be removed through")
                }
            };
            // The place changed in between: try again.
            if let Ok(removal) = outcome {
                return removal;
            }
        }
    }

    fn unlink(&self, frames: &Frames<P>, pfn: Pfn, list: List) -> Result<Removal, Place> {
        let off = || frames.place(pfn).change(list.place(), Place::Off);
        self.shards.remove(pfn, list, off).map(|()| Removal::Taken)
    }

    /// Puts `pages` (at most 32), whose place is `from`, on their lists. Returns the orphans among
    /// them, and a bit for each page whose shard was skipped.
    fn link(
        &self,
        frames: &Frames<P>,
        pages: &[Pfn],
        from: Place,
        contended: Contended,
        list_of: impl Fn(usize) -> List,
    ) -> (FrameBatch, u64) {
        let mut orphans = FrameBatch::default();
        let busy = self.shards.push(pages, contended, |index| {
            let (place, list) = (frames.place(pages[index]), list_of(index));
            match place.change(from, list.place()) {
                Ok(()) => Some(list),
                Err(_) => {
                    let freed = place.change(Place::Orphan, Place::Off);
                    debug_assert_eq!(freed, Ok(()), "only an orphan changed its place");
                    orphans.push(pages[index]);
                    None
                }
            }
        });
        (orphans, busy)
    }

    /// Calls `found` with every page on a list or in a batch, for [`crate::verify`].
    pub(crate) fn each(&self, mut found: impl FnMut(Pfn, Place)) {
        for batch in &self.batches {
            batch.lock().pages.iter().for_each(|pfn| found(*pfn, Place::Batch));
        }
        self.shards.each(|pfn, list| found(pfn, list.place()));
    }
}
