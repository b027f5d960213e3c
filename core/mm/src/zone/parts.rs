//! The buddy allocators of a zone: one for each part of its range, so that many CPUs do not contend
//! for one lock.
//!
//! ```text
//! Parts -- [Part]  Lock<Buddy>   a contiguous range of whole blocks of the largest order
//!       |          summary       its free frames and non-empty lists, read without the lock
//!       |- free                  free frames that are not reserved, and not in the balloon
//!       |- ballooned             frames of the balloon: reserved until it is deflated
//!       \- peak                  most frames that were allocated at once
//! ```
//! A zone of one part is the kernel's. With several parts a CPU starts at its own part and goes on
//! to the others if its own has nothing free; blocks merge within a part. The watermarks apply to
//! the whole zone: an allocation first reserves its frames by subtracting them from `free`, not
//! below the watermark, and then finds them in some part. Freeing adds to `free` last.
//! Conservation: free frames of all parts = `free` + reserved frames + `ballooned`.
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
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The number of CPUs of a node that share a part.
const CPUS_PER_PART: usize = 4;
/// Least frames of a part: four blocks of the largest order.
const FRAMES_MIN: u32 = 4096;
/// Most parts of a zone: a set of them fits a 64-bit word.
const PARTS_MAX: usize = crate::config::ZONE_PARTS_MAX as usize;
/// How often an allocation visits all parts for its reserved frames: another thread may free frames
/// to a part that was visited already.
const ROUNDS: usize = 2;

/// The default number of parts of a zone with `frames` frames and `cpus` local CPUs.
pub(super) fn parts_for(cpus: usize, frames: u32) -> usize {
    (cpus / CPUS_PER_PART).min((frames / FRAMES_MIN) as usize).clamp(1, PARTS_MAX)
}

/// Frames of each part but the last: whole blocks of the largest order, if the zone is large
/// enough.
fn frames_of_part(frames: u32, parts: usize) -> u32 {
    let fair = (frames / parts as u32).max(1);
    let unit = (1 << fair.ilog2()).min(Order::MAX.frames());
    frames.div_ceil(parts as u32).next_multiple_of(unit)
}

/// A part's free frames (upper bits), and a bit for each non-empty list of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Summary(u64);

impl Summary {
    fn of(buddy: &Buddy) -> Summary {
        Summary(u64::from(buddy.free_frames()) << Filled::BITS | buddy.filled().0)
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
    summary: P::Atomic<u64>,
    map: Arc<Map>,
}

impl<P: Platform> Part<P> {
    /// Runs `act` on the allocator under the lock. `act` returns how many items it visited.
    fn with(&self, act: impl FnOnce(&mut Buddy) -> usize) {
        let mut buddy = self.buddy.lock();
        let visited = act(&mut buddy) + buddy.take_visits();
        buddy.visits(visited);
        self.summary.store(Summary::of(&buddy).0, Relaxed);
    }

    fn summary(&self) -> Summary {
        Summary(self.summary.load(Relaxed))
    }
}

/// An allocation of single frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Most frames to take.
    pub(super) frames: usize,
    /// With this many, no further part is visited.
    pub(super) least: usize,
    /// Frames that should be adjacent.
    pub(super) together: usize,
    /// Frames that stay free in the zone.
    pub(super) mark: u32,
}

/// An allocation of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRequest {
    /// The order of each block.
    pub(super) order: Order,
    /// The migrate type.
    pub(super) mobility: Mobility,
    /// Most blocks to take.
    pub(super) count: usize,
    /// Frames that stay free in the zone.
    pub(super) mark: u32,
}

/// All parts of a zone.
pub(super) struct Parts<P: Platform> {
    range: FrameRange,
    each: u32,
    parts: Vec<Part<P>>,
    /// By CPU: the part it starts at.
    homes: Vec<usize>,
    free: P::Atomic<u32>,
    /// Not the platform's: it changes only with the size of the zone.
    ballooned: AtomicU32,
    /// Frames that may just be moving from `free` to the balloon; they do not count in the peak.
    inflating: AtomicU32,
    peak: P::Atomic<u32>,
}

