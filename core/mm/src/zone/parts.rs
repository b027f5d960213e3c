//! The buddy allocators of a zone, one for each part of its range, so that many CPUs do not meet at
//! one lock.
//!
//! ```text
//! Parts -- [Part]  Lock<Buddy>   a contiguous stretch of whole blocks of the largest order
//!       |          standing      a look at it without the lock: whether to go there at all
//!       |- free                  frames that nobody has, and nobody was promised
//!       \- peak                  most frames that were out at once
//! ```
//! One part is the kernel's zone. With several, a CPU begins at its own and goes round when that
//! has nothing; blocks merge within a part. The watermarks are the whole zone's: who takes frames
//! takes their number off `free` first, down to the mark and no further, and then finds as many
//! somewhere. Who gives frames back adds to `free` last.
//! Conservation: free frames of all parts = `free` + what was promised and is being taken.
//! Locking: one part at a time.

#[cfg(feature = "history")]
mod history;
pub(super) mod isolate;

use super::blocks::Blocks;
use super::buddy::{Buddy, Filled, Reach};
use super::map::Map;
use crate::frame::Mobility;
use crate::lock_class;
use highwater_platform::{Atomic, FrameRange, Guard, Lock, Platform};
use highwater_units::{CpuId, Order, Pfn, adjacent};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// CPUs of a node that share a part.
const CPUS_PER_PART: usize = 4;
/// Frames that a part should have: four blocks of the largest order.
const FRAMES_MIN: u32 = 4096;
/// Most parts of a zone: a set of them is a word.
const PARTS_MAX: usize = crate::config::ZONE_PARTS_MAX as usize;
/// Times round the parts after what was promised: others may free it behind one's back.
const ROUNDS: usize = 2;

/// How many parts suit so many frames, used by so many CPUs.
pub(super) fn parts_for(cpus: usize, frames: u32) -> usize {
    (cpus / CPUS_PER_PART).min((frames / FRAMES_MIN) as usize).clamp(1, PARTS_MAX)
}

/// Frames of each part but the last: whole blocks of the largest order, if they are so many.
fn frames_of_part(frames: u32, parts: usize) -> u32 {
    let fair = (frames / parts as u32).max(1);
    let unit = (1 << fair.ilog2()).min(Order::MAX.frames());
    frames.div_ceil(parts as u32).next_multiple_of(unit)
}

/// What a part has: free frames above a bit for each list of blocks that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing(u64);

impl Standing {
    fn of(buddy: &Buddy) -> Standing {
        Standing(u64::from(buddy.free_frames()) << Filled::BITS | buddy.filled().0)
    }

    fn free(self) -> u32 {
        (self.0 >> Filled::BITS) as u32
    }

    fn filled(self) -> Filled {
        Filled(self.0 & ((1 << Filled::BITS) - 1))
    }
}

struct Part<P: Platform> {
    buddy: P::Lock<Buddy>,
    standing: P::Atomic<u64>,
    map: Arc<Map>,
}

impl<P: Platform> Part<P> {
    /// Acts on the allocator. `act` returns what it visited.
    fn with(&self, act: impl FnOnce(&mut Buddy) -> usize) {
        let mut buddy = self.buddy.lock();
        let visited = act(&mut buddy) + buddy.take_visits();
        buddy.visits(visited);
        self.standing.store(Standing::of(&buddy).0, Relaxed);
    }

    fn standing(&self) -> Standing {
        Standing(self.standing.load(Relaxed))
    }
}

/// What a CPU wants from the parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Frames, at most.
    pub(super) frames: usize,
    /// With so many it does not look further.
    pub(super) least: usize,
    /// Adjacent, where there are such.
    pub(super) together: usize,
    /// Frames to leave free in the zone.
    pub(super) mark: u32,
}

/// What a CPU wants that is to be in one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWish {
    /// Of each block.
    pub(super) order: Order,
    /// Of what it is for.
    pub(super) mobility: Mobility,
    /// Blocks, at most.
    pub(super) count: usize,
    /// Frames to leave free in the zone.
    pub(super) mark: u32,
}

/// All parts of a zone.
pub(super) struct Parts<P: Platform> {
    range: FrameRange,
    each: u32,
    parts: Vec<Part<P>>,
    /// A CPU's own part.
    homes: Vec<usize>,
    free: P::Atomic<u32>,
    peak: P::Atomic<u32>,
}

