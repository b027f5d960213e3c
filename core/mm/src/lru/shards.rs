//! The lists of a node, sharded by frame so that CPUs seldom contend for one lock.
//!
//! ```text
//! Shards -- [Shard] Lock<Lists>   a frame's shard: its block of 64 frames, round robin
//!       |           len[list]     to see without the lock that a list is empty
//!       |- total[list]            pages in all shards, as far as published
//!       \- [Cursor] x CPUs        the shard from which a CPU isolates next
//! ```
//! With one shard this is the kernel's lruvec. With several, pages are ordered by age within their
//! shard only; frames spread evenly over shards, so the oldest pages of each are about equally old.
//! The frames of a CPU's batch come from one or two blocks of the buddy allocator, so they need one
//! or two locks.
//! Conservation: `published` of all shards add up to `total`; `len` is the length of a shard's
//! list. A shard publishes at once that a list becomes empty or gets its first page, so `total` is
//! 0 exactly if the list has no page, and reclaim, which decides by totals, finds the last one.
//! Locking: one shard at a time.

use super::list::{List, Mode};
use crate::config::LRU_SHARDS_MAX;
use crate::frame::{Frames, Place};
use crate::lock_class;
use highwater_platform::{Atomic, FrameRange, Guard, Lock, Locks, Platform};
use highwater_units::{CpuId, IndexLists, Pfn};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Adjacent frames in one shard: about a CPU's batch from the zone.
const BLOCK: u32 = 64;
/// A node with this many CPUs or more has a shard for each CPU.
const CPUS_MANY: usize = 8;
/// The least number of frames of a shard.
const FRAMES_MIN: u32 = 2048;
/// Pages by which a shard's list may differ from what it published.
const UNPUBLISHED_MAX: u32 = 64;

/// The number of shards for a node of this many CPUs and frames.
pub(super) fn shards_for(cpus: usize, frames: u32) -> usize {
    let shards = if cpus < CPUS_MANY { 1 } else { cpus };
    shards.min((frames / FRAMES_MIN) as usize).clamp(1, LRU_SHARDS_MAX as usize)
}

/// The lists of one shard.
pub(super) struct Lists {
    lists: IndexLists,
    /// The value of `len`.
    shown: [u32; 4],
    /// The shard's part of `total`.
    published: [u32; 4],
}

/// The lists of a locked shard.
type Locked<'a, P> = <<P as Locks>::Lock<Lists> as Lock<Lists>>::Guard<'a>;

struct Shard<P: Platform> {
    lists: P::Lock<Lists>,
    len: [P::Atomic<u32>; 4],
}

/// A locked shard.
pub struct ShardHold<'a, P: Platform> {
    shards: &'a Shards<P>,
    shard: usize,
    lists: Locked<'a, P>,
}

impl<P: Platform> ShardHold<'_, P> {
    /// Whether a frame is in this shard.
    pub fn covers(&self, pfn: Pfn) -> bool {
        self.shards.shard_of(pfn) == self.shard
    }

    /// Takes the page in a frame of the shard off its list, and returns that list; `None` if it is
    /// on no list.
    pub fn isolate(&mut self, frames: &Frames<P>, pfn: Pfn) -> Option<List> {
        let list = List::of(frames.place(pfn).get())?;
        self.lists.visits(1);
        frames.place(pfn).change(list.place(), Place::Isolated).ok()?;
        self.lists.lists.remove(list as usize, self.shards.item(pfn));
        Some(list)
    }
}

impl<P: Platform> Drop for ShardHold<'_, P> {
    fn drop(&mut self) {
        self.shards.publish(self.shard, &mut self.lists);
    }
}

/// A thread's action when a shard is contended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contended {
    /// It skips the shard.
    Skip,
    /// It waits for the lock.
    Wait,
}

/// A CPU's next shard, on a cache line of its own. A hint: threads may share it.
#[repr(align(64))]
struct Cursor(AtomicU32);

/// All shards of a node.
pub(super) struct Shards<P: Platform> {
    range: FrameRange,
    shards: Vec<Shard<P>>,
    total: [P::Atomic<u32>; 4],
    cursors: Vec<Cursor>,
    unpublished: u32,
}

