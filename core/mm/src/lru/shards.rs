//! The lists of a node, divided by frame so that many CPUs do not meet at one lock.
//!
//! ```text
//! Shards -- [Shard]  Lock<Lists>   a frame's shard: its block of 64 frames, round and round
//!       |           len[list]    to see that there is nothing, without the lock
//!       |- total[list]           pages in all shards, as far as they have said so
//!       \- [Turn] x CPUs         the shard from which a CPU takes next
//! ```
//! One shard is the kernel's lruvec. With several, pages are old or young within their shard; frames
//! fall into shards as they come, so the oldest of each shard are about equally old. A batch of a CPU
//! has its frames from a block or two of the buddy allocator, and needs as many locks.
//! Conservation: `told` of all shards add up to `total`; `len` is what the lists have.
//! Locking: one shard at a time.

use super::{List, Mode};
use crate::config::LRU_SHARDS_MAX;
use crate::frame::{Frames, Place};
use highwater_platform::{Atomic, FrameRange, Guard, Lock, LockClass, Locks, Platform};
use highwater_units::{CpuId, IndexLists, Pfn};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that are together in a shard: about a CPU's batch of the zone.
const BLOCK: u32 = 64;
/// CPUs of a node that are too many for one shard: from here on there is one for each.
const CPUS_MANY: usize = 8;
/// Frames that a shard should have.
const FRAMES_MIN: u32 = 2048;
/// Most pages that a shard's list has gained or lost before it says so.
const UNTOLD_MAX: u32 = 64;

/// How many shards suit so many frames, used by so many CPUs.
pub(super) fn shards_for(cpus: usize, frames: u32) -> usize {
    let shards = if cpus < CPUS_MANY { 1 } else { cpus };
    shards.min((frames / FRAMES_MIN) as usize).clamp(1, LRU_SHARDS_MAX as usize)
}

/// The lists of one shard.
pub(super) struct Lists {
    lists: IndexLists,
    /// What `len` says.
    shown: [u32; 4],
    /// What `total` knows.
    told: [u32; 4],
}

/// A shard's lists, held.
type Locked<'a, P> = <<P as Locks>::Lock<Lists> as Lock<Lists>>::Guard<'a>;

struct Shard<P: Platform> {
    lists: P::Lock<Lists>,
    len: [P::Atomic<u32>; 4],
}

/// A shard that is held.
pub struct ShardHold<'a, P: Platform> {
    shards: &'a Shards<P>,
    shard: usize,
    lists: Locked<'a, P>,
}

impl<P: Platform> ShardHold<'_, P> {
    /// Whether it is the shard of a frame, too.
    pub fn covers(&self, pfn: Pfn) -> bool {
        self.shards.shard_of(pfn) == self.shard
    }

    /// Takes the page in a frame of the shard off its list, and says which that was; `None` if it is
    /// on none.
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
        self.shards.tell(self.shard, &mut self.lists);
    }
}

/// Whether a thread waits for a shard that others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It goes elsewhere, or comes again.
    None,
    /// It does.
    Waits,
}

/// A CPU's next shard, on a cache line of its own. A hint: threads may share it.
#[repr(align(64))]
struct Turn(AtomicU32);

/// All shards of a node.
pub(super) struct Shards<P: Platform> {
    range: FrameRange,
    shards: Vec<Shard<P>>,
    total: [P::Atomic<u32>; 4],
    turns: Vec<Turn>,
    untold: u32,
}

impl<P: Platform> Shards<P> {
    /// `count` shards, all empty.
    pub(super) fn new(platform: &P, range: FrameRange, count: usize) -> Shards<P> {
        let items = range.frames.div_ceil(BLOCK).div_ceil(count as u32) * BLOCK;
        let shard = |_| Shard {
            lists: platform.new_lock(
                LockClass::Lru,
                Lists { lists: IndexLists::new(4, items as usize), shown: [0; 4], told: [0; 4] },
            ),
            len: [0; 4].map(Atomic::new),
        };
        let fair = range.frames / count as u32 / UNTOLD_MAX;
        Shards {
            range,
            shards: (0..count).map(shard).collect(),
            total: [0; 4].map(Atomic::new),
            turns: (0..platform.cpus()).map(|cpu| Turn(AtomicU32::new(cpu as u32))).collect(),
            untold: if count == 1 { 1 } else { fair.clamp(1, UNTOLD_MAX) },
        }
    }

    /// Pages on a list; with several shards, to within 64 of each.
    pub(super) fn len(&self, list: List) -> u32 {
        // Shards tell one after the other: for an instant the sum may be below 0.
        (self.total[list as usize].load(Relaxed) as i32).max(0) as u32
    }

    /// By how many pages [`Shards::len`] may be off.
    #[cfg(test)]
    pub(super) fn slack(&self) -> u32 {
        (self.untold - 1) * self.shards.len() as u32
    }

    /// The shard of a frame.
    pub(super) fn shard_of(&self, pfn: Pfn) -> usize {
        ((pfn.0 - self.range.first.0) / BLOCK) as usize % self.shards.len()
    }

    /// Where a frame is in its shard.
    fn item(&self, pfn: Pfn) -> u32 {
        let at = pfn.0 - self.range.first.0;
        at / BLOCK / self.shards.len() as u32 * BLOCK + at % BLOCK
    }

    fn pfn(&self, shard: usize, item: u32) -> Pfn {
        let block = item / BLOCK * self.shards.len() as u32 + shard as u32;
        self.range.first.offset(block * BLOCK + item % BLOCK)
    }

