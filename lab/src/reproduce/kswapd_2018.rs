//! "mm: multiple kswapd" (Buddy Lumpkin, 2018): dd tasks that read files from eight NVMe drives, on
//! 104 threads with 756 GiB.
//!
//! - **direct-io**: past memory, which shows the speed of the drives.
//! - **no-reclaim**: through memory, until kswapd begins to scan.
//! - **1-thread**, **4-threads**: from then on, with that many kswapd threads on each node.
//!
//! Shadow entries were off; a node's LRU lists and its free frames had one lock each. The tables
//! are of five minutes; counts of a shorter run are scaled to that length here. A task reads ahead
//! itself, as in the document. A direct reclaim scanned 1/4096 of the 99,090,432 pages of a node in
//! all: half of them on each node, since shrink_zones goes through all nodes. This number, the
//! CPUs' lists of free frames (batches of 31, at most 186), and the reserve between the watermarks
//! decide how long tasks alternate between reading and reclaim: about a second. Here all three are
//! 0.228 times as large, and so is that time. Direct reclaims are converted to the smaller number
//! of full-size ones. Readahead was 128 KiB, the kernel's default. Files: each drive has as many
//! files as tasks, so that no two tasks read the same file (the document has eleven files, and does
//! not say how 90 tasks share them).

use super::experiment::Experiment;
use super::rows::Role;
use super::study::{Changes, Compared, Known, Presentation, Quantity, Study, Tasks, Variant};
use crate::report::simulation::SimulationFigures;
use crate::simulate::Workload;
use highwater_units::Nanos;

/// The seconds that the published tables cover.
const SECONDS: f64 = 300.0;

/// Scale, at which 0.228 of the reserve is left (`Machine::watermarks`).
const SCALE: u64 = 256;

/// Pages of a direct reclaim: published, and here, by `direct_reclaim` of both nodes.
const STALL_PAGES: [f64; 2] = [24_192.0, 5_518.0];

const DIRECT: &str = include_str!("../../reproduce/published/base/kswapd-2018-direct-io.csv");
const NO_RECLAIM: &str = include_str!("../../reproduce/published/base/kswapd-2018-no-reclaim.csv");
const ONE: &str = include_str!("../../reproduce/published/base/kswapd-2018-1-thread.csv");
const FOUR: &str = include_str!("../../reproduce/published/improved/kswapd-2018-4-threads.csv");

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "kswapd-2018",
    about: "several kswapd threads: dd of files on 104 threads and eight NVMe drives",
    studies: &[TABLES],
};

/// These rows with this manager's own settings. They read ahead as far as the document's.
pub(super) const THREADS: Experiment = Experiment {
    name: "kswapd-threads",
    about: "the rows of kswapd-2018 with our defaults: 1, 2, 4 and 8 kswapd threads, and auto",
    studies: &[Study {
        settings: &["file_readahead=32", "small=on", "warm_up=0.2"],
        variants: &[
            Variant {
                name: "kswapd-threads-none",
                role: Role::Base,
                settings: &[&["span=filling", "warm_up=0.02"]],
                ..OURS
            },
            Variant { name: "kswapd-threads-1", settings: &[&["kswapd_threads=1"]], ..OURS },
            Variant { name: "kswapd-threads-2", settings: &[&["kswapd_threads=2"]], ..OURS },
            Variant { name: "kswapd-threads-4", settings: &[&["kswapd_threads=4"]], ..OURS },
            Variant { name: "kswapd-threads-8", settings: &[&["kswapd_threads=8"]], ..OURS },
            Variant { name: "kswapd-threads-auto", settings: &[&["kswapd_threads=auto"]], ..OURS },
        ],
        quantities: OUR_COLUMNS,
        ..TABLES
    }],
};

/// Compared with the throughput without reclaim.
const OURS: Variant = Variant {
    name: "",
    role: Role::Improved,
    settings: &[],
    csv: ONE,
    known: Known::Beyond,
    ..Variant::DEFAULT
};