impl<P: Platform> Shards<P> {
    /// `count` empty shards.
    pub(super) fn new(platform: &P, range: FrameRange, count: usize) -> Shards<P> {
        let items = range.frames.div_ceil(BLOCK).div_ceil(count as u32) * BLOCK;
        let shard = |_| Shard {
            lists: platform.new_lock(
                lock_class::LRU,
                Lists {
                    lists: IndexLists::new(4, items as usize),
                    shown: [0; 4],
                    published: [0; 4],
                },
            ),
            len: [0; 4].map(Atomic::new),
        };
        let fair = range.frames / count as u32 / UNPUBLISHED_MAX;
        Shards {
            range,
            shards: (0..count).map(shard).collect(),
            total: [0; 4].map(Atomic::new),
            cursors: (0..platform.cpus()).map(|cpu| Cursor(AtomicU32::new(cpu as u32))).collect(),
            unpublished: if count == 1 { 1 } else { fair.clamp(1, UNPUBLISHED_MAX) },
        }
    }

    /// Pages on a list; with several shards, to within 64 of each, and 0 only if there is none.
    pub(super) fn len(&self, list: List) -> u32 {
        // Shards publish one after the other: for an instant the sum may be below 0.
        (self.total[list as usize].load(Relaxed) as i32).max(0) as u32
    }

    /// Pages by which [`Shards::len`] may be wrong.
    #[cfg(test)]
    pub(super) fn slack(&self) -> u32 {
        (self.unpublished - 1) * self.shards.len() as u32
    }

    /// The shard of a frame.
    pub(super) fn shard_of(&self, pfn: Pfn) -> usize {
        ((pfn.0 - self.range.first.0) / BLOCK) as usize % self.shards.len()
    }

    /// The index of a frame in its shard.
    fn item(&self, pfn: Pfn) -> u32 {
        let at = pfn.0 - self.range.first.0;
        at / BLOCK / self.shards.len() as u32 * BLOCK + at % BLOCK
    }

    fn pfn(&self, shard: usize, item: u32) -> Pfn {
        let block = item / BLOCK * self.shards.len() as u32 + shard as u32;
        self.range.first.offset(block * BLOCK + item % BLOCK)
    }

    /// Calls `act` for each of `pages` (at most 32) with its index and under its shard's lock, one
    /// shard after the other; `Some(list)`: the page is now at the front of that list. Returns a
    /// bit for each page whose shard was skipped.
    pub(super) fn push(
        &self,
        pages: &[Pfn],
        contended: Contended,
        mut act: impl FnMut(usize) -> Option<List>,
    ) -> u64 {
        let (mut left, mut busy) = ((1u64 << pages.len()) - 1, 0);
        while left != 0 {
            let shard = self.shard_of(pages[left.trailing_zeros() as usize]);
            let own =
                |index: &usize| left >> index & 1 == 1 && self.shard_of(pages[*index]) == shard;
            let own = (0..pages.len()).filter(own).fold(0, |own, index| own | 1 << index);
            left &= !own;
            let Some(mut lists) = self.enter(shard, contended) else {
                busy |= own;
                continue;
            };
            for index in (0..pages.len()).filter(|index| own >> index & 1 == 1) {
                if let Some(list) = act(index) {
                    lists.lists.push_front(list as usize, self.item(pages[index]));
                }
            }
            lists.visits(own.count_ones() as usize);
            self.publish(shard, &mut lists);
        }
        busy
    }

    /// Takes up to `max` of the oldest pages of a list, all of one shard; calls `taken` with each
    /// under the shard's lock. A CPU goes round the shards, and tries contended ones last.
    pub(super) fn pop(&self, cpu: CpuId, list: List, max: usize, mut taken: impl FnMut(Pfn)) {
        let first = self.cursors[usize::from(cpu.0)].0.fetch_add(1, Relaxed) as usize;
        let several = self.shards.len() > 1;
        let ways =
            if several { &[Contended::Skip, Contended::Wait][..] } else { &[Contended::Wait] };
        for contended in ways {
            for step in 0..self.shards.len() {
                let shard = (first + step) % self.shards.len();
                if several && self.shards[shard].len[list as usize].load(Relaxed) == 0 {
                    continue;
                }
                let Some(mut lists) = self.enter(shard, *contended) else { continue };
                let mut count = 0;
                while count < max {
                    let Some(item) = lists.lists.pop_back(list as usize) else { break };
                    taken(self.pfn(shard, item));
                    count += 1;
                }
                lists.visits(count);
                self.publish(shard, &mut lists);
                if count > 0 {
                    return;
                }
            }
        }
    }

