//! A CPU's list of free frames: its limits, and where an allocation takes its frames.
//!
//! ```text
//! list of a CPU:  [oldest ........ newest]  <= high
//!                  spilled: half    allocated first; often freed together, so adjacent
//! ```
//! The kernel's rules (mm/page_alloc.c, Linux 6.12): batch is zone_batchsize. High is
//! zone_highsize, the low watermark divided by the node's CPUs, at least 4 batches, and at most
//! pcp->high_max: all lists together hold an eighth of the zone. A budget of some hundred frames
//! needs this limit.

use super::pcp_blocks::{BlockList, CpuBlocks};
use super::watermark::Level;
use crate::config::Config;
use highwater_units::{FrameList, Order, Pfn, RUN_PAGES_MAX, adjacent};

/// All lists together hold at most one frame in this many (MIN_PERCPU_PAGELIST_HIGH_FRACTION).
const ZONE_SHARE: usize = 8;

/// Batches of a full list of fixed size (pcp->high until Linux 4.18).
#[cfg(feature = "history")]
const FIXED_HIGH: usize = 6;

/// Pieces in which the list may serve an allocation of several frames.
const PIECES_MAX: usize = 2;

/// How the lists of CPUs are filled and spilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListRule {
    /// As Linux 6.12: high follows the low watermark, the batch doubles while a CPU only allocates,
    /// and a full list spills half.
    #[default]
    Adaptive,
    /// As Linux 2.6 to 4.18: high is six batches, and a full list spills a batch.
    #[cfg(feature = "history")]
    Fixed {
        /// Frames that move between list and buddy allocator at a time; 31 in zones of 512 MiB and
        /// more.
        batch: u16,
    },
}

impl From<&Config> for ListRule {
    #[cfg(feature = "history")]
    fn from(config: &Config) -> ListRule {
        config.history.pcp_batch.map_or(ListRule::Adaptive, |batch| ListRule::Fixed { batch })
    }

    #[cfg(not(feature = "history"))]
    fn from(_: &Config) -> ListRule {
        ListRule::Adaptive
    }
}

/// Limits of a CPU's list, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Frames that move from the buddy allocator to the list at a time, at first.
    pub(super) batch: usize,
    /// Most frames on the list; at least `batch`.
    pub(super) high: usize,
    /// How it gets there.
    pub(super) rule: ListRule,
}

impl Limits {
    /// The limits for a zone of `frames` frames with `cpus` local CPUs.
    pub(super) fn new(rule: ListRule, frames: u32, low: u32, cpus: usize) -> Limits {
        #[cfg(feature = "history")]
        if let ListRule::Fixed { batch } = rule {
            let batch = usize::from(batch);
            return Limits { batch, high: FIXED_HIGH * batch, rule };
        }
        let (batch, cpus) = (batch_of(frames), cpus.max(1));
        let high = (low as usize / cpus).max(4 * batch);
        Limits { batch, high: high.min(frames as usize / ZONE_SHARE / cpus).max(batch), rule }
    }

    /// Most frames on a list that has spilled.
    fn after_spill(&self) -> usize {
        match self.rule {
            ListRule::Adaptive => self.high.div_ceil(2),
            #[cfg(feature = "history")]
            ListRule::Fixed { .. } => self.high - self.batch,
        }
    }
}

/// The free frames on a CPU's list.
#[derive(Debug)]
pub(super) struct CpuFrames {
    /// The newest last.
    frames: Vec<Pfn>,
    /// Frames to take from the buddy allocator next: doubles while the CPU only allocates.
    batch: usize,
    /// Blocks of adjacent frames.
    blocks: CpuBlocks,
}

impl CpuFrames {
    /// An empty list.
    pub(super) fn new(limits: Limits) -> CpuFrames {
        let frames = Vec::with_capacity(2 * limits.high + RUN_PAGES_MAX);
        CpuFrames { frames, batch: limits.batch, blocks: CpuBlocks::default() }
    }

    /// The single frames.
    pub(super) fn frames(&self) -> &[Pfn] {
        &self.frames
    }

    /// The blocks.
    pub(super) fn blocks(&self) -> &CpuBlocks {
        &self.blocks
    }

    /// Number of single frames and frames in blocks.
    pub(super) fn len(&self) -> usize {
        self.frames.len() + self.blocks.frames()
    }

    /// Removes the newest block.
    pub(super) fn pop_block(&mut self, list: BlockList) -> Option<Pfn> {
        self.blocks.pop(list)
    }

    /// Adds a block.
    pub(super) fn push_block(&mut self, list: BlockList, first: Pfn) {
        self.blocks.push(list, first);
    }

    /// How many more blocks of an order fit. Half of the list is left to single frames.
    pub(super) fn room_for(&self, limits: &Limits, order: Order) -> usize {
        let free = (limits.high / 2).saturating_sub(self.blocks.frames());
        free.min(limits.high.saturating_sub(self.len())) >> order.0
    }