impl<P: Platform> Parts<P> {
    /// At most `count` parts, all of whose frames are free.
    pub(super) fn new(platform: &P, range: FrameRange, count: usize) -> Parts<P> {
        let each = frames_of_part(range.frames, count);
        let part = |first: u32| {
            let frames = each.min(range.frames - first);
            let buddy = Buddy::new(range.first.offset(first), frames);
            let standing = Atomic::new(Standing::of(&buddy).0);
            let map = buddy.map();
            Part { buddy: platform.new_lock(lock_class::ZONE, buddy), standing, map }
        };
        let parts: Vec<_> = (0..range.frames).step_by(each as usize).map(part).collect();
        // CPUs of the node one after the other, so that few of them are apart; others as they come.
        let (mut own, mut others) = (0, 0);
        let home = |cpu| {
            let local = platform.node_of(CpuId(cpu)) == range.node;
            let next = if local { &mut own } else { &mut others };
            *next += 1;
            (*next - 1) % parts.len()
        };
        Parts {
            range,
            each,
            homes: (0..platform.cpus() as u16).map(home).collect(),
            parts,
            free: Atomic::new(range.frames),
            peak: Atomic::new(0),
        }
    }

    /// Frames that are free, and promised to nobody.
    pub(super) fn free(&self) -> u32 {
        self.free.load(Relaxed)
    }

    /// Most frames that were out at once.
    pub(super) fn peak(&self) -> u32 {
        self.peak.load(Relaxed)
    }

    /// Takes frames; says of each block where it begins and its frames.
    pub(super) fn take(&self, cpu: CpuId, wish: Wish, mut taken: impl FnMut(Pfn, u32)) {
        let promised = self.reserve(wish.mark, |spare| spare.min(wish.frames as u32));
        let (mut left, enough) = (promised, promised.min(wish.least as u32));
        for part in self.round(cpu, ROUNDS) {
            if promised - left >= enough {
                break;
            }
            part.with(|buddy| {
                let together = wish.together.min(left as usize);
                buddy.alloc_many(left as usize, together, |first, frames| {
                    taken(first, frames);
                    left -= frames;
                })
            });
        }
        self.release(left);
    }

    /// Takes blocks; calls `taken` with the first frame of each. Other types' blocks are taken
    /// where no part has one of the wanted type.
    pub(super) fn take_blocks(&self, cpu: CpuId, wish: BlockWish, mut taken: impl FnMut(Pfn)) {
        let BlockWish { order, mobility, count, mark } = wish;
        if !self.fits(order) {
            return;
        }
        let promised = self.reserve(mark, |spare| (spare >> order.0).min(count as u32) << order.0);
        let mut left = promised;
        let alone = self.parts.len() == 1;
        let reaches = if alone { &[Reach::Any][..] } else { &[Reach::Own, Reach::Any] };
        for reach in reaches {
            for part in self.round(cpu, 1) {
                let filled = part.standing().filled();
                let has = match reach {
                    Reach::Own => filled.smallest(order, mobility).is_some(),
                    Reach::Any => filled.fits(order),
                };
                // One block will do: the others are for later.
                if left < promised || promised == 0 {
                    return self.release(left);
                }
                if has {
                    part.with(|buddy| {
                        let mut blocks = 0;
                        while left > 0 {
                            let Some(first) = buddy.alloc(order, mobility, *reach) else { break };
                            taken(first);
                            left -= order.frames();
                            blocks += 1;
                        }
                        blocks.max(1)
                    });
                }
            }
        }
        self.release(left);
    }

    /// Whether a part has a block of `order` or more.
    pub(super) fn fits(&self, order: Order) -> bool {
        self.parts.iter().any(|part| part.standing().filled().fits(order))
    }

    /// Whether an allocation of that kind would find a block: any, if it is of a pageblock or more.
    pub(super) fn has_block(&self, order: Order, mobility: Mobility) -> bool {
        self.parts.iter().any(|part| {
            let filled = part.standing().filled();
            let own = filled.smallest(order, mobility).is_some();
            own || order >= Order::LARGE && filled.fits(order)
        })
    }

    /// A block that was taken for movable contents is for others from now on.
    pub(super) fn convert(&self, first: Pfn, order: Order, mobility: Mobility) {
        if mobility != Mobility::Movable {
            self.parts[self.part_of(first)].with(|buddy| {
                buddy.convert(first, order, mobility);
                1
            });
        }
    }

    /// Gives a block back that was taken for `mobility`.
    pub(super) fn give_block(&self, first: Pfn, order: Order, mobility: Mobility) {
        self.parts[self.part_of(first)].with(|buddy| {
            buddy.free(first, order, mobility);
            1
        });
        self.release(order.frames());
    }