    /// Locks a shard. The only shard is never skipped.
    fn enter(&self, shard: usize, contended: Contended) -> Option<Locked<'_, P>> {
        let lists = &self.shards[shard].lists;
        match contended {
            Contended::Skip if self.shards.len() > 1 => lists.try_lock(),
            Contended::Skip | Contended::Wait => Some(lists.lock()),
        }
    }

    /// Locks the shard of a frame, to take several pages off its lists.
    pub(super) fn hold(&self, pfn: Pfn, mode: Mode) -> Option<ShardHold<'_, P>> {
        let shard = self.shard_of(pfn);
        let lists = match mode {
            Mode::Async => self.shards[shard].lists.try_lock()?,
            Mode::Sync => self.shards[shard].lists.lock(),
        };
        Some(ShardHold { shards: self, shard, lists })
    }

    /// Takes one page off its list, if `act`, called under the shard's lock, returns `Ok`.
    pub(super) fn remove<E>(
        &self,
        pfn: Pfn,
        list: List,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.remove_from(self.shards[self.shard_of(pfn)].lists.lock(), pfn, list, act)
    }

    /// [`Shards::remove`], or `None` if the shard is contended.
    pub(super) fn try_remove<E>(
        &self,
        pfn: Pfn,
        list: List,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let lists = self.shards[self.shard_of(pfn)].lists.try_lock()?;
        Some(self.remove_from(lists, pfn, list, act))
    }

    fn remove_from<E>(
        &self,
        mut lists: Locked<'_, P>,
        pfn: Pfn,
        list: List,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        lists.visits(1);
        act()?;
        lists.lists.remove(list as usize, self.item(pfn));
        self.publish(self.shard_of(pfn), &mut lists);
        Ok(())
    }

    /// Updates the lengths of a shard's lists, and publishes those that have changed enough.
    fn publish(&self, shard: usize, lists: &mut Lists) {
        for list in 0..4 {
            let (now, published) = (lists.lists.len(list), lists.published[list]);
            if now == lists.shown[list] {
                continue;
            }
            lists.shown[list] = now;
            self.shards[shard].len[list].store(now, Relaxed);
            let crossed = (now == 0) != (published == 0);
            if crossed || now.abs_diff(published) >= self.unpublished {
                self.total[list].fetch_add(now.wrapping_sub(published), Relaxed);
                lists.published[list] = now;
            }
        }
    }

    /// Calls `found` with every page; checks the sums.
    pub(super) fn each(&self, mut found: impl FnMut(Pfn, List)) {
        let mut published = [0u32; 4];
        for (index, shard) in self.shards.iter().enumerate() {
            let lists = shard.lists.lock();
            for list in List::ALL {
                let at = list as usize;
                assert_eq!(
                    shard.len[at].load(Relaxed),
                    lists.lists.len(at),
                    "the length of a shard's list"
                );
                published[at] += lists.published[at];
                lists.lists.iter(at).for_each(|item| found(self.pfn(index, item), list));
            }
        }
        let total = List::ALL.map(|list| self.len(list));
        assert_eq!(total, published, "published lengths add up to the totals");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::NodeId;

    #[test]
    fn every_frame_has_an_index_of_its_own() {
        let platform = TestPlatform::new(1, Vec::new());
        for (first, frames, count) in [(0, 1, 1), (7, 1000, 3), (64, 640, 4), (5, 129, 8)] {
            let range = FrameRange { node: NodeId(0), first: Pfn(first), frames };
            let shards: Shards<TestPlatform> = Shards::new(&platform, range, count);
            for pfn in (first..first + frames).map(Pfn) {
                assert_eq!(shards.pfn(shards.shard_of(pfn), shards.item(pfn)), pfn);
            }
        }
    }

    #[test]
    fn shards_are_for_many_cpus_and_much_memory() {
        let table = [(7, 1 << 20, 1), (8, 1 << 20, 8), (112, 1 << 20, 64), (112, 8192, 4)];
        for (cpus, frames, shards) in table {
            assert_eq!(shards_for(cpus, frames), shards, "{cpus} CPUs, {frames} frames");
        }
    }
}
