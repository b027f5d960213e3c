//! The lists of a node, divided by frame so that many CPUs do not meet at one lock.
//!
//! ```text
//! Lanes -- [Lane]  Lock<Lists>   a frame's lane: its block of 64 frames, round and round
//!       |           len[list]    to see that there is nothing, without the lock
//!       |- total[list]           pages in all lanes, as far as they have said so
//!       \- [Turn] x CPUs         the lane from which a CPU takes next
//! ```
//! One lane is the kernel's lruvec. With several, pages are old or young within their lane; frames
//! fall into lanes as they come, so the oldest of each lane are about equally old. A batch of a CPU
//! has its frames from a block or two of the buddy allocator, and needs as many locks.
//! Conservation: `told` of all lanes add up to `total`; `len` is what the lists have.
//! Locking: one lane at a time.

use super::{List, Mode};
use crate::config::LRU_LANES_MAX;
use crate::frame::{Frames, Place};
use crate::lock_class;
use highwater_platform::{Atomic, FrameRange, Guard, Lock, Locks, Platform};
use highwater_units::{CpuId, IndexLists, Pfn};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that are together in a lane: about a CPU's batch of the zone.
const BLOCK: u32 = 64;
/// CPUs of a node that are too many for one lane: from here on there is one for each.
const CPUS_MANY: usize = 8;
/// Frames that a lane should have.
const FRAMES_MIN: u32 = 2048;
/// Most pages that a lane's list has gained or lost before it says so.
const UNTOLD_MAX: u32 = 64;

/// How many lanes suit so many frames, used by so many CPUs.
pub(super) fn lanes_for(cpus: usize, frames: u32) -> usize {
    let lanes = if cpus < CPUS_MANY { 1 } else { cpus };
    lanes.min((frames / FRAMES_MIN) as usize).clamp(1, LRU_LANES_MAX as usize)
}

/// The lists of one lane.
pub(super) struct Lists {
    lists: IndexLists,
    /// What `len` says.
    shown: [u32; 4],
    /// What `total` knows.
    told: [u32; 4],
}

/// A lane's lists, held.
type Locked<'a, P> = <<P as Locks>::Lock<Lists> as Lock<Lists>>::Guard<'a>;

struct Lane<P: Platform> {
    lists: P::Lock<Lists>,
    len: [P::Atomic<u32>; 4],
}

/// A lane that is held.
pub struct LaneHold<'a, P: Platform> {
    lanes: &'a Lanes<P>,
    lane: usize,
    lists: Locked<'a, P>,
}

impl<P: Platform> LaneHold<'_, P> {
    /// Whether it is the lane of a frame, too.
    pub fn covers(&self, pfn: Pfn) -> bool {
        self.lanes.lane_of(pfn) == self.lane
    }

    /// Takes the page in a frame of the lane off its list, and says which that was; `None` if it is
    /// on none.
    pub fn isolate(&mut self, frames: &Frames<P>, pfn: Pfn) -> Option<List> {
        let list = List::of(frames.place(pfn).get())?;
        self.lists.visits(1);
        frames.place(pfn).change(list.place(), Place::Isolated).ok()?;
        self.lists.lists.remove(list as usize, self.lanes.item(pfn));
        Some(list)
    }
}

impl<P: Platform> Drop for LaneHold<'_, P> {
    fn drop(&mut self) {
        self.lanes.tell(self.lane, &mut self.lists);
    }
}

/// Whether a thread waits for a lane that others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It goes elsewhere, or comes again.
    None,
    /// It does.
    Waits,
}

/// A CPU's next lane, on a cache line of its own. A hint: threads may share it.
#[repr(align(64))]
struct Turn(AtomicU32);

/// All lanes of a node.
pub(super) struct Lanes<P: Platform> {
    range: FrameRange,
    lanes: Vec<Lane<P>>,
    total: [P::Atomic<u32>; 4],
    turns: Vec<Turn>,
    untold: u32,
}

