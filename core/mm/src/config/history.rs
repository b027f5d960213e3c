//! Settings that select mechanisms of earlier kernels, to reproduce published experiments.
//!
//! Compiled with the feature `history` only. The code that they select is beside each mechanism of
//! today (`swap/history`, `compact/history`, ...), so that it obeys the same layers and lock order.

mod reclaim;
mod swap;

pub use reclaim::{DIRECT_RECLAIM_MAX, DIRECT_RECLAIM_MIN, DirectNodes, ReclaimHistory};
pub use swap::{CacheSplit, DeviceLock, ScanBase, SwapHistory, SwapIn};

use highwater_units::Prng;

/// Mechanisms of earlier kernels; the default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Swap slots and the swap cache.
    pub swap: SwapHistory,
    /// The kernel whose compaction runs instead of today's; `None`: today's.
    pub compact: Option<CompactHistory>,
    /// Direct reclaim and refaults.
    pub reclaim: ReclaimHistory,
    /// Fixed sizing of slabs.
    pub slab: SlabHistory,
    /// Which thread reads windows of files ahead.
    pub readahead_by: ReadaheadBy,
    /// Frames that move at a time between a CPU's list of free frames and the buddy allocator, as
    /// up to Linux 4.18 (31 in a zone of 512 MiB and more); the list holds six times as many. 1 to
    /// [`PCP_BATCH_MAX`]; `None`: today's lists.
    pub pcp_batch: Option<u16>,
}

/// Upper bound of [`History::pcp_batch`].
pub const PCP_BATCH_MAX: u16 = 512;

/// Compaction of 2012: the patches of "Reduce compaction scanning and lock contention" (Mel
/// Gorman), each on top of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactHistory {
    /// Linux 3.6-rc5: scanners take their locks early and retry contended ones; the free scanner
    /// starts near where it last found free frames, and wraps around.
    Vanilla,
    /// Asynchronous compaction aborts on a contended lock; locks are taken late.
    LessLock,
    /// The free scanner starts at the end of the zone again.
    Revert,
    /// Pageblocks where nothing could be isolated are skipped for some time.
    CacheFail,
    /// Scanners start behind the skipped pageblocks (Linux 3.7).
    SkipUseless,
}

impl CompactHistory {
    /// All kernels, oldest first.
    pub const ALL: [CompactHistory; 5] = [
        CompactHistory::Vanilla,
        CompactHistory::LessLock,
        CompactHistory::Revert,
        CompactHistory::CacheFail,
        CompactHistory::SkipUseless,
    ];
}

/// How slabs were sized by Linux 6.5 and by the patches of 2023 against list_lock contention,
/// whatever the number of CPUs. `None`: by the number of CPUs, as without history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabHistory {
    /// Pages of a slab.
    pub order: Option<SlabOrder>,
    /// Objects in a CPU's partial slabs.
    pub cpu_partial: Option<CpuPartial>,
    /// Empty slabs that a node keeps on its partial list.
    pub node_partial: Option<NodePartial>,
}

impl SlabHistory {
    /// Draws random settings, for tests.
    pub fn draw(random: &mut Prng) -> SlabHistory {
        let mut some = |count: u64| random.percent(75).then(|| random.below(count) as usize);
        let factors = [CpuPartial::Single, CpuPartial::Double, CpuPartial::Quadruple];
        SlabHistory {
            order: some(2).map(|at| [SlabOrder::Base, SlabOrder::Large][at]),
            cpu_partial: some(3).map(|at| factors[at]),
            node_partial: some(2).map(|at| [NodePartial::Fixed, NodePartial::Cpus][at]),
        }
    }
}

/// Pages of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabOrder {
    /// Up to 8, for 4 objects for each doubling of CPUs (Linux 6.5).
    Base,
    /// Up to 16, for twice as many objects.
    Large,
}

/// Objects in a CPU's partial slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuPartial {
    /// 6 to 120, by object size (Linux 6.5).
    Single,
    /// Twice as many.
    Double,
    /// Four times as many.
    Quadruple,
}

/// Empty slabs that a node keeps on its partial list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePartial {
    /// 5 to 10, by object size (Linux 6.5).
    Fixed,
    /// As many as the node has CPUs, rounded down to a power of two.
    Cpus,
}

/// Which thread reads windows of files ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadaheadBy {
    /// Readahead threads of the manager, which use free frames above the min watermark only.
    #[default]
    Threads,
    /// The reader submits the window and continues (the kernel's page_cache_ra_unbounded). Below
    /// the min watermark it reclaims once, and skips the window if no frame became free.
    Reader,
}