impl<P: Platform> Parts<P> {
    /// At most `count` parts; all frames are free.
    pub(super) fn new(platform: &P, range: FrameRange, count: usize) -> Parts<P> {
        let each = frames_of_part(range.frames, count);
        let part = |first: u32| {
            let frames = each.min(range.frames - first);
            let buddy = Buddy::new(range.first.offset(first), frames);
            let summary = Atomic::new(Summary::of(&buddy).0);
            let map = buddy.map();
            Part { buddy: platform.new_lock(lock_class::ZONE, buddy), summary, map }
        };
        let parts: Vec<_> = (0..range.frames).step_by(each as usize).map(part).collect();
        // The node's CPUs are spread evenly over the parts, and so are the other CPUs.
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
            ballooned: AtomicU32::new(0),
            inflating: AtomicU32::new(0),
            peak: Atomic::new(0),
        }
    }

    /// Free frames that are not reserved.
    pub(super) fn free(&self) -> u32 {
        self.free.load(Relaxed)
    }

    /// Most frames that were allocated at once.
    pub(super) fn peak(&self) -> u32 {
        self.peak.load(Relaxed)
    }

    /// Frames in the balloon.
    pub(super) fn ballooned(&self) -> u32 {
        self.ballooned.load(Relaxed)
    }

    /// Takes up to `frames` free frames into the balloon, while `mark` frames stay free; returns
    /// how many.
    pub(super) fn inflate(&self, frames: u32, mark: u32) -> u32 {
        self.inflating.fetch_add(frames, AcqRel);
        let taken = self.reserve(mark, |spare| spare.min(frames));
        self.ballooned.fetch_add(taken, AcqRel);
        self.inflating.fetch_sub(frames, AcqRel);
        taken
    }

    /// Makes up to `frames` frames of the balloon free; returns how many.
    pub(super) fn deflate(&self, frames: u32) -> u32 {
        let mut given = 0;
        let _ = self.ballooned.fetch_update(AcqRel, Acquire, |ballooned| {
            given = ballooned.min(frames);
            Some(ballooned - given)
        });
        self.release(given);
        given
    }

    /// Takes frames; calls `taken` with the first frame and the length of each block.
    pub(super) fn take(&self, cpu: CpuId, request: Request, mut taken: impl FnMut(Pfn, u32)) {
        let reserved = self.reserve(request.mark, |spare| spare.min(request.frames as u32));
        let (mut left, enough) = (reserved, reserved.min(request.least as u32));
        for part in self.round(cpu, ROUNDS) {
            if reserved - left >= enough {
                break;
            }
            part.with(|buddy| {
                let together = request.together.min(left as usize);
                buddy.alloc_many(left as usize, together, |first, frames| {
                    taken(first, frames);
                    left -= frames;
                })
            });
        }
        self.release(left);
    }

    /// Takes blocks; calls `taken` with the first frame of each. It takes blocks of other migrate
    /// types only if no part has one of the wanted type.
    pub(super) fn take_blocks(
        &self,
        cpu: CpuId,
        request: BlockRequest,
        mut taken: impl FnMut(Pfn),
    ) {
        let BlockRequest { order, mobility, count, mark } = request;
        if !self.fits(order) {
            return;
        }
        let reserved = self.reserve(mark, |spare| (spare >> order.0).min(count as u32) << order.0);
        let mut left = reserved;
        let alone = self.parts.len() == 1;
        let reaches = if alone { &[Reach::Any][..] } else { &[Reach::Own, Reach::Any] };
        for reach in reaches {
            for part in self.round(cpu, 1) {
                let filled = part.summary().filled();
                let has = match reach {
                    Reach::Own => filled.smallest(order, mobility).is_some(),
                    Reach::Any => filled.fits(order),
                };
                // The caller needs one block; more are for its per-CPU list.
                if left < reserved || reserved == 0 {
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
        self.parts.iter().any(|part| part.summary().filled().fits(order))
    }

    /// Whether an allocation would find a block: of its migrate type, or of any for whole
    /// pageblocks.
    pub(super) fn has_block(&self, order: Order, mobility: Mobility) -> bool {
        self.parts.iter().any(|part| {
            let filled = part.summary().filled();
            let own = filled.smallest(order, mobility).is_some();
            own || order >= Order::LARGE && filled.fits(order)
        })
    }

    /// Changes the migrate type of an allocated block that was taken as movable.
    pub(super) fn convert(&self, first: Pfn, order: Order, mobility: Mobility) {
        if mobility != Mobility::Movable {
            self.parts[self.part_of(first)].with(|buddy| {
                buddy.convert(first, order, mobility);
                1
            });
        }
    }

    /// Frees a block that was taken for `mobility`.
    pub(super) fn give_block(&self, first: Pfn, order: Order, mobility: Mobility) {
        self.parts[self.part_of(first)].with(|buddy| {
            buddy.free(first, order, mobility);
            1
        });
        self.release(order.frames());
    }

    /// Counts the free blocks of all parts. Each part is locked in turn.
    pub(super) fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::none(self.range.node);
        self.parts.iter().for_each(|part| {
            let buddy = part.buddy.lock();
            buddy.visits(1);
            blocks.add(&buddy);
        });
        blocks
    }

    /// Frees frames, with one lock per part.
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

    /// Frees those of `frames` that belong to the part; returns how many blocks they are.
    fn give_to(&self, index: usize, buddy: &mut Buddy, frames: &[Pfn]) -> usize {
        let own = frames.chunk_by(|a, b| self.part_of(*a) == self.part_of(*b));
        own.filter(|chunk| self.part_of(chunk[0]) == index)
            .flat_map(adjacent)
            .map(|(_, first, len)| buddy.free_many(first, len as u32))
            .sum()
    }

    /// Calls `found` with every free frame, and checks the sums. No other thread may allocate.
    pub(super) fn each_free(&self, mut found: impl FnMut(Pfn)) {
        let mut sum = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let buddy = part.buddy.lock();
            assert_eq!(part.summary(), Summary::of(&buddy), "the summary of a part");
            sum += buddy.free_frames();
            buddy.each_block(|first, order| {
                let last = first.offset(order.frames() - 1);
                assert!(
                    [first, last].map(|pfn| self.part_of(pfn)) == [index; 2],
                    "a block is in one part"
                );
                (0..order.frames()).for_each(|i| found(first.offset(i)));
            });
        }
        assert_eq!(sum, self.free() + self.ballooned(), "the free count matches the parts");
    }

    fn part_of(&self, pfn: Pfn) -> usize {
        ((pfn.0 - self.range.first.0) / self.each) as usize
    }

    /// The parts that have free frames, starting at the CPU's own, visited `rounds` times.
    fn round(&self, cpu: CpuId, rounds: usize) -> impl Iterator<Item = &Part<P>> {
        self.indices(cpu, rounds).map(|index| &self.parts[index])
    }

    fn indices(&self, cpu: CpuId, rounds: usize) -> impl Iterator<Item = usize> {
        let count = self.parts.len();
        let home = self.homes[usize::from(cpu.0)];
        let all = (0..count * rounds).map(move |step| (home + step) % count);
        all.filter(move |index| count == 1 || self.parts[*index].summary().free() > 0)
    }

    /// Reserves `wanted(spare)` frames, where `spare` of the free frames are above `mark`.
    fn reserve(&self, mark: u32, wanted: impl Fn(u32) -> u32) -> u32 {
        let mut reserved = 0;
        let before = self.free.fetch_update(AcqRel, Acquire, |free| {
            reserved = wanted(free.saturating_sub(mark));
            (reserved > 0).then(|| free - reserved)
        });
        let Ok(before) = before else { return 0 };
        let unused = before - reserved + self.inflating.load(Acquire) + self.ballooned();
        let out = self.range.frames.saturating_sub(unused);
        if out > self.peak.load(Relaxed) {
            self.peak.fetch_max(out, Relaxed);
        }
        reserved
    }

    /// Ends a reservation, or frees frames that are in a part already.
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
    fn zones_with_more_cpus_and_memory_have_more_parts() {
        let table = [(2, 1 << 20, 1), (8, 1 << 20, 2), (112, 1 << 20, 28), (112, 8192, 2)];
        for (cpus, frames, parts) in table {
            assert_eq!(parts_for(cpus, frames), parts, "{cpus} CPUs, {frames} frames");
        }
    }

    #[test]
    fn parts_hold_whole_blocks_if_they_are_large_enough() {
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
