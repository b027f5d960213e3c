//! "Optimizing Linux kernel swap subsystem" (slides of 2016): without writeback tags, with a tree
//! for each 64 MiB, a lock for each cluster, and caches of slots.
//!
//! - **Out**: 8 usemem processes write memory once, in sequence, on 72 threads with a RAM disk. It
//!   measures throughput by number of processes, the share of CPU time spent on locks, and each
//!   step alone.
//! - **In**: 8 processes read pages at random from a set twice as large as memory. It measures the
//!   time that a fault adds once half of the device is used: until then all pages that are read
//!   keep their slots, afterwards half of them do. So the measurement begins after memory has been
//!   refilled several times.
//!
//! The amount of memory written is not documented. Of 2.567 GB/s written 1.207 GB/s were swapped
//! out: 47 %, so the set is 1.9 times memory. The published improved values of the first part
//! belong to the first step, those of the second part to all steps.

use super::experiment::Experiment;
use super::figures::lock_share;
use super::rows::Role;
use super::study::{Compared, Known, Latency, Presentation, Quantity, Study, Tasks, Variant};
use crate::simulate::Workload;
use highwater_units::Nanos;

const NAME: &str = "swap-2016";
const MACHINE: &str = "xeon-e5v3-72t-ramdisk";
const CURVE: &[usize] = &[1, 2, 4, 8, 16, 32];

/// A kernel before the steps.
const BASE: &[&str] = &[
    "writeback_tags=on",
    "swap_cache=whole",
    "device_lock=whole",
    "slot_cache=off",
    "cache_batch=off",
    "scan_base=shared",
    "swap_in=cached",
    "lru_shards=1",
    "kswapd_yields=off",
    "zone_parts=1",
];

const TAGS: &[&str] = &["writeback_tags=off"];
const TREES: &[&str] = &["swap_cache=trunk"];
const CLUSTER: &[&str] = &["device_lock=slots"];
const SLOTS: &[&str] = &["slot_cache=on"];

const BEFORE: Variant = Variant {
    name: NAME,
    role: Role::Base,
    known: Known::Published,
    csv: include_str!("../../reproduce/published/base/swap-2016.csv"),
    column: "base",
    settings: &[BASE],
    curve: CURVE,
};

/// A step alone.
const STEP: Variant = Variant {
    role: Role::Improved,
    csv: include_str!("../../reproduce/published/improved/swap-2016.csv"),
    column: "improved",
    known: Known::Beyond,
    curve: &[],
    ..BEFORE
};

const ALL_STEPS: Variant = Variant {
    name: "swap-2016-all",
    settings: &[BASE, TAGS, TREES, CLUSTER, SLOTS],
    curve: CURVE,
    ..STEP
};

const DEFAULTS: Variant =
    Variant { name: "swap-2016-defaults", settings: &[], curve: CURVE, ..STEP };

const SWAP_LOCKS: &[&str] = &["swap_cache", "swap_info", "swap_cluster", "swap_device"];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "split locks: usemem on 72 threads, swapping to a RAM disk",
    studies: &[OUT, IN],
};

const OUT: Study = Study {
    machine: MACHINE,
    workload: Workload::UsememSeq,
    tasks: Tasks::Fixed(8),
    time: None,
    scales: &[32, 64],
    settings: &["set=1.9"],
    variants: &[
        BEFORE,
        Variant {
            name: "swap-2016-tags",
            known: Known::Published,
            settings: &[BASE, TAGS],
            ..STEP
        },
        Variant { name: "swap-2016-trees", settings: &[BASE, TREES], ..STEP },
        Variant { name: "swap-2016-cluster", settings: &[BASE, CLUSTER], ..STEP },
        Variant { name: "swap-2016-slots", settings: &[BASE, SLOTS], ..STEP },
        ALL_STEPS,
        DEFAULTS,
    ],
    presentation: Presentation::Comparison(Latency::Hidden),
    quantities: &[
        Quantity {
            name: "swap-out throughput",
            unit: "GB/s",
            published: &["swap-w-seq 8 processes swap-out without writeback tags"],
            compared: Compared::Always,
            take: |run| run.figures.swap_out_gb_per_s,
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "written by processes",
            unit: "KB/s",
            published: &["swap-w-seq 8 processes throughput without writeback tags"],
            compared: Compared::Always,
            take: |run| run.figures.tasks.map_or(0.0, |tasks| tasks.sum_kib_per_s),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: swap cache",
            unit: "percent",
            published: &[
                "add_to_swap_cache lock share",
                "__remove_mapping lock share",
                "end_page_writeback lock share",
                "bdev_write_page lock share",
            ],
            take: |run| lock_share(run, &["swap_cache"]),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: slots",
            unit: "percent",
            take: |run| lock_share(run, &["swap_info", "swap_cluster", "swap_device"]),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: all",
            unit: "percent",
            published: &["all spin locks"],
            take: |run| run.lock_share().unwrap_or(0.0) * 100.0,
            ..Quantity::DEFAULT
        },
    ],
};

const IN: Study = Study {
    machine: MACHINE,
    workload: Workload::Pmbench,
    tasks: Tasks::Fixed(8),
    time: Some(Nanos(200_000_000)),
    scales: &[64],
    settings: &["set=2", "read_percent=100", "pattern=uniform", "warm_up=1.5"],
    variants: &[BEFORE, Variant { known: Known::Published, ..ALL_STEPS }, DEFAULTS],
    presentation: Presentation::Comparison(Latency::Shown),
    quantities: &[
        Quantity {
            name: "fault latency, median",
            unit: "us",
            published: &["random access 8 threads working set 2x RAM median added fault latency"],
            compared: Compared::Always,
            take: |run| micros(run.figures.fault_p50_ns),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "fault latency, 99 %",
            unit: "us",
            compared: Compared::Always,
            take: |run| micros(run.figures.fault_p99_ns),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: swap",
            unit: "percent",
            take: |run| lock_share(run, SWAP_LOCKS),
            ..Quantity::DEFAULT
        },
    ],
};

fn micros(nanos: Option<u64>) -> f64 {
    nanos.unwrap_or(0) as f64 / 1000.0
}
