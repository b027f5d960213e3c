//! How values of settings are written and read.

use super::Processes;
use crate::workload::pattern::Pattern;
use crate::workload::streams::{Span, Way};
use highwater_mm::config::history::{CacheSplit, CompactHistory, DeviceLock, ScanBase, SwapIn};
use highwater_mm::config::{CpuPartial, NodePartial, Readahead, ReadaheadBy, SlabOrder};
use highwater_platform::Recency;
use highwater_sim::Policy;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The value by which a key is chosen for its user.
pub(super) const AUTO: &str = "auto";

/// Words for values of a key.
pub(super) type Words<T> = [(&'static str, T)];

pub(super) const PATTERNS: [(&str, Pattern); 3] = [
    ("uniform", Pattern::Uniform),
    ("normal", Pattern::Normal),
    ("sequential", Pattern::Sequential),
];
/// Whether memory is compacted, and as which kernel of the past.
pub(super) const COMPACTS: [(&str, (bool, Option<CompactHistory>)); 7] = [
    ("off", (false, None)),
    ("vanilla", (true, Some(CompactHistory::Vanilla))),
    ("lesslock", (true, Some(CompactHistory::LessLock))),
    ("revert", (true, Some(CompactHistory::Revert))),
    ("cachefail", (true, Some(CompactHistory::CacheFail))),
    ("skipuseless", (true, Some(CompactHistory::SkipUseless))),
    ("fast", (true, None)),
];
pub(super) const SWAP_CACHES: [(&str, CacheSplit); 4] = [
    ("whole", CacheSplit::Whole),
    ("trunk", CacheSplit::Trunk),
    ("leaf", CacheSplit::Leaf),
    ("cluster", CacheSplit::Cluster),
];
pub(super) const SWAP_INS: [(&str, SwapIn); 2] =
    [("direct", SwapIn::Direct), ("cached", SwapIn::Cached)];
pub(super) const DEVICE_LOCKS: [(&str, DeviceLock); 3] =
    [("whole", DeviceLock::Whole), ("slots", DeviceLock::Slots), ("cluster", DeviceLock::Cluster)];
pub(super) const SCAN_BASES: [(&str, ScanBase); 3] =
    [("none", ScanBase::None), ("shared", ScanBase::Shared), ("per_cpu", ScanBase::PerCpu)];
pub(super) const READAHEADS: [(&str, Readahead); 4] = [
    ("off", Readahead::Off),
    ("virtual", Readahead::Virtual),
    ("slot", Readahead::Slot),
    ("auto", Readahead::Auto),
];
pub(super) const READAHEAD_BYS: [(&str, ReadaheadBy); 2] =
    [("threads", ReadaheadBy::Threads), ("reader", ReadaheadBy::Reader)];
pub(super) const SLAB_ORDERS: [(&str, SlabOrder); 2] =
    [("base", SlabOrder::Base), ("large", SlabOrder::Large)];
pub(super) const CPU_PARTIALS: [(&str, CpuPartial); 3] =
    [("1x", CpuPartial::Single), ("2x", CpuPartial::Double), ("4x", CpuPartial::Quadruple)];
pub(super) const NODE_PARTIALS: [(&str, NodePartial); 2] =
    [("fixed", NodePartial::Fixed), ("cpus", NodePartial::Cpus)];
pub(super) const SWITCHES: [(&str, bool); 2] = [("off", false), ("on", true)];
pub(super) const WAYS: [(&str, Way); 2] = [("cached", Way::Cached), ("direct", Way::Direct)];
pub(super) const SPANS: [(&str, Span); 2] = [("filling", Span::Filling), ("full", Span::Full)];
pub(super) const PROCESSES: [(&str, Processes); 2] =
    [("one", Processes::One), ("per_task", Processes::PerTask)];
pub(super) const POLICIES: [(&str, Policy); 4] = [
    ("clock", Policy::SmallestClock),
    ("random", Policy::Random { period: 8 }),
    ("round_robin", Policy::RoundRobin { quantum: 8 }),
    ("pct", Policy::Pct { changes: 20, steps: 1_000_000 }),
];
pub(super) const RECENCIES: [(&str, Recency); 2] =
    [("accessed_bit", Recency::AccessedBit), ("unmapping", Recency::Unmapping)];

pub(super) fn choice<T: Copy>(text: &str, words: &Words<T>) -> Option<T> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
}

pub(super) fn name_in<T: PartialEq>(words: &Words<T>, value: T) -> String {
    let found = words.iter().find(|(_, other)| *other == value);
    found.expect("every value of a setting has a word").0.to_owned()
}

/// A word, or the one that leaves it open.
pub(super) fn auto_word<T: Copy>(text: &str, words: &Words<T>) -> Option<Option<T>> {
    if text == AUTO { Some(None) } else { choice(text, words).map(Some) }
}

pub(super) fn name_or_auto<T: PartialEq>(words: &Words<T>, value: Option<T>) -> String {
    value.map_or(AUTO.into(), |value| name_in(words, value))
}

pub(super) fn number<T: FromStr + PartialOrd>(text: &str, within: RangeInclusive<T>) -> Option<T> {
    text.parse().ok().filter(|number| within.contains(number))
}

pub(super) fn auto_or<T: FromStr + PartialOrd>(
    text: &str,
    within: RangeInclusive<T>,
) -> Option<Option<T>> {
    match text {
        AUTO => Some(None),
        _ => number(text, within).map(Some),
    }
}

pub(super) fn auto<T: ToString>(value: Option<T>) -> String {
    value.map_or(AUTO.into(), |value| value.to_string())
}
