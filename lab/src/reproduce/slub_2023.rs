//! "mm/slub: reduce contention for per-node list_lock for large systems" (Feng Tang, 2023): mmap1
//! of will-it-scale and hackbench on 224 threads, each of three changes, and some together.
//!
//! - **mmap1**: 56, 112 and 224 tasks, the `n`th on the `n`th core: so 56 are one socket's.
//! - **hackbench**: 28 groups. The document does not say how many it had, nor that it used sockets;
//!   pipes need no objects.
//!
//! The change of the order also doubles the objects of CPUs' partial slabs, so that their number
//! stays: alone it is both settings. Of the combinations the document says only that they are
//! rough, and that the second change does not apply upon the first as it is posted. Adding the
//! first to the third gives less there than the first alone, which it cannot if it brings these
//! objects along: so in combinations it is the order alone (`slub-2023-node-order`). What the other
//! reading would give is beside it (`slub-2023-node-order-2x` has both).

use super::tables::{Changes, Column, Table, Tables};
use super::{Experiment, Known, Role, lock_share};
use crate::simulate::Workload;
use highwater_units::Nanos;

const MMAP1: &str = include_str!("../../reproduce/published/slub-2023-mmap1.csv");
const HACKBENCH: &str = include_str!("../../reproduce/published/slub-2023-hackbench.csv");

const MACHINE: &str = "spr-112c-224t";

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "slub-2023",
    about: "slabs of objects on 224 threads: order, partial slabs of CPUs and nodes",
    parts: &[],
    tables: &[MMAP1_TABLES, HACKBENCH_TABLES],
    matrix: None,
    published: "",
};

const BASE: &[&str] =
    &["slab_order=base", "slab_cpu_partial=1x", "slab_node_partial=fixed", "slab_sheaves=off"];

const BEFORE: Table = Table {
    name: "slub-2023",
    role: Role::Base,
    settings: BASE,
    csv: MMAP1,
    known: Known::Published,
    heading: Some("base"),
};

const AFTER: Table = Table { role: Role::Improved, ..BEFORE };

const ORDER: Table = Table {
    name: "slub-2023-order",
    settings: &[
        "slab_order=large",
        "slab_cpu_partial=2x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ],
    heading: Some("order"),
    ..AFTER
};

const CPU_2X: Table = Table {
    name: "slub-2023-cpu-2x",
    settings: &[
        "slab_order=base",
        "slab_cpu_partial=2x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ],
    heading: Some("cpu_partial_2x"),
    ..AFTER
};

const CPU_4X: Table = Table {
    name: "slub-2023-cpu-4x",
    settings: &[
        "slab_order=base",
        "slab_cpu_partial=4x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ],
    heading: Some("cpu_partial_4x"),
    ..AFTER
};

const NODE: Table = Table {
    name: "slub-2023-node",
    settings: &[
        "slab_order=base",
        "slab_cpu_partial=1x",
        "slab_node_partial=cpus",
        "slab_sheaves=off",
    ],
    heading: Some("node_partial"),
    ..AFTER
};

const NODE_ORDER: Table = Table {
    name: "slub-2023-node-order",
    settings: &[
        "slab_order=large",
        "slab_cpu_partial=1x",
        "slab_node_partial=cpus",
        "slab_sheaves=off",
    ],
    heading: Some("node_partial+order"),
    ..AFTER
};

const ALL: Table = Table {
    name: "slub-2023-node-order-2x",
    settings: &[
        "slab_order=large",
        "slab_cpu_partial=2x",
        "slab_node_partial=cpus",
        "slab_sheaves=off",
    ],
    heading: Some("node_partial+order+cpu_partial_2x"),
    ..AFTER
};

/// Sheaves in front of slabs as they were.
const SHEAVES: Table = Table {
    name: "slub-2023-sheaves",
    settings: &[
        "slab_order=base",
        "slab_cpu_partial=1x",
        "slab_node_partial=fixed",
        "slab_sheaves=on",
    ],
    known: Known::Beyond,
    ..AFTER
};

/// This manager's own settings.
const DEFAULTS: Table =
    Table { name: "slub-2023-defaults", settings: &[], known: Known::Beyond, ..AFTER };

const MMAP1_TABLES: Tables = Tables {
    machine: MACHINE,
    workload: Workload::Mmap1,
    time: Nanos(20_000_000),
    scales: &[16, 32],
    settings: &["warm_up=0.03"],
    tables: &[BEFORE, ORDER, CPU_2X, CPU_4X, NODE, NODE_ORDER, ALL, SHEAVES, DEFAULTS],
    changes: Changes::Rows,
    columns: &[
        Column {
            name: "per process",
            unit: "ops/s",
            heading: "",
            take: |run| run.figures.accesses_per_s / run.tasks as f64,
            plot: Some(""),
        },
        LIST_LOCK,
    ],
};

const HACKBENCH_TABLES: Tables = Tables {
    workload: Workload::Hackbench,
    time: Nanos(10_000_000),
    settings: &["warm_up=0.01"],
    tables: &[
        Table { csv: HACKBENCH, ..BEFORE },
        Table { csv: HACKBENCH, ..ORDER },
        Table { csv: HACKBENCH, ..CPU_2X },
        Table { csv: HACKBENCH, ..CPU_4X },
        Table { csv: HACKBENCH, ..SHEAVES },
        Table { csv: HACKBENCH, ..DEFAULTS },
    ],
    columns: &[
        Column {
            name: "hackbench",
            unit: "KB/s",
            heading: "",
            take: |run| run.figures.accesses_per_s / MESSAGES_PER_LOOP * 100.0 / 1024.0,
            plot: Some("-hackbench"),
        },
        LIST_LOCK,
    ],
    ..MMAP1_TABLES
};

/// A loop of a sender is 20 messages of 100 bytes; the benchmark counts 100 bytes for each loop of
/// each task, and half of the tasks are senders.
const MESSAGES_PER_LOOP: f64 = 10.0;

const LIST_LOCK: Column = Column {
    name: "list_lock",
    unit: "percent",
    heading: "list_lock",
    take: |run| lock_share(run, &["list_lock"]),
    plot: None,
};