    /// All free blocks, a part after the other.
    pub(super) fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::none(self.range.node);
        self.parts.iter().for_each(|part| {
            let buddy = part.buddy.lock();
            buddy.visits(1);
            blocks.add(&buddy);
        });
        blocks
    }

    /// Gives frames back, those of a part under one lock.
    pub(super) fn give(&self, frames: &[Pfn]) {
        let mut left = 0u64;
        frames.iter().for_each(|pfn| left |= 1 << self.part_of(*pfn));
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            self.parts[index].with(|buddy| self.give_to(index, buddy, frames));
        }
        self.release(frames.len() as u32);
    }

    /// Frees those of `frames` that are the part's; returns how many blocks.
    fn give_to(&self, index: usize, buddy: &mut Buddy, frames: &[Pfn]) -> usize {
        let own = frames.chunk_by(|a, b| self.part_of(*a) == self.part_of(*b));
        own.filter(|chunk| self.part_of(chunk[0]) == index)
            .flat_map(adjacent)
            .map(|(_, first, len)| buddy.free_many(first, len as u32))
            .sum()
    }

    /// Calls `found` with every free frame; checks the sums. Nobody is taking any.
    pub(super) fn each_free(&self, mut found: impl FnMut(Pfn)) {
        let mut sum = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let buddy = part.buddy.lock();
            assert_eq!(part.standing(), Standing::of(&buddy), "what a part shows");
            sum += buddy.free_frames();
            buddy.each_block(|first, order| {
                let last = first.offset(order.frames() - 1);
                assert!([first, last].map(|pfn| self.part_of(pfn)) == [index; 2], "a block's part");
                (0..order.frames()).for_each(|i| found(first.offset(i)));
            });
        }
        assert_eq!(sum, self.free(), "the free count matches the parts");
    }

    fn part_of(&self, pfn: Pfn) -> usize {
        ((pfn.0 - self.range.first.0) / self.each) as usize
    }

    /// The parts that have something, from the CPU's own on, so many times round.
    fn round(&self, cpu: CpuId, rounds: usize) -> impl Iterator<Item = &Part<P>> {
        self.indices(cpu, rounds).map(|index| &self.parts[index])
    }

    fn indices(&self, cpu: CpuId, rounds: usize) -> impl Iterator<Item = usize> {
        let count = self.parts.len();
        let home = self.homes[usize::from(cpu.0)];
        let all = (0..count * rounds).map(move |step| (home + step) % count);
        all.filter(move |index| count == 1 || self.parts[*index].standing().free() > 0)
    }

    /// Takes off `free` what `wanted` makes of what is above `mark`.
    fn reserve(&self, mark: u32, wanted: impl Fn(u32) -> u32) -> u32 {
        let mut promised = 0;
        let before = self.free.fetch_update(AcqRel, Acquire, |free| {
            promised = wanted(free.saturating_sub(mark));
            (promised > 0).then(|| free - promised)
        });
        let Ok(before) = before else { return 0 };
        let out = self.range.frames - (before - promised);
        if out > self.peak.load(Relaxed) {
            self.peak.fetch_max(out, Relaxed);
        }
        promised
    }

    /// Adds to `free`.
    fn release(&self, frames: u32) {
        if frames > 0 {
            self.free.fetch_add(frames, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::LARGE_PAGES;

    #[test]
    fn parts_are_for_many_cpus_and_much_memory() {
        let table = [(2, 1 << 20, 1), (8, 1 << 20, 2), (112, 1 << 20, 28), (112, 8192, 2)];
        for (cpus, frames, parts) in table {
            assert_eq!(parts_for(cpus, frames), parts, "{cpus} CPUs, {frames} frames");
        }
    }

    #[test]
    fn parts_hold_whole_blocks_where_they_can() {
        // Frames, parts -> frames of each.
        let table = [
            (1 << 17, 1, 1 << 17),
            (1 << 17, 28, 5120),
            (100_000, 1, 100_352),
            (3000, 2, 2048),
            (1000, 3, 512),
            (40, 6, 8),
            (3, 6, 1),
        ];
        for (frames, parts, each) in table {
            assert_eq!(frames_of_part(frames, parts), each, "{frames} frames, {parts} parts");
            assert!(frames.div_ceil(each) as usize <= parts);
            let holds_large = each >= LARGE_PAGES as u32;
            assert!(!holds_large || each % LARGE_PAGES as u32 == 0, "large blocks are aligned");
        }
    }
}
