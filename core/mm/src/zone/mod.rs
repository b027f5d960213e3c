//! The free frames of one node: per-CPU lists over a buddy allocator, with watermarks.
//!
//! ```text
//! Zone -- CpuFrames: a lock for each CPU   at most `high` frames, moved in batches     pcp.rs
//!      \- Parts: a lock for each           buddy allocators: orders 0 to 10            parts.rs
//!               free: frames in all of them, compared with min, low, high without a lock
//! parts.rs -> buddy.rs, map.rs, mobility.rs     blocks.rs: statistics of free blocks
//! ```
//! A thread frees its own pages, and frames that it reclaims for itself, to its CPU's list and
//! allocates from there, without the lock of a part; kswapd frees to the parts
//! ([`Zone::free_to_zone`]).
//!
//! Locking: a CPU's list, then a part (`PerCpuFrames -> Zone`). As in the kernel, frames on per-CPU
//! lists do not count as free; [`Zone::drain`] returns them when memory is short.
//!
//! A balloon holds frames that the zone may not use for now, as the balloon of a virtual machine
//! does. So several managers can share memory, each with a range as large as all of it. Free frames
//! that the balloon takes stay in the buddy allocators, but no longer count as free
//! ([`Zone::inflate`], [`Zone::deflate`]). Watermarks and limits follow the size that is left.
//! Conservation: frames in parts + on per-CPU lists + allocated = frames of the range; frames in
//! parts = free frames + reserved frames + frames of the balloon.

mod blocks;
mod buddy;
#[cfg(test)]
mod buddy_fuzz;
mod map;
mod mobility;
mod parts;
mod pcp;
mod pcp_blocks;
mod scan;
mod size;
mod watermark;
#[cfg(test)]
mod zone_fuzz;

pub use crate::frame::Mobility;
pub use blocks::{Blocks, Fragmentation};
pub use buddy::{Buddy, Reach};
pub use mobility::PAGEBLOCK;
pub use parts::isolate::{Contention, Destination, FreeScan, Wanted};
pub use pcp::ListRule;
pub use scan::{Scanner, Scanners};
pub use watermark::{Level, Watermarks};

use crate::config::Config;
use crate::lock_class;
use highwater_platform::{FrameRange, Guard, Lock, Platform};
use highwater_units::{CpuId, FrameList, Nanos, Order, Pfn};
use parts::{BlockRequest, Parts, Request, parts_for};
use pcp::{CpuFrames, Limits, Source};
use pcp_blocks::BlockList;
use size::Size;
use std::ops::Range;

/// How a zone is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZoneConfig {
    /// Number of parts; `None`: by its CPUs and frames.
    pub parts: Option<u32>,
    /// The lists of its CPUs.
    pub lists: ListRule,
}

impl From<&Config> for ZoneConfig {
    fn from(config: &Config) -> ZoneConfig {
        ZoneConfig { parts: config.zone_parts, lists: config.into() }
    }
}

/// The free frames of a node.
pub struct Zone<P: Platform> {
    range: FrameRange,
    size: Size,
    parts: Parts<P>,
    cpus: Vec<P::Lock<CpuFrames>>,
    scanners: Scanners<P>,
}

impl<P: Platform> Zone<P> {
    /// A zone whose frames are all free.
    pub fn new(platform: &P, range: FrameRange, marks: Watermarks, config: ZoneConfig) -> Zone<P> {
        let ZoneConfig { parts, lists } = config;
        let own = |cpu: &u16| platform.node_of(CpuId(*cpu)) == range.node;
        let local = (0..platform.cpus() as u16).filter(own).count();
        let size = Size::new(range.frames, marks, local, lists);
        let limits = size.limits();
        let parts = parts.map_or_else(|| parts_for(local, range.frames), |parts| parts as usize);
        let list = |_| platform.new_lock(lock_class::PER_CPU_FRAMES, CpuFrames::new(limits));
        let parts = Parts::new(platform, range, parts);
        let last = Pfn(parts.frames_of(parts.pageblocks() - 1).start);
        Zone {
            range,
            size,
            parts,
            scanners: Scanners::new(range, last),
            cpus: (0..platform.cpus()).map(list).collect(),
        }
    }

    /// The frames of the zone, free or not.
    pub fn range(&self) -> FrameRange {
        self.range
    }

    /// The frames that the zone may use: those of its range that are not in the balloon.
    pub fn present(&self) -> u32 {
        self.range.frames.saturating_sub(self.parts.ballooned())
    }

    /// The frames in the balloon.
    pub fn ballooned(&self) -> u32 {
        self.parts.ballooned()
    }

