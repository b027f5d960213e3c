//! "Reduce lock contention on swap cache from swap slots allocation" (2020): each CPU has its own
//! position from which it scans.
//!
//! 16 pmbench processes, random, 80 % reads, on two sockets with 48 cores and a RAM disk each. The
//! change matters only when no cluster is free, so devices are fragmented first: the set leaves a
//! quarter of their slots free, and after random writes during the warm-up every cluster has a slot
//! in use.
//!
//! The wait of a function of that kernel is compared with the wait for its lock's class here. That
//! kernel's locks for cgroup records have no counterpart.

use super::experiment::Experiment;
use super::figures::{lock_share, lock_share_in};
use super::rows::Role;
use super::study::{Compared, Known, Latency, Presentation, Quantity, Study, Tasks, Variant};
use crate::simulate::Workload;
use highwater_units::Nanos;

const NAME: &str = "swap-2020";

/// A kernel with the steps of 2016.
const BASE: &[&str] = &[
    "scan_base=shared",
    "swap_cache=trunk",
    "device_lock=slots",
    "slot_cache=on",
    "writeback_tags=off",
    "cache_batch=off",
    "lru_shards=1",
    "kswapd_yields=off",
    "zone_parts=1",
];
/// Pages that come from a device that is no memory go through the swap cache.
const CACHED: &[&str] = &["swap_in=cached"];
const OWN: &[&str] = &["scan_base=per_cpu"];

const BEFORE: Variant = Variant {
    name: NAME,
    role: Role::Base,
    known: Known::Published,
    csv: include_str!("../../reproduce/published/base/swap-2020.csv"),
    column: "base",
    settings: &[BASE],
    curve: &[1, 2, 4, 8, 16],
};
const AFTER: Variant = Variant {
    role: Role::Improved,
    csv: include_str!("../../reproduce/published/improved/swap-2020.csv"),
    column: "improved",
    settings: &[BASE, OWN],
    ..BEFORE
};
const DEFAULTS: Variant =
    Variant { name: "swap-2020-defaults", known: Known::Beyond, settings: &[], ..AFTER };

const SLOTS: &[&str] = &["swap_cluster", "swap_device", "swap_info"];

const SETTINGS: &[&str] = &["read_percent=80", "pattern=uniform", "set=3.2", "warm_up=1"];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "per-CPU scan base: pmbench on 48 cores, swapping to 2 RAM disks, or SSDs",
    studies: &[RAM, OPTANE, P3600],
};

const SCORE: Quantity = Quantity {
    name: "pmbench throughput",
    unit: "1/s",
    compared: Compared::PublishedPercent("pmbench throughput change"),
    take: |run| run.figures.accesses_per_s,
    ..Quantity::DEFAULT
};

const IN: Quantity = Quantity {
    name: "swap-in throughput",
    unit: "GB/s",
    published: &["swap-in throughput"],
    compared: Compared::Always,
    take: |run| run.figures.swap_in_gb_per_s,
    ..Quantity::DEFAULT
};

const OUT: Quantity = Quantity {
    name: "swap-out throughput",
    unit: "GB/s",
    published: &["swap-out throughput"],
    compared: Compared::Always,
    take: |run| run.figures.swap_out_gb_per_s,
    ..Quantity::DEFAULT
};

const CACHE_LOCKS: Quantity = Quantity {
    name: "lock share: swap cache",
    unit: "percent",
    published: &["lock share: add_to_swap_cache", "lock share: __remove_mapping"],
    take: |run| lock_share(run, &["swap_cache"]),
    ..Quantity::DEFAULT
};

const RAM: Study = Study {
    machine: "xeon-48c-2-ramdisks",
    workload: Workload::Pmbench,
    tasks: Tasks::Fixed(16),
    time: Some(Nanos(250_000_000)),
    scales: &[8, 16, 32],
    settings: SETTINGS,
    variants: &[BEFORE, AFTER, DEFAULTS],
    presentation: Presentation::Comparison(Latency::Hidden),
    quantities: &[
        SCORE,
        IN,
        OUT,
        CACHE_LOCKS,
        Quantity {
            name: "lock share: slots, freed",
            unit: "percent",
            published: &["lock share: swapcache_free_entries"],
            take: |run| lock_share_in(run, "swap_in", SLOTS),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: slots, taken",
            unit: "percent",
            take: |run| lock_share_in(run, "swap_out", SLOTS),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: LRU lists",
            unit: "percent",
            published: &["lock share: shrink_inactive_list", "lock share: shrink_active_list"],
            take: |run| lock_share(run, &["lru"]),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "lock share: free lists",
            unit: "percent",
            published: &["lock share: free_pcppages_bulk"],
            take: |run| lock_share(run, &["zone"]),
            ..Quantity::DEFAULT
        },
    ],
};

/// SSDs pass fewer pages a second than RAM disks: it takes longer until no cluster is free.
const OPTANE: Study = Study {
    machine: "xeon-48c-2-optane",
    time: Some(Nanos(500_000_000)),
    scales: &[32],
    settings: &["read_percent=80", "pattern=uniform", "set=3.2", "warm_up=2"],
    variants: &[
        Variant { name: "swap-2020-optane", settings: &[BASE, CACHED], ..BEFORE },
        Variant { name: "swap-2020-optane", settings: &[BASE, CACHED, OWN], ..AFTER },
    ],
    quantities: &[
        Quantity {
            compared: Compared::PublishedPercent("pmbench change on 2 Intel Optane"),
            ..SCORE
        },
        Quantity { published: &["swap-in throughput on 2 Intel Optane"], ..IN },
        Quantity { published: &["swap-out throughput on 2 Intel Optane"], ..OUT },
        Quantity { published: &["swap cache lock cycles on 2 Intel Optane"], ..CACHE_LOCKS },
    ],
    ..RAM
};

const P3600: Study = Study {
    machine: "xeon-48c-2-p3600",
    time: Some(Nanos(1_000_000_000)),
    settings: &["read_percent=80", "pattern=uniform", "set=3.2", "warm_up=3"],
    variants: &[
        Variant { name: "swap-2020-p3600", settings: &[BASE, CACHED], ..BEFORE },
        Variant { name: "swap-2020-p3600", settings: &[BASE, CACHED, OWN], ..AFTER },
    ],
    quantities: &[
        Quantity {
            compared: Compared::PublishedPercent("pmbench change on 2 Intel P3600 NVMe"),
            ..SCORE
        },
        Quantity { published: &[], ..IN },
        Quantity { published: &[], ..OUT },
        Quantity { published: &[], ..CACHE_LOCKS },
    ],
    ..OPTANE
};
