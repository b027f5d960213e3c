//! "ScaleSwap: A Scalable OS Swap System for All-Flash Swap Arrays" (2026): each core has its own
//! LRU lists, and its own instance of every other part of swap.
//!
//! 128 processes of stress on as many cores pass over 2200 MiB each, page by page; passes that
//! write all pages alternate with passes that read all pages. So each page is swapped in once per
//! pass, and swapped out dirty in every other pass. Here each access writes with a chance of one
//! half.
//!
//! The base is Linux 6.6, which has the changes of 2016 and 2020. Its 128 swap files on a striped
//! array are eight devices here.
//!
//! The published mean latency of the base cannot be the mean of all accesses: 128 processes that
//! each wait 769 us for a page would read 0.7 GB/s. Their scripts average over seconds and
//! processes.

use super::experiment::Experiment;
use super::figures::lock_share;
use super::rows::Role;
use super::study::{Compared, Known, Latency, Presentation, Quantity, Study, Tasks, Variant};
use crate::report::simulation::SimulationFigures;
use crate::simulate::Workload;
use highwater_units::Nanos;

const NAME: &str = "scaleswap-2026";

/// Linux 6.6.
const BASE: &[&str] = &[
    "writeback_tags=off",
    "swap_cache=trunk",
    "device_lock=slots",
    "slot_cache=on",
    "scan_base=per_cpu",
    "swap_in=cached",
    "lru_shards=1",
    "kswapd_yields=off",
    "zone_parts=1",
];
/// LRU lists for each core.
const CORE_LRU: &[&str] = &["lru_shards=64"];
/// Slots and swap cache for each core.
const CORE_SWAP: &[&str] =
    &["device_lock=cluster", "slot_cache=off", "scan_base=none", "swap_cache=cluster"];

const BEFORE: Variant = Variant {
    name: NAME,
    role: Role::Base,
    known: Known::Published,
    csv: include_str!("../../reproduce/published/base/scaleswap-2026.csv"),
    column: "base",
    settings: &[BASE],
    curve: &[1, 8, 32, 64, 128],
};
const LRU: Variant = Variant {
    name: "scaleswap-2026-lru",
    role: Role::Improved,
    csv: include_str!("../../reproduce/published/improved/scaleswap-2026.csv"),
    column: "core_lru",
    settings: &[BASE, CORE_LRU],
    curve: &[],
    ..BEFORE
};
const ALL: Variant = Variant {
    name: "scaleswap-2026-all",
    column: "scaleswap",
    settings: &[BASE, CORE_LRU, CORE_SWAP],
    ..LRU
};
const DEFAULTS: Variant = Variant {
    name: "scaleswap-2026-defaults",
    known: Known::Beyond,
    settings: &[],
    curve: BEFORE.curve,
    ..LRU
};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "per-core LRU lists and swap: stress on 128 cores, swapping to eight NVMe drives",
    studies: &[STUDY],
};

const STUDY: Study = Study {
    machine: "server-128c-8nvme",
    workload: Workload::Pmbench,
    tasks: Tasks::Fixed(128),
    time: Some(Nanos(200_000_000)),
    scales: &[128, 256],
    settings: &[
        "read_percent=50",
        "pattern=sequential",
        "processes=per_task",
        "set=2.15",
        "warm_up=1",
    ],
    variants: &[BEFORE, LRU, ALL, DEFAULTS],
    presentation: Presentation::Comparison(Latency::Hidden),
    quantities: &[
        Quantity {
            name: "swap throughput",
            unit: "GB/s",
            published: &["swap throughput"],
            compared: Compared::Always,
            take: |run| run.figures.swap_in_gb_per_s + run.figures.swap_out_gb_per_s,
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "mean access latency",
            unit: "us",
            published: &["mean access latency"],
            compared: Compared::Always,
            take: mean_access_micros,
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: LRU lists",
            unit: "percent",
            published: &["lock share: lru_lock"],
            take: |run| lock_share(run, &["lru"]),
            ..Quantity::DEFAULT
        },
    ],
};

fn mean_access_micros(run: &SimulationFigures) -> f64 {
    run.tasks as f64 / run.figures.accesses_per_s * 1e6
}
