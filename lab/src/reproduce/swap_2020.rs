//! "Reduce lock contention on swap cache from swap slots allocation" (2020): a place to scan from
//! for each CPU.
//!
//! 16 pmbench processes, random, 80 % reads, on two sockets with 48 cores and a RAM disk each. The
//! lever acts when no cluster is free, so devices are fragmented first: the set leaves a quarter of
//! their slots free, and random writes during the warm-up leave no cluster without one in use.
//!
//! What a function of that kernel waited for is what its lock's class waits for here. Its locks for
//! cgroup records have no counterpart.

use super::{Change, Experiment, Known, Quantity, Role, Variant};
use crate::report::simulation::SimulationFigures;
use crate::simulate::Workload;
use highwater_units::Nanos;

const NAME: &str = "swap-2020";

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "a scan base for each CPU: pmbench on 48 cores, swapping to 2 RAM disks",
    machine: "xeon-48c-2-ramdisks",
    workload: Workload::Pmbench,
    tasks: 16,
    curve: &[1, 2, 4, 8, 16],
    time: Some(Nanos(250_000_000)),
    scales: &[8, 16, 32],
    settings: &["read_percent=80", "pattern=uniform", "set=3.2", "warm_up=1"],
    variants: &[
        Variant {
            name: NAME,
            role: Role::Base,
            known: Known::Published,
            settings: &[
                "scan_base=shared",
                "swap_cache=trunk",
                "device_lock=cluster",
                "slot_cache=on",
                "writeback_tags=off",
            ],
        },
        Variant {
            name: NAME,
            role: Role::Improved,
            known: Known::Published,
            settings: &[
                "scan_base=per_cpu",
                "swap_cache=trunk",
                "device_lock=cluster",
                "slot_cache=on",
                "writeback_tags=off",
            ],
        },
        Variant {
            name: "swap-2020-defaults",
            role: Role::Improved,
            known: Known::Beyond,
            settings: &[],
        },
    ],
    quantities: &[
        Quantity {
            name: "pmbench throughput",
            unit: "1/s",
            published: &[],
            change: Change::Row("pmbench throughput change"),
            take: |run| run.figures.accesses_per_s,
        },
        Quantity {
            name: "swap-in throughput",
            unit: "GB/s",
            published: &["swap-in throughput"],
            change: Change::Percent,
            take: |run| run.figures.swap_in_gb_per_s,
        },
        Quantity {
            name: "swap-out throughput",
            unit: "GB/s",
            published: &["swap-out throughput"],
            change: Change::Percent,
            take: |run| run.figures.swap_out_gb_per_s,
        },
        Quantity {
            name: "lock share: swap cache",
            unit: "percent",
            published: &["lock share: add_to_swap_cache", "lock share: __remove_mapping"],
            change: Change::None,
            take: |run| lock_share(run, &["swap_cache"]),
        },
        Quantity {
            name: "lock share: slots",
            unit: "percent",
            published: &["lock share: swapcache_free_entries"],
            change: Change::None,
            take: |run| lock_share(run, &["swap_cluster", "swap_device", "swap_info"]),
        },
        Quantity {
            name: "lock share: LRU lists",
            unit: "percent",
            published: &["lock share: shrink_inactive_list", "lock share: shrink_active_list"],
            change: Change::None,
            take: |run| lock_share(run, &["lru"]),
        },
        Quantity {
            name: "lock share: free lists",
            unit: "percent",
            published: &["lock share: free_pcppages_bulk"],
            change: Change::None,
            take: |run| lock_share(run, &["zone"]),
        },
    ],
    published: include_str!("../../reproduce/published/swap-2020.csv"),
};

/// Time waited for locks of these classes, in percent of all CPU time.
fn lock_share(run: &SimulationFigures, classes: &[&str]) -> f64 {
    let rows = run.figures.locks.iter().flatten();
    let waits = rows.filter(|row| classes.contains(&row.class.as_str())).map(|row| row.wait_ns);
    waits.sum::<u64>() as f64 / run.figures.cpu_ns.max(1) as f64 * 100.0
}