    /// Takes up to `frames` free frames into the balloon, while `mark` frames stay free; returns
    /// how many. The caller sets the watermarks for the smaller zone.
    pub fn inflate(&self, frames: u32, mark: u32) -> u32 {
        self.parts.inflate(frames, mark)
    }

    /// Makes up to `frames` frames of the balloon free; returns how many. The caller sets the
    /// watermarks for the larger zone.
    pub fn deflate(&self, frames: u32) -> u32 {
        self.parts.deflate(frames)
    }

    /// The watermarks.
    pub fn marks(&self) -> Watermarks {
        self.size.marks()
    }

    /// Sets the watermarks, after the balloon has changed.
    pub fn set_marks(&self, marks: Watermarks) {
        self.size.set(self.present(), marks);
    }

    fn limits(&self) -> Limits {
        self.size.limits()
    }

    /// Frames in the buddy allocators that are not reserved, and not in the balloon.
    pub fn free_frames(&self) -> u32 {
        self.parts.free()
    }

    /// Most frames that were out of the buddy allocators at once: in use, or on per-CPU lists.
    pub fn peak(&self) -> u32 {
        self.parts.peak()
    }

    /// Whether `frames` could be taken and the zone stay at or above `level`.
    pub fn allows(&self, level: Level, frames: u32) -> bool {
        self.free_frames() >= self.marks().at(level) + frames
    }

    /// Allocates up to `wanted` (1 to 16) frames: from the CPU's list, or from what the zone has
    /// above `level`; adjacent ones if possible and `level` is low.
    pub fn alloc(&self, cpu: CpuId, wanted: usize, level: Level) -> FrameList {
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(1);
        let mark = self.marks().at(level);
        let spare = || self.free_frames().saturating_sub(mark) as usize;
        match mine.source(&self.limits(), wanted, level, spare) {
            Source::List => {}
            #[cfg(feature = "history")]
            Source::Denied => return FrameList::default(),
            Source::Buddy { frames } => {
                // Single frames come from gaps; larger blocks are left to allocations of several.
                let together = if wanted > 1 { frames } else { 1 };
                let request = Request { frames, least: wanted, together, mark };
                self.parts.take(cpu, request, |first, frames| {
                    mine.push((0..frames).map(|i| first.offset(i)));
                });
            }
        }
        mine.pop(wanted)
    }

    /// Whether a block of `order` is free, and could be taken with the zone at or above `level`.
    pub fn allows_block(&self, level: Level, order: Order) -> bool {
        self.allows(level, order.frames()) && self.parts.fits(order)
    }

    /// Allocates 2^order adjacent frames from the CPU's list, or from what the zone has above
    /// `level`; returns the first.
    pub fn alloc_block(
        &self,
        cpu: CpuId,
        order: Order,
        mobility: Mobility,
        level: Level,
    ) -> Option<Pfn> {
        let mark = self.marks().at(level);
        let mut first = None;
        match BlockList::of(order, mobility) {
            None => {
                let request = BlockRequest { order, mobility, count: 1, mark };
                self.parts.take_blocks(cpu, request, |block| first = Some(block));
            }
            Some(list) => {
                let mut mine = self.cpus[usize::from(cpu.0)].lock();
                mine.visits(1);
                first = mine.pop_block(list);
                if first.is_none() {
                    let count = mine.batch_for(&self.limits(), order);
                    let request = BlockRequest { order, mobility, count, mark };
                    self.parts.take_blocks(cpu, request, |block| match first {
                        None => first = Some(block),
                        Some(_) => mine.push_block(list, block),
                    });
                }
            }
        }
        first
    }

    /// Whether an allocation would find a block if it ignored the watermarks.
    pub fn has_block(&self, order: Order, mobility: Mobility) -> bool {
        self.parts.has_block(order, mobility)
    }

    /// Changes the migrate type of an allocated block that was taken as movable.
    pub fn convert(&self, first: Pfn, order: Order, mobility: Mobility) {
        self.parts.convert(first, order, mobility);
    }

    /// Frees a movable block to the buddy allocator.
    pub fn release_block(&self, first: Pfn, order: Order) {
        self.parts.give_block(first, order, Mobility::Movable);
    }

    /// Takes up to `wanted` single movable frames above `level`; calls `taken` with each.
    pub fn take_singles(
        &self,
        cpu: CpuId,
        wanted: usize,
        level: Level,
        mut taken: impl FnMut(Pfn),
    ) {
        let mark = self.marks().at(level);
        let request = Request { frames: wanted, least: wanted, together: 1, mark };
        self.parts.take(cpu, request, |first, frames| {
            (0..frames).for_each(|index| taken(first.offset(index)));
        });
    }