impl<P: Platform> Lanes<P> {
    /// `count` lanes, all empty.
    pub(super) fn new(platform: &P, range: FrameRange, count: usize) -> Lanes<P> {
        let items = range.frames.div_ceil(BLOCK).div_ceil(count as u32) * BLOCK;
        let lane = |_| Lane {
            lists: platform.new_lock(
                lock_class::LRU,
                Lists { lists: IndexLists::new(4, items as usize), shown: [0; 4], told: [0; 4] },
            ),
            len: [0; 4].map(Atomic::new),
        };
        let fair = range.frames / count as u32 / UNTOLD_MAX;
        Lanes {
            range,
            lanes: (0..count).map(lane).collect(),
            total: [0; 4].map(Atomic::new),
            turns: (0..platform.cpus()).map(|cpu| Turn(AtomicU32::new(cpu as u32))).collect(),
            untold: if count == 1 { 1 } else { fair.clamp(1, UNTOLD_MAX) },
        }
    }

    /// Pages on a list; with several lanes, to within 64 of each.
    pub(super) fn len(&self, list: List) -> u32 {
        // Lanes tell one after the other: for an instant the sum may be below 0.
        (self.total[list as usize].load(Relaxed) as i32).max(0) as u32
    }

    /// By how many pages [`Lanes::len`] may be off.
    #[cfg(test)]
    pub(super) fn slack(&self) -> u32 {
        (self.untold - 1) * self.lanes.len() as u32
    }

    /// The lane of a frame.
    pub(super) fn lane_of(&self, pfn: Pfn) -> usize {
        ((pfn.0 - self.range.first.0) / BLOCK) as usize % self.lanes.len()
    }

    /// Where a frame is in its lane.
    fn item(&self, pfn: Pfn) -> u32 {
        let at = pfn.0 - self.range.first.0;
        at / BLOCK / self.lanes.len() as u32 * BLOCK + at % BLOCK
    }

    fn pfn(&self, lane: usize, item: u32) -> Pfn {
        let block = item / BLOCK * self.lanes.len() as u32 + lane as u32;
        self.range.first.offset(block * BLOCK + item % BLOCK)
    }

    /// Calls `act` for each of `pages` (at most 32) with its index and under its lane's lock, a
    /// lane after the other; `Some(list)`: the page is now at the front of that list. Returns those
    /// whose lane others had, a bit each.
    pub(super) fn push(
        &self,
        pages: &[Pfn],
        patience: Patience,
        mut act: impl FnMut(usize) -> Option<List>,
    ) -> u64 {
        let (mut left, mut busy) = ((1u64 << pages.len()) - 1, 0);
        while left != 0 {
            let lane = self.lane_of(pages[left.trailing_zeros() as usize]);
            let own = |index: &usize| left >> index & 1 == 1 && self.lane_of(pages[*index]) == lane;
            let own = (0..pages.len()).filter(own).fold(0, |own, index| own | 1 << index);
            left &= !own;
            let Some(mut lists) = self.enter(lane, patience) else {
                busy |= own;
                continue;
            };
            for index in (0..pages.len()).filter(|index| own >> index & 1 == 1) {
                if let Some(list) = act(index) {
                    lists.lists.push_front(list as usize, self.item(pages[index]));
                }
            }
            lists.visits(own.count_ones() as usize);
            self.tell(lane, &mut lists);
        }
        busy
    }

    /// Takes up to `max` of the oldest pages of a list, of one lane; calls `taken` with each under
    /// the lane's lock. A CPU goes round the lanes, and past those that others have.
    pub(super) fn pop(&self, cpu: CpuId, list: List, max: usize, mut taken: impl FnMut(Pfn)) {
        let first = self.turns[usize::from(cpu.0)].0.fetch_add(1, Relaxed) as usize;
        let several = self.lanes.len() > 1;
        let ways =
            if several { &[Patience::None, Patience::Waits][..] } else { &[Patience::Waits] };
        for patience in ways {
            for step in 0..self.lanes.len() {
                let lane = (first + step) % self.lanes.len();
                if several && self.lanes[lane].len[list as usize].load(Relaxed) == 0 {
                    continue;
                }
                let Some(mut lists) = self.enter(lane, *patience) else { continue };
                let mut count = 0;
                while count < max {
                    let Some(item) = lists.lists.pop_back(list as usize) else { break };
                    taken(self.pfn(lane, item));
                    count += 1;
                }
                lists.visits(count);
                self.tell(lane, &mut lists);
                if count > 0 {
                    return;
                }
            }
        }
    }