    /// Calls `act` for each of `pages` (at most 32) with its index and under its shard's lock, a
    /// shard after the other; `Some(list)`: the page is now at the front of that list. Returns those
    /// whose shard others had, a bit each.
    pub(super) fn push(
        &self,
        pages: &[Pfn],
        patience: Patience,
        mut act: impl FnMut(usize) -> Option<List>,
    ) -> u64 {
        let (mut left, mut busy) = ((1u64 << pages.len()) - 1, 0);
        while left != 0 {
            let shard = self.shard_of(pages[left.trailing_zeros() as usize]);
            let own =
                |index: &usize| left >> index & 1 == 1 && self.shard_of(pages[*index]) == shard;
            let own = (0..pages.len()).filter(own).fold(0, |own, index| own | 1 << index);
            left &= !own;
            let Some(mut lists) = self.enter(shard, patience) else {
                busy |= own;
                continue;
            };
            for index in (0..pages.len()).filter(|index| own >> index & 1 == 1) {
                if let Some(list) = act(index) {
                    lists.lists.push_front(list as usize, self.item(pages[index]));
                }
            }
            lists.visits(own.count_ones() as usize);
            self.tell(shard, &mut lists);
        }
        busy
    }

    /// Takes up to `max` of the oldest pages of a list, of one shard; calls `taken` with each under
    /// the shard's lock. A CPU goes round the shards, and past those that others have.
    pub(super) fn pop(&self, cpu: CpuId, list: List, max: usize, mut taken: impl FnMut(Pfn)) {
        let first = self.turns[usize::from(cpu.0)].0.fetch_add(1, Relaxed) as usize;
        let several = self.shards.len() > 1;
        let ways =
            if several { &[Patience::None, Patience::Waits][..] } else { &[Patience::Waits] };
        for patience in ways {
            for step in 0..self.shards.len() {
                let shard = (first + step) % self.shards.len();
                if several && self.shards[shard].len[list as usize].load(Relaxed) == 0 {
                    continue;
                }
                let Some(mut lists) = self.enter(shard, *patience) else { continue };
                let mut count = 0;
                while count < max {
                    let Some(item) = lists.lists.pop_back(list as usize) else { break };
                    taken(self.pfn(shard, item));
                    count += 1;
                }
                lists.visits(count);
                self.tell(shard, &mut lists);
                if count > 0 {
                    return;
                }
            }
        }
    }

    /// A shard's lists, if they can be had. With one shard there is nowhere else to go.
    fn enter(&self, shard: usize, patience: Patience) -> Option<Locked<'_, P>> {
        let lists = &self.shards[shard].lists;
        match patience {
            Patience::None if self.shards.len() > 1 => lists.try_lock(),
            Patience::None | Patience::Waits => Some(lists.lock()),
        }
    }

    /// The shard of a frame, to take several pages off its lists.
    pub(super) fn hold(&self, pfn: Pfn, mode: Mode) -> Option<ShardHold<'_, P>> {
        let shard = self.shard_of(pfn);
        let lists = match mode {
            Mode::Async => self.shards[shard].lists.try_lock()?,
            Mode::Sync => self.shards[shard].lists.lock(),
        };
        Some(ShardHold { shards: self, shard, lists })
    }

    /// Takes one page off its list, if `act`, under the shard's lock, says so.
    pub(super) fn remove<E>(
        &self,
        pfn: Pfn,
        list: List,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.remove_from(self.shards[self.shard_of(pfn)].lists.lock(), pfn, list, act)
    }

    /// The same, unless others have the shard.
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
        self.tell(self.shard_of(pfn), &mut lists);
        Ok(())
    }

    /// Says how long a shard's lists are now; to all, where that is news.
    fn tell(&self, shard: usize, lists: &mut Lists) {
        for list in 0..4 {
            let (now, told) = (lists.lists.len(list), lists.told[list]);
            if now == lists.shown[list] {
                continue;
            }
            lists.shown[list] = now;
            self.shards[shard].len[list].store(now, Relaxed);
            if now.abs_diff(told) >= self.untold {
                self.total[list].fetch_add(now.wrapping_sub(told), Relaxed);
                lists.told[list] = now;
            }
        }
    }

    /// Calls `found` with every page; checks the sums.
    pub(super) fn each(&self, mut found: impl FnMut(Pfn, List)) {
        let mut told = [0u32; 4];
        for (index, shard) in self.shards.iter().enumerate() {
            let lists = shard.lists.lock();
            for list in List::ALL {
                let at = list as usize;
                assert_eq!(shard.len[at].load(Relaxed), lists.lists.len(at), "a shard's length");
                told[at] += lists.told[at];
                lists.lists.iter(at).for_each(|item| found(self.pfn(index, item), list));
            }
        }
        let total = List::ALL.map(|list| self.len(list));
        assert_eq!(total, told, "what shards have told is in the sums");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_os::Os;
    use highwater_units::{Bytes, NodeId};

    #[test]
    fn every_frame_has_a_place_of_its_own() {
        let platform = Os::new(Bytes::of_pages(1), Vec::new()).expect("an arena");
        for (first, frames, count) in [(0, 1, 1), (7, 1000, 3), (64, 640, 4), (5, 129, 8)] {
            let range = FrameRange { node: NodeId(0), first: Pfn(first), frames };
            let shards: Shards<Os> = Shards::new(&platform, range, count);
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