    /// Calls `found` with the first frames of regions of `order` that are free in part, the most
    /// promising first, until it returns `false`.
    pub fn each_region(&self, platform: &P, order: Order, found: impl FnMut(Pfn) -> bool) {
        self.parts.each_region(platform, platform.cpu(), order, found);
    }

    /// The state that compaction keeps from one pass to the next.
    pub fn scanners(&self) -> &Scanners<P> {
        &self.scanners
    }

    /// Clears the skip bits and cached scanner positions, at most once in 5 s.
    pub fn reset_skips(&self, now: Nanos) {
        if self.scanners.reset(now) {
            self.parts.clear_skips();
        }
    }

    /// Number of pageblocks, for tests.
    #[cfg(feature = "inspect")]
    pub fn pageblocks(&self) -> u32 {
        self.parts.pageblocks()
    }

    /// The pageblock of a frame.
    pub fn pageblock_of(&self, pfn: Pfn) -> u32 {
        self.parts.pageblock_of(pfn)
    }

    /// The frames of a pageblock, by number.
    pub fn frames_of(&self, pageblock: u32) -> Range<u32> {
        self.parts.frames_of(pageblock)
    }

    /// The migrate type of a pageblock. Racy: no lock is held.
    pub fn mobility(&self, pageblock: u32) -> Mobility {
        let (map, own) = self.parts.map_of(pageblock);
        map.mobility(own)
    }

    /// Whether compaction skips a pageblock, because it isolated nothing there.
    pub fn skips(&self, pageblock: u32) -> bool {
        let (map, own) = self.parts.map_of(pageblock);
        map.skips(own)
    }

    /// Makes compaction skip a pageblock.
    pub fn set_skip(&self, pageblock: u32) {
        let (map, own) = self.parts.map_of(pageblock);
        map.set_skip(own);
    }

    /// The order of the free block that starts at a frame. Racy: no lock is held.
    pub fn free_at(&self, pfn: Pfn) -> Option<Order> {
        self.parts.free_at(pfn)
    }

    /// The smallest free movable block of these orders that `fits`, and how many blocks were
    /// scanned. Racy: no lock is held afterwards.
    pub fn find_block(
        &self,
        cpu: CpuId,
        orders: Range<u8>,
        fits: impl Fn(Pfn) -> bool,
    ) -> (Option<Pfn>, usize) {
        self.parts.find_block(cpu, orders, fits)
    }

    /// Takes the free blocks among `frames`, which are in one pageblock, while `mark` frames stay
    /// free; calls `taken` with each, until it returns [`Wanted::NoMore`].
    pub fn isolate_free(
        &self,
        platform: &P,
        frames: Range<u32>,
        contention: Contention,
        mark: u32,
        taken: impl FnMut(Pfn, Order) -> Wanted,
    ) -> FreeScan {
        self.parts.isolate(platform, frames, contention, mark, taken)
    }

    /// [`Zone::isolate_free`] with the lock taken before the first frame.
    #[cfg(feature = "history")]
    pub fn isolate_free_early(
        &self,
        platform: &P,
        frames: Range<u32>,
        contention: Contention,
        mark: u32,
        taken: impl FnMut(Pfn, Order) -> Wanted,
    ) -> FreeScan {
        self.parts.isolate_early(platform, frames, contention, mark, taken)
    }

    /// Takes small free movable blocks in pageblocks that suit a destination, until they have as
    /// many frames as wanted, while `mark` frames stay free; calls `taken` with each.
    pub fn take_pieces(
        &self,
        cpu: CpuId,
        wanted: (usize, &Destination),
        limits: (Contention, u32),
        taken: impl FnMut(Pfn, Order),
    ) -> FreeScan {
        self.parts.take_pieces(cpu, wanted, limits, taken)
    }

    /// Frees 2^order adjacent frames to the CPU's list if it has one for the order, else to the
    /// buddy allocator.
    pub fn free_block(&self, cpu: CpuId, first: Pfn, order: Order, mobility: Mobility) {
        if let Some(list) = BlockList::of(order, mobility) {
            let mut mine = self.cpus[usize::from(cpu.0)].lock();
            mine.visits(1);
            if mine.room_for(&self.limits(), order) > 0 {
                return mine.push_block(list, first);
            }
        }
        self.parts.give_block(first, order, mobility);
    }

    /// Counts of free blocks. Frames on per-CPU lists are not included.
    pub fn blocks(&self) -> Blocks {
        self.parts.blocks()
    }

