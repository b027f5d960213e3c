//! Recency: active and inactive lists of anonymous and of files' pages per node (a lruvec), fed
//! through per-CPU batches.
//!
//! ```text
//! Lru -- CPU batches: Lock<CpuBatch>     15 pages, then to their lists under one lock
//!     |- Shards                           the lists, in one shard or several   shards.rs
//!     \- Workingset                      refaults and costs                  workingset.rs
//! ```
//! Locking: a CPU's batch, then a shard of the lists (`LruBatch -> Lru`). Pages are taken off in
//! batches of 32 ([`Lru::isolate`]) and looked at without a lock. A page dropped meanwhile comes
//! out of [`Lru::add`] or [`Lru::putback`] as an orphan, for the caller to free: see
//! [`crate::frame::Place`]. New anonymous pages start active and must be found unused twice before
//! they go (a second chance). New pages of files start inactive, and are activated when they are
//! used again: what is read once goes soon.

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

/// Pages a CPU collects before it takes the lists' lock (folio_batch).
const CPU_BATCH: usize = 15;

/// With so many there is room for a run more: pages whose shard others have may wait for it.
const ROOM_LEFT: usize = BATCH_PAGES_MAX - RUN_PAGES_MAX;

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
    shards: Shards<P>,
    batches: Vec<P::Lock<CpuBatch>>,
    workingset: Workingset<P>,
}

impl<P: Platform> Lru<P> {
    /// Empty lists for the frames of a node, in so many shards; `None`: by its CPUs and frames.
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

    /// Pages on a list, with several shards nearly; those in batches do not count.
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
        pages.iter().for_each(|pfn| batch.push(*pfn, list));
        match batch.pages.len() {
            0..CPU_BATCH => FrameBatch::default(),
            CPU_BATCH..=ROOM_LEFT => self.empty(frames, &mut batch, Contended::Skip),
            _ => self.empty(frames, &mut batch, Contended::Wait),
        }
    }

    /// Puts what CPUs hold in batches on the lists. Returns orphans to free, of one CPU at a time
    /// through `orphaned`.
    pub fn drain(&self, frames: &Frames<P>, mut orphaned: impl FnMut(&[Pfn])) {
        for cpu in 0..self.batches.len() {
            self.drain_of(frames, CpuId(cpu as u16), &mut orphaned);
        }
    }

    /// The same for one CPU.
    pub fn drain_of(&self, frames: &Frames<P>, cpu: CpuId, mut orphaned: impl FnMut(&[Pfn])) {
        let mut batch = self.batches[usize::from(cpu.0)].lock();
        batch.visits(1);
        // Most are, on a machine of many CPUs: they need no turn at the lists.
        if !batch.pages.is_empty() {
            let orphans = self.empty(frames, &mut batch, Contended::Wait);
            drop(batch);
            orphaned(&orphans);
        }
    }

    /// Empties a CPU's batch, but for pages whose shard others have where nobody waits for them.
    /// Returns orphans to free.
    fn empty(&self, frames: &Frames<P>, batch: &mut CpuBatch, contended: Contended) -> FrameBatch {
        let CpuBatch { pages, lists } = std::mem::replace(batch, CpuBatch::new());
        let from = Place::Batch;
        let (orphans, busy) = self.link(frames, &pages, from, contended, |index| lists[index]);
        (0..pages.len())
            .filter(|index| busy >> index & 1 == 1)
            .for_each(|index| batch.push(pages[index], lists[index]));
        orphans
    }

    /// Takes up to `max` (at most 32) of the oldest pages of a list, of one shard: none only if
    /// there are none.
    pub fn isolate(&self, frames: &Frames<P>, cpu: CpuId, list: List, max: usize) -> FrameBatch {
        let mut batch = FrameBatch::default();
        self.shards.pop(cpu, list, max.min(BATCH_PAGES_MAX), |pfn| {
            let changed = frames.place(pfn).change(list.place(), Place::Isolated);
            debug_assert_eq!(changed, Ok(()), "listed pages change place under this lock only");
            batch.push(pfn);
        });
        batch
    }

    /// The shard of a frame, to take several pages off its lists; `None` if others have it and
    /// `mode` is [`Mode::Async`].
    pub fn hold_shard(&self, pfn: Pfn, mode: Mode) -> Option<ShardHold<'_, P>> {
        self.shards.hold(pfn, mode)
    }

    /// Takes a page off its list by its frame, and says which list that was; `None` if it is on
    /// none just now, or its shard is held and `mode` is [`Mode::Async`].
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
                Place::Orphan | Place::Run => {
                    unreachable!("{place:?}: no entry to be removed through")
                }
            };
            // A change of place between the look and the act: look again.
            if let Ok(removal) = outcome {
                return removal;
            }
        }
    }

    fn unlink(&self, frames: &Frames<P>, pfn: Pfn, list: List) -> Result<Removal, Place> {
        let off = || frames.place(pfn).change(list.place(), Place::Off);
        self.shards.remove(pfn, list, off).map(|()| Removal::Taken)
    }

    /// Puts `pages` (at most 32), whose place is `from`, on their lists, except orphans, which it
    /// returns, and pages whose shard others have, a bit each.
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
                    debug_assert_eq!(freed, Ok(()), "only an orphan is not where it was");
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