    /// How many blocks of an order to take from the buddy allocator when one is wanted.
    pub(super) fn batch_for(&self, limits: &Limits, order: Order) -> usize {
        (limits.batch >> order.0).min(self.room_for(limits, order)).max(1)
    }

    /// Where an allocation takes up to `wanted` frames. `spare`, the zone's frames above `level`,
    /// is called only if the list is not good enough.
    pub(super) fn source(
        &mut self,
        limits: &Limits,
        wanted: usize,
        level: Level,
        spare: impl FnOnce() -> usize,
    ) -> Source {
        #[cfg(feature = "history")]
        if let ListRule::Fixed { .. } = limits.rule {
            return fixed_source(limits, self.frames.len(), wanted, (level, spare()));
        }
        let list = &self.frames;
        let newest = &list[list.len().saturating_sub(wanted)..];
        if newest.len() == wanted && adjacent(newest).count() <= PIECES_MAX {
            return Source::List;
        }
        let spare = spare();
        // Adjacent frames are mapped with one call. Below low any frame has to do.
        let chooses = level == Level::Low && spare >= wanted;
        if !chooses && (spare == 0 || !list.is_empty()) {
            return Source::List;
        }
        let batch = self.batch.min(limits.high.saturating_sub(self.len()));
        self.batch = (2 * self.batch).min(limits.high);
        // Whole multiples: the next allocations get adjacent frames, too.
        Source::Buddy { frames: (batch / wanted * wanted).max(wanted).min(spare) }
    }

    /// Adds frames at the newest end.
    pub(super) fn push(&mut self, frames: impl Iterator<Item = Pfn>) {
        self.frames.extend(frames);
    }

    /// Removes up to `wanted` of the newest frames, in the order in which they were freed.
    pub(super) fn pop(&mut self, wanted: usize) -> FrameList {
        let rest = self.frames.len().saturating_sub(wanted);
        self.frames.drain(rest..).collect()
    }

    /// Adds freed frames. If the list gets too long, `spilled` gets the oldest, until it is half
    /// full or as its rule says: these are not in the CPU's caches any more.
    pub(super) fn free(&mut self, limits: &Limits, frames: &[Pfn], spilled: impl FnOnce(&[Pfn])) {
        self.batch = (self.batch / 2).max(limits.batch);
        self.frames.extend(frames);
        if self.len() > limits.high {
            // Blocks take at most the other half, unless the limit has shrunk.
            let excess = (self.len() - limits.after_spill()).min(self.frames.len());
            spilled(&self.frames[..excess]);
            self.frames.drain(..excess);
        }
    }

    /// Empties the list.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.blocks.clear();
    }
}

/// Where an allocation takes its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// From the CPU's list, even if that has fewer.
    List,
    /// From the list, after frames were added from the buddy allocator.
    Buddy {
        /// How many to add.
        frames: usize,
    },
    /// From nowhere: the zone is at its watermark.
    #[cfg(feature = "history")]
    Denied,
}

/// Where an allocation takes `wanted` frames from a list of fixed size that has `held`, while the
/// zone has `spare` frames above a watermark. Whole batches are added when the list has too few, as
/// single allocations would add them. The kernel compares the zone with the watermark first
/// (get_page_from_freelist), so at the watermark the list does not help.
#[cfg(feature = "history")]
fn fixed_source(
    limits: &Limits,
    held: usize,
    wanted: usize,
    (level, spare): (Level, usize),
) -> Source {
    if spare == 0 && level != Level::Nothing {
        return Source::Denied;
    }
    let missing = wanted.saturating_sub(held).next_multiple_of(limits.batch).min(spare);
    if missing == 0 { Source::List } else { Source::Buddy { frames: missing } }
}