    /// Frees frames to the CPU's list; if that is full, half of it goes to the buddy allocator.
    pub fn free(&self, cpu: CpuId, frames: &[Pfn]) {
        let limits = self.limits();
        if frames.len() > limits.high {
            return self.free_to_zone(frames);
        }
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(frames.len());
        mine.free(&limits, frames, |oldest| self.free_to_zone(oldest));
    }

    /// Frees frames to the buddy allocator, where every CPU can allocate them.
    pub fn free_to_zone(&self, frames: &[Pfn]) {
        self.parts.give(frames);
    }

    /// Returns the frames of all per-CPU lists to the buddy allocator.
    pub fn drain(&self) {
        for cpu in 0..self.cpus.len() {
            self.drain_of(CpuId(cpu as u16));
        }
    }

    /// Returns the frames of one CPU's list to the buddy allocator.
    pub fn drain_of(&self, cpu: CpuId) {
        let mut list = self.cpus[usize::from(cpu.0)].lock();
        list.visits(1);
        if list.len() > 0 {
            self.free_to_zone(list.frames());
            let give = |first, order, mobility| self.parts.give_block(first, order, mobility);
            list.blocks().each(give);
            list.clear();
        }
    }

    /// Calls `found` with every free frame, for [`crate::verify`].
    pub(crate) fn each_free(&self, mut found: impl FnMut(Pfn)) {
        for list in &self.cpus {
            let list = list.lock();
            list.frames().iter().for_each(|pfn| found(*pfn));
            list.blocks().each(|first, order, _| {
                (0..order.frames()).for_each(|index| found(first.offset(index)));
            });
        }
        self.parts.each_free(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::NodeId;

    #[test]
    fn the_peak_is_exact_to_within_a_per_cpu_list() {
        let platform = TestPlatform::new(1, Vec::new());
        let range = FrameRange { node: NodeId(0), first: Pfn(0), frames: 1 << 15 };
        let marks = Watermarks::new(1 << 15, 1 << 15, None, Some(10));
        let zone = Zone::new(&platform, range, marks, ZoneConfig::default());
        let take = |count| -> Vec<Pfn> {
            (0..count).flat_map(|_| zone.alloc(CpuId(0), 1, Level::Nothing).to_vec()).collect()
        };
        assert_eq!(zone.peak(), 0);
        let first = take(1000);
        first.iter().for_each(|pfn| zone.free(CpuId(0), &[*pfn]));
        let second = take(500);
        let run = zone.alloc(CpuId(0), 16, Level::Nothing);
        assert_eq!((first.len(), second.len(), run.len()), (1000, 500, 16));
        assert!((1000..1000 + zone.limits().high as u32).contains(&zone.peak()), "{}", zone.peak());
        let all = take(1 << 15);
        assert_eq!((all.len(), zone.peak()), ((1 << 15) - 516, 1 << 15));
    }

    #[test]
    fn pages_move_to_pageblocks_that_will_not_become_free() {
        let platform = TestPlatform::new(1, Vec::new());
        let range = FrameRange { node: NodeId(0), first: Pfn(0), frames: 4 * PAGEBLOCK };
        let marks = Watermarks::new(range.frames, range.frames, None, Some(10));
        let zone = Zone::new(
            &platform,
            range,
            marks,
            ZoneConfig { parts: Some(1), ..ZoneConfig::default() },
        );
        let (cpu, last) = (CpuId(0), 3 * PAGEBLOCK);
        zone.take_singles(cpu, range.frames as usize, Level::Nothing, |_| {});
        // The pageblock stays movable: all its other frames are in use by movable pages.
        let stays = Pfn(last + 188);
        zone.free_to_zone(&[stays]);
        let first = zone.alloc_block(cpu, Order(0), Mobility::Unmovable, Level::Nothing);
        assert_eq!(first, Some(stays));
        let free: Vec<Pfn> = (0..range.frames).filter(|pfn| pfn % 4 == 1).map(Pfn).collect();
        zone.free_to_zone(&free);
        let take = |destination| {
            let mut taken = Vec::new();
            let limits = (Contention::Waits, 0);
            zone.take_pieces(cpu, (50, &destination), limits, |pfn, order| {
                assert_eq!(order, Order(0));
                taken.push(pfn.0 / PAGEBLOCK);
            });
            taken
        };
        assert_eq!(take(Destination::Unmovable), [3; 50]);
        let region = last..last + PAGEBLOCK;
        assert_eq!(take(Destination::Fuller { region: region.clone(), free: 127 }), [0; 0]);
        assert_eq!(take(Destination::Fuller { region, free: 128 }), [2; 50]);
        assert_eq!(zone.free_frames(), 4 * 128 - 100);
    }
}
