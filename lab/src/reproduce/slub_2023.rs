//! "mm/slub: reduce contention for per-node list_lock for large systems" (Feng Tang, 2023): mmap1
//! of will-it-scale and hackbench on 224 threads, with each of three changes alone, and with some
//! of them together.
//!
//! - **mmap1**: 56, 112 and 224 tasks, the `n`th on the `n`th core: so 56 tasks use one socket.
//! - **hackbench**: 28 groups. The document does not say how many it had, nor that it used sockets;
//!   pipes need no objects.
//!
//! The change of the order also doubles the objects of CPUs' partial slabs, so that the number of
//! these slabs stays the same: alone, this change is both settings. Of the combinations the
//! document states only that they are rough, and that the second change as posted does not apply on
//! top of the first. There the first and third change together gain less than the first alone,
//! which is impossible if the first also doubles these objects: so in combinations it is the order
//! alone (`slub-2023-node-order`). The other reading is run as well (`slub-2023-node-order-2x` has
//! both settings).

use super::experiment::Experiment;
use super::figures::lock_share;
use super::rows::Role;
use super::study::{Changes, Compared, Known, Presentation, Quantity, Study, Tasks, Variant};
use crate::simulate::Workload;
use highwater_units::Nanos;

/// Published values of the base, and of what came after.
const MMAP1: [&str; 2] = [
    include_str!("../../reproduce/published/base/slub-2023-mmap1.csv"),
    include_str!("../../reproduce/published/improved/slub-2023-mmap1.csv"),
];
const HACKBENCH: [&str; 2] = [
    include_str!("../../reproduce/published/base/slub-2023-hackbench.csv"),
    include_str!("../../reproduce/published/improved/slub-2023-hackbench.csv"),
];

const MACHINE: &str = "spr-112c-224t";

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "slub-2023",
    about: "slab allocation on 224 threads: slab order, partial slabs per CPU and per node",
    studies: &[MMAP1_TABLES, HACKBENCH_TABLES],
};

const BASE: &[&str] =
    &["slab_order=base", "slab_cpu_partial=1x", "slab_node_partial=fixed", "slab_sheaves=off"];

const BEFORE: Variant = Variant {
    name: "slub-2023",
    settings: &[BASE],
    csv: MMAP1[0],
    column: "base",
    ..Variant::DEFAULT
};

const AFTER: Variant = Variant { role: Role::Improved, csv: MMAP1[1], ..BEFORE };

const ORDER: Variant = Variant {
    name: "slub-2023-order",
    settings: &[&[
        "slab_order=large",
        "slab_cpu_partial=2x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ]],
    column: "order",
    ..AFTER
};

const CPU_2X: Variant = Variant {
    name: "slub-2023-cpu-2x",
    settings: &[&[
        "slab_order=base",
        "slab_cpu_partial=2x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ]],
    column: "cpu_partial_2x",
    ..AFTER
};

const CPU_4X: Variant = Variant {
    name: "slub-2023-cpu-4x",
    settings: &[&[
        "slab_order=base",
        "slab_cpu_partial=4x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ]],
    column: "cpu_partial_4x",
    ..AFTER
};

const NODE: Variant = Variant {
    name: "slub-2023-node",
    settings: &[&[
        "slab_order=base",
        "slab_cpu_partial=1x",
        "slab_node_partial=cpus",
        "slab_sheaves=off",
    ]],
    column: "node_partial",
    ..AFTER
};

const NODE_ORDER: Variant = Variant {
    name: "slub-2023-node-order",
    settings: &[&[
        "slab_order=large",
        "slab_cpu_partial=1x",
        "slab_node_partial=cpus",
        "slab_sheaves=off",
    ]],
    column: "node_partial+order",
    ..AFTER
};

const ALL: Variant = Variant {
    name: "slub-2023-node-order-2x",
    settings: &[&[
        "slab_order=large",
        "slab_cpu_partial=2x",
        "slab_node_partial=cpus",
        "slab_sheaves=off",
    ]],
    column: "node_partial+order+cpu_partial_2x",
    ..AFTER
};

/// Sheaves in front of slabs as they were.
const SHEAVES: Variant = Variant {
    name: "slub-2023-sheaves",
    settings: &[&[
        "slab_order=base",
        "slab_cpu_partial=1x",
        "slab_node_partial=fixed",
        "slab_sheaves=on",
    ]],
    known: Known::Beyond,
    ..AFTER
};

/// This manager's own settings.
const DEFAULTS: Variant =
    Variant { name: "slub-2023-defaults", settings: &[], known: Known::Beyond, ..AFTER };

const MMAP1_TABLES: Study = Study {
    machine: MACHINE,
    workload: Workload::Mmap1,
    tasks: Tasks::PerRow,
    time: Some(Nanos(20_000_000)),
    scales: &[16, 32],
    settings: &["warm_up=0.03"],
    variants: &[BEFORE, ORDER, CPU_2X, CPU_4X, NODE, NODE_ORDER, ALL, SHEAVES, DEFAULTS],
    presentation: Presentation::Sweep(Changes::Each),
    quantities: &[
        Quantity {
            name: "per process",
            unit: "ops/s",
            compared: Compared::Always,
            take: |run| run.figures.accesses_per_s / run.tasks as f64,
            plot: Some(""),
            ..Quantity::DEFAULT
        },
        LIST_LOCK,
    ],
};

const HACKBENCH_TABLES: Study = Study {
    workload: Workload::Hackbench,
    tasks: Tasks::PerRow,
    time: Some(Nanos(10_000_000)),
    settings: &["warm_up=0.01"],
    variants: &[
        Variant { csv: HACKBENCH[0], ..BEFORE },
        Variant { csv: HACKBENCH[1], ..ORDER },
        Variant { csv: HACKBENCH[1], ..CPU_2X },
        Variant { csv: HACKBENCH[1], ..CPU_4X },
        Variant { csv: HACKBENCH[1], ..SHEAVES },
        Variant { csv: HACKBENCH[1], ..DEFAULTS },
    ],
    quantities: &[
        Quantity {
            name: "hackbench",
            unit: "KB/s",
            compared: Compared::Always,
            take: |run| run.figures.accesses_per_s / MESSAGES_PER_LOOP * 100.0 / 1024.0,
            plot: Some("-hackbench"),
            ..Quantity::DEFAULT
        },
        LIST_LOCK,
    ],
    ..MMAP1_TABLES
};

/// One loop of a sender sends 20 messages of 100 bytes; the benchmark counts 100 bytes for each
/// loop of each task, and half of the tasks are senders.
const MESSAGES_PER_LOOP: f64 = 10.0;

const LIST_LOCK: Quantity = Quantity {
    name: "list_lock",
    unit: "percent",
    published: &["list_lock"],
    take: |run| lock_share(run, &["list_lock"]),
    ..Quantity::DEFAULT
};