    /// A lane's lists, if they can be had. With one lane there is nowhere else to go.
    fn enter(&self, lane: usize, patience: Patience) -> Option<Locked<'_, P>> {
        let lists = &self.lanes[lane].lists;
        match patience {
            Patience::None if self.lanes.len() > 1 => lists.try_lock(),
            Patience::None | Patience::Waits => Some(lists.lock()),
        }
    }

    /// The lane of a frame, to take several pages off its lists.
    pub(super) fn hold(&self, pfn: Pfn, mode: Mode) -> Option<LaneHold<'_, P>> {
        let lane = self.lane_of(pfn);
        let lists = match mode {
            Mode::Async => self.lanes[lane].lists.try_lock()?,
            Mode::Sync => self.lanes[lane].lists.lock(),
        };
        Some(LaneHold { lanes: self, lane, lists })
    }

    /// Takes one page off its list, if `act`, under the lane's lock, says so.
    pub(super) fn remove<E>(
        &self,
        pfn: Pfn,
        list: List,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.remove_from(self.lanes[self.lane_of(pfn)].lists.lock(), pfn, list, act)
    }

    /// The same, unless others have the lane.
    pub(super) fn try_remove<E>(
        &self,
        pfn: Pfn,
        list: List,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let lists = self.lanes[self.lane_of(pfn)].lists.try_lock()?;
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
        self.tell(self.lane_of(pfn), &mut lists);
        Ok(())
    }

    /// Says how long a lane's lists are now; to all, where that is news.
    fn tell(&self, lane: usize, lists: &mut Lists) {
        for list in 0..4 {
            let (now, told) = (lists.lists.len(list), lists.told[list]);
            if now == lists.shown[list] {
                continue;
            }
            lists.shown[list] = now;
            self.lanes[lane].len[list].store(now, Relaxed);
            if now.abs_diff(told) >= self.untold {
                self.total[list].fetch_add(now.wrapping_sub(told), Relaxed);
                lists.told[list] = now;
            }
        }
    }

    /// Calls `found` with every page; checks the sums.
    pub(super) fn each(&self, mut found: impl FnMut(Pfn, List)) {
        let mut told = [0u32; 4];
        for (index, lane) in self.lanes.iter().enumerate() {
            let lists = lane.lists.lock();
            for list in List::ALL {
                let at = list as usize;
                assert_eq!(lane.len[at].load(Relaxed), lists.lists.len(at), "a lane's length");
                told[at] += lists.told[at];
                lists.lists.iter(at).for_each(|item| found(self.pfn(index, item), list));
            }
        }
        let total = List::ALL.map(|list| self.len(list));
        assert_eq!(total, told, "what lanes have told is in the sums");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::NodeId;

    #[test]
    fn every_frame_has_a_place_of_its_own() {
        let platform = TestPlatform::new(1, Vec::new());
        for (first, frames, count) in [(0, 1, 1), (7, 1000, 3), (64, 640, 4), (5, 129, 8)] {
            let range = FrameRange { node: NodeId(0), first: Pfn(first), frames };
            let lanes: Lanes<TestPlatform> = Lanes::new(&platform, range, count);
            for pfn in (first..first + frames).map(Pfn) {
                assert_eq!(lanes.pfn(lanes.lane_of(pfn), lanes.item(pfn)), pfn);
            }
        }
    }

    #[test]
    fn lanes_are_for_many_cpus_and_much_memory() {
        let table = [(7, 1 << 20, 1), (8, 1 << 20, 8), (112, 1 << 20, 64), (112, 8192, 4)];
        for (cpus, frames, lanes) in table {
            assert_eq!(lanes_for(cpus, frames), lanes, "{cpus} CPUs, {frames} frames");
        }
    }
}