const TABLES: Study = Study {
    machine: "x7-2l-52c-8nvme",
    workload: Workload::Streams,
    tasks: Tasks::PerRow,
    time: Some(Nanos(250_000_000)),
    scales: &[SCALE],
    settings: &[
        "shadows=off",
        "lru_shards=1",
        "zone_parts=1",
        "file_readahead=32",
        "direct_reclaim=2759",
        "direct_nodes=all",
        "pcp_batch=7",
        "readahead_by=reader",
    ],
    variants: &[
        Variant {
            name: "kswapd-2018-direct-io",
            settings: &[&["way=direct", "warm_up=0.05"]],
            csv: DIRECT,
            ..Variant::DEFAULT
        },
        Variant {
            name: "kswapd-2018-no-reclaim",
            settings: &[&["span=filling", "warm_up=0.02"]],
            csv: NO_RECLAIM,
            ..Variant::DEFAULT
        },
        Variant {
            name: "kswapd-2018-1-thread",
            settings: &[&["kswapd_threads=1", "warm_up=0.1"]],
            csv: ONE,
            ..Variant::DEFAULT
        },
        Variant {
            name: "kswapd-2018-4-threads",
            role: Role::Improved,
            settings: &[&["kswapd_threads=4", "warm_up=0.1"]],
            csv: FOUR,
            ..Variant::DEFAULT
        },
    ],
    presentation: Presentation::Sweep(Changes::Peak),
    quantities: &[
        THROUGHPUT,
        SYSTEM,
        Quantity {
            name: "dd",
            unit: "percent",
            published: &["dd_cpu_percent"],
            take: |run| each_of(run, "task"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "kswapd0",
            unit: "percent",
            published: &["kswapd0_percent"],
            take: |run| each_of(run, "kswapd0:"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "kswapd1",
            unit: "percent",
            published: &["kswapd1_percent"],
            take: |run| each_of(run, "kswapd1:"),
            ..Quantity::DEFAULT
        },
        STALLS,
        Quantity {
            name: "pgscan_kswapd",
            unit: "/5 min",
            published: &["pgscan_kswapd"],
            take: |run| in_five_minutes(run, "pgscan_kswapd"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "pgscan_direct",
            unit: "/5 min",
            published: &["pgscan_direct"],
            take: |run| in_five_minutes(run, "pgscan_direct"),
            ..Quantity::DEFAULT
        },
    ],
};

const THROUGHPUT: Quantity = Quantity {
    name: "throughput",
    unit: "KB/s",
    published: &["throughput_kB_per_s"],
    compared: Compared::Always,
    take: |run| run.figures.tasks.map_or(0.0, |tasks| tasks.sum_kib_per_s),
    plot: Some(""),
};

const SYSTEM: Quantity = Quantity {
    name: "system CPU",
    unit: "percent",
    published: &["sy_percent"],
    take: |run| run.cpus_busy() / run.conditions.cpus as f64 * 100.0,
    plot: Some("-system"),
    ..Quantity::DEFAULT
};

const STALLS: Quantity = Quantity {
    name: "direct reclaims",
    unit: "/5 min",
    published: &["direct_reclaims"],
    take: |run| in_five_minutes(run, "allocstall") * STALL_PAGES[1] / STALL_PAGES[0],
    plot: Some("-stalls"),
    ..Quantity::DEFAULT
};

const SHORT_STALLS: Quantity =
    Quantity { take: |run| in_five_minutes(run, "allocstall"), plot: Some("-stalls"), ..STALLS };

const OUR_COLUMNS: &[Quantity] = &[
    THROUGHPUT,
    SYSTEM,
    RECLAIMING,
    SHORT_STALLS,
    Quantity {
        name: "kswapd threads",
        unit: "1",
        take: |run| run.counters["kswapd_threads_peak"] as f64,
        ..Quantity::DEFAULT
    },
    Quantity {
        name: "small task, p99",
        unit: "us",
        take: |run| run.figures.small.map_or(0.0, |small| small.p99_ns as f64 / 1000.0),
        ..Quantity::DEFAULT
    },
];

/// CPU time in reclaim: kswapd's, and tasks' that reclaim directly.
const RECLAIMING: Quantity = Quantity {
    name: "CPUs that reclaim",
    unit: "1",
    take: |run| {
        let all: u64 = run.phases.iter().map(|phase| phase.busy_ns).sum();
        let reclaim = run.phases.iter().find(|phase| phase.name == "reclaim");
        run.cpus_busy() * reclaim.map_or(0.0, |phase| phase.busy_ns as f64 / all.max(1) as f64)
    },
    ..Quantity::DEFAULT
};

/// The mean share of a CPU that was used by each thread whose name begins with `name`.
fn each_of(run: &SimulationFigures, name: &str) -> f64 {
    let of = || run.roles.iter().filter(|role| role.name.starts_with(name));
    let threads: usize = of().map(|role| role.threads).sum();
    of().map(|role| role.cpus).sum::<f64>() / threads.max(1) as f64 * 100.0
}

/// A counter, extrapolated to five minutes.
fn in_five_minutes(run: &SimulationFigures, counter: &str) -> f64 {
    run.counters[counter] as f64 * SECONDS / run.figures.seconds
}
