//! The words for values of settings.

use super::kinds::Words;
use super::settings::Processes;
use crate::workload::pattern::Pattern;
use crate::workload::streams::{ReadPath, Span};
use highwater_mm::config::Readahead;
use highwater_mm::config::history::{
    CacheSplit, CompactHistory, CpuPartial, DeviceLock, DirectNodes, NodePartial, ReadaheadBy,
    ScanBase, SlabOrder, SwapIn,
};
use highwater_platform::Recency;
use highwater_sim::Policy;

pub(super) const PATTERNS: Words<Pattern> = Words(&[
    ("uniform", Pattern::Uniform),
    ("normal", Pattern::Normal),
    ("sequential", Pattern::Sequential),
    ("zipf", Pattern::Zipf),
]);
/// Whether memory is compacted, and as which kernel of the past.
pub(super) type Compaction = (bool, Option<CompactHistory>);

pub(super) const COMPACTS: Words<Compaction> = Words(&[
    ("off", (false, None)),
    ("vanilla", (true, Some(CompactHistory::Vanilla))),
    ("lesslock", (true, Some(CompactHistory::LessLock))),
    ("revert", (true, Some(CompactHistory::Revert))),
    ("cachefail", (true, Some(CompactHistory::CacheFail))),
    ("skipuseless", (true, Some(CompactHistory::SkipUseless))),
    ("fast", (true, None)),
]);
pub(super) const SWAP_CACHES: Words<CacheSplit> = Words(&[
    ("whole", CacheSplit::Whole),
    ("trunk", CacheSplit::Trunk),
    ("leaf", CacheSplit::Leaf),
    ("cluster", CacheSplit::Cluster),
]);
pub(super) const SWAP_INS: Words<SwapIn> =
    Words(&[("direct", SwapIn::Direct), ("cached", SwapIn::Cached)]);
pub(super) const DEVICE_LOCKS: Words<DeviceLock> = Words(&[
    ("whole", DeviceLock::Whole),
    ("slots", DeviceLock::Slots),
    ("cluster", DeviceLock::Cluster),
]);
pub(super) const SCAN_BASES: Words<ScanBase> =
    Words(&[("none", ScanBase::None), ("shared", ScanBase::Shared), ("per_cpu", ScanBase::PerCpu)]);
pub(super) const READAHEADS: Words<Readahead> = Words(&[
    ("off", Readahead::Off),
    ("virtual", Readahead::Virtual),
    ("slot", Readahead::Slot),
    ("auto", Readahead::Auto),
]);
pub(super) const DIRECT_NODES: Words<DirectNodes> =
    Words(&[("nearest", DirectNodes::Nearest), ("all", DirectNodes::All)]);
pub(super) const READAHEAD_BYS: Words<ReadaheadBy> =
    Words(&[("threads", ReadaheadBy::Threads), ("reader", ReadaheadBy::Reader)]);
pub(super) const SLAB_ORDERS: Words<SlabOrder> =
    Words(&[("base", SlabOrder::Base), ("large", SlabOrder::Large)]);
pub(super) const CPU_PARTIALS: Words<CpuPartial> =
    Words(&[("1x", CpuPartial::Single), ("2x", CpuPartial::Double), ("4x", CpuPartial::Quadruple)]);
pub(super) const NODE_PARTIALS: Words<NodePartial> =
    Words(&[("fixed", NodePartial::Fixed), ("cpus", NodePartial::Cpus)]);
pub(super) const SWITCHES: Words<bool> = Words(&[("off", false), ("on", true)]);
pub(super) const READ_PATHS: Words<ReadPath> =
    Words(&[("cached", ReadPath::Cached), ("direct", ReadPath::Direct)]);
pub(super) const SPANS: Words<Span> = Words(&[("filling", Span::Filling), ("full", Span::Full)]);
pub(super) const PROCESSES: Words<Processes> =
    Words(&[("one", Processes::One), ("per_task", Processes::PerTask)]);
pub(super) const POLICIES: Words<Policy> = Words(&[
    ("clock", Policy::SmallestClock),
    ("random", Policy::Random { period: 8 }),
    ("round_robin", Policy::RoundRobin { quantum: 8 }),
    ("pct", Policy::Pct { changes: 20, steps: 1_000_000 }),
]);
pub(super) const RECENCIES: Words<Recency> =
    Words(&[("accessed_bit", Recency::AccessedBit), ("unmapping", Recency::Unmapping)]);