/// The batch of a zone (zone_batchsize).
fn batch_of(frames: u32) -> usize {
    let quarter = ((frames >> 10).min(256) / 4).max(1) as usize;
    ((quarter + quarter / 2 + 1).next_power_of_two() / 2).max(2) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::Mobility;

    #[test]
    fn batches_follow_the_kernel() {
        // Frames of a zone -> batch: 1 for tiny zones, 63 from 1 GiB on.
        for (frames, batch) in [(64, 1), (4096, 1), (65_536, 15), (1 << 18, 63), (1 << 22, 63)] {
            assert_eq!(batch_of(frames), batch, "{frames} frames");
        }
    }

    #[test]
    fn lists_hold_at_most_an_eighth_of_their_zone() {
        // Frames, low, CPUs -> high.
        let table = [
            (64, 5, 8, 1),
            (4096, 160, 2, 80),
            (65_536, 640, 2, 320),
            (65_536, 640, 64, 60),
            (1 << 17, 9083, 112, 124),
            (1 << 25, 66_000, 112, 589),
        ];
        for (frames, low, cpus, high) in table {
            let limits = Limits::new(ListRule::Adaptive, frames, low, cpus);
            assert_eq!(limits.high, high, "{frames} frames, {cpus} CPUs");
            assert!(limits.high == limits.batch || limits.high * cpus * 8 <= frames as usize);
        }
    }

    #[test]
    fn blocks_leave_half_of_the_list_to_single_frames() {
        let limits = Limits { batch: 15, high: 60, rule: ListRule::Adaptive };
        let mut of_cpu = CpuFrames::new(limits);
        let list = BlockList::of(Order(3), Mobility::Unmovable).expect("order 3 has a list");
        assert_eq!(
            (of_cpu.batch_for(&limits, Order(3)), of_cpu.room_for(&limits, Order(3))),
            (1, 3)
        );
        (0..3).for_each(|block| of_cpu.push_block(list, Pfn(8 * block)));
        assert_eq!((of_cpu.len(), of_cpu.room_for(&limits, Order(3))), (24, 0));
        assert_eq!(
            (of_cpu.batch_for(&limits, Order(1)), of_cpu.room_for(&limits, Order(9))),
            (3, 0)
        );
        let singles: Vec<Pfn> = (100..137).map(Pfn).collect();
        let mut spilled = 0;
        of_cpu.free(&limits, &singles, |oldest| spilled = oldest.len());
        assert_eq!((spilled, of_cpu.len()), (31, 30), "half of the list is left to blocks");
    }

    #[test]
    fn allocations_above_low_get_adjacent_frames() {
        let limits = Limits { batch: 15, high: 60, rule: ListRule::Adaptive };
        let run: Vec<Pfn> = (100..116).map(Pfn).collect();
        let odd: Vec<Pfn> = (0..20).map(|i| Pfn(2 * i)).collect();
        let many: Vec<Pfn> = (0..58).map(|i| Pfn(2 * i)).collect();
        let buddy = |frames| Source::Buddy { frames };
        let table = [
            (&run[..], 16, Level::Low, 1000, Source::List),
            (&run[..1], 1, Level::Low, 1000, Source::List),
            (&odd[..], 1, Level::Low, 1000, Source::List),
            (&odd[..], 16, Level::Low, 1000, buddy(16)),
            (&many[..], 4, Level::Low, 1000, buddy(4)),
            (&many[..], 1, Level::Low, 1000, Source::List),
            (&odd[..], 16, Level::Low, 15, Source::List),
            (&odd[..], 16, Level::Min, 1000, Source::List),
            (&[][..], 1, Level::Low, 1000, buddy(15)),
            (&[][..], 4, Level::Min, 1000, buddy(12)),
            (&[][..], 16, Level::Min, 3, buddy(3)),
            (&[][..], 1, Level::Low, 0, Source::List),
        ];
        for (list, wanted, level, spare, expected) in table {
            let mut of_cpu = CpuFrames { frames: list.to_vec(), ..CpuFrames::new(limits) };
            let source = of_cpu.source(&limits, wanted, level, || spare);
            assert_eq!(source, expected, "{wanted} of {}, {spare} above {level:?}", list.len());
        }
        let mut of_cpu = CpuFrames { frames: run, ..CpuFrames::new(limits) };
        of_cpu.source(&limits, 16, Level::Low, || panic!("the list was good enough"));
    }

    #[cfg(feature = "history")]
    #[test]
    fn fixed_lists_move_in_whole_batches() {
        let limits = Limits::new(ListRule::Fixed { batch: 31 }, 0, 0, 1);
        assert_eq!((limits.batch, limits.high), (31, 186));
        let frames = |frames| Source::Buddy { frames };
        let (low, none) = (Level::Low, Level::Nothing);
        // Held, wanted, level, spare.
        let table = [
            (0, 1, low, 1000, frames(31)),
            (31, 31, low, 1000, Source::List),
            (31, 32, low, 1000, frames(31)),
            (0, 32, low, 1000, frames(62)),
            (0, 32, low, 40, frames(40)),
            (31, 1, low, 1, Source::List),
            (31, 1, low, 0, Source::Denied),
            (31, 1, none, 0, Source::List),
            (0, 1, none, 0, Source::List),
        ];
        for (held, wanted, level, spare, expected) in table {
            let source = fixed_source(&limits, held, wanted, (level, spare));
            assert_eq!(source, expected, "{wanted} of {held}, {spare} above {level:?}");
        }
    }

    #[cfg(feature = "history")]
    #[test]
    fn a_full_fixed_list_spills_a_batch_and_never_adapts() {
        let limits = Limits::new(ListRule::Fixed { batch: 31 }, 0, 0, 1);
        let mut of_cpu = CpuFrames::new(limits);
        for _ in 0..10 {
            assert_eq!(
                of_cpu.source(&limits, 1, Level::Low, || 1000),
                Source::Buddy { frames: 31 }
            );
        }
        let freed: Vec<Pfn> = (0..187).map(Pfn).collect();
        let mut spilled = Vec::new();
        of_cpu.free(&limits, &freed[..186], |_| panic!("186 frames fit"));
        of_cpu.free(&limits, &freed[186..], |oldest| spilled = oldest.to_vec());
        assert_eq!((spilled, of_cpu.len()), (freed[..32].to_vec(), 155));
    }
}
