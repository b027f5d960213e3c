//! "Reduce compaction scanning and lock contention" (Mel Gorman, 2012): stress-highalloc on five
//! kernels, each with one or more patches on top of the previous one, and on this manager.
//!
//! It measures success rates of three passes, and the frames that the scanners scanned and
//! isolated. The document names no machine. With another size of memory the numbers of frames would
//! differ, so the scans are compared as fractions of vanilla's. Its kernels had one LRU list lock
//! and one zone lock per node, and the low and high watermarks were a quarter of min apart: 724
//! frames of 8 GiB, 55/10000 of a 16th. How much memory the kernel has is not published either:
//! `kernel` and `kernel_left` are calibrated on the success rates of vanilla; no other setting is.

use super::experiment::Experiment;
use super::rows::Role;
use super::study::{Compared, Known, Presentation, Quantity, Study, Tasks, Variant};
use crate::report::simulation::SimulationFigures;
use crate::simulate::Workload;

/// Kernels that are built at once: memory / 400 MiB.
const BUILDS: usize = 20;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "compaction-2012",
    about: "large blocks while kernels are built: five kernels' compaction, and ours",
    studies: &[STUDY],
};

const VANILLA: Variant = Variant {
    name: "compaction-2012-vanilla",
    csv: include_str!("../../reproduce/published/base/compaction-2012.csv"),
    column: "vanilla",
    settings: &[&["compact=vanilla"]],
    ..Variant::DEFAULT
};

const LATER: Variant = Variant {
    role: Role::Improved,
    csv: include_str!("../../reproduce/published/improved/compaction-2012.csv"),
    ..VANILLA
};

const STUDY: Study = Study {
    machine: "desktop-2012-kvm",
    workload: Workload::Highalloc,
    tasks: Tasks::Fixed(BUILDS),
    time: None,
    scales: &[16],
    settings: &[
        "lru_shards=1",
        "zone_parts=1",
        "watermark_scale=55",
        "kernel=0.14",
        "kernel_left=1",
    ],
    variants: &[
        VANILLA,
        Variant {
            name: "compaction-2012-lesslock",
            column: "lesslock",
            settings: &[&["compact=lesslock"]],
            ..LATER
        },
        Variant {
            name: "compaction-2012-revert",
            column: "revert",
            settings: &[&["compact=revert"]],
            ..LATER
        },
        Variant {
            name: "compaction-2012-cachefail",
            column: "cachefail",
            settings: &[&["compact=cachefail"]],
            ..LATER
        },
        Variant {
            name: "compaction-2012-skipuseless",
            column: "skipuseless",
            settings: &[&["compact=skipuseless"]],
            ..LATER
        },
        Variant {
            name: "compaction-2012-fast",
            known: Known::Beyond,
            column: "fast",
            settings: &[&["compact=fast"]],
            ..LATER
        },
    ],
    quantities: &[
        Quantity {
            name: "success pass 1 percent",
            published: &["success pass 1 percent"],
            unit: "percent",
            take: |run| success(run, 0),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "success pass 2 percent",
            published: &["success pass 2 percent"],
            unit: "percent",
            take: |run| success(run, 1),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "success while rested percent",
            published: &["success while rested percent"],
            unit: "percent",
            take: |run| success(run, 2),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "free scanned",
            published: &["free scanned"],
            unit: "frames",
            compared: Compared::Plotted,
            take: |run| counted(run, "compact_free_scanned"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "free isolated",
            published: &["free isolated"],
            unit: "frames",
            take: |run| counted(run, "compact_free_isolated"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "migrate scanned",
            published: &["migrate scanned"],
            unit: "frames",
            compared: Compared::Plotted,
            take: |run| counted(run, "compact_migrate_scanned"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "migrate isolated",
            published: &["migrate isolated"],
            unit: "frames",
            take: |run| counted(run, "compact_migrate_isolated"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "free scanned per block",
            unit: "frames",
            take: |run| counted(run, "compact_free_scanned") / blocks(run),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "migrate scanned per block",
            unit: "frames",
            take: |run| counted(run, "compact_migrate_scanned") / blocks(run),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "waited for lru locks",
            unit: "us",
            take: |run| waited(run, "lru"),
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "waited for zone locks",
            unit: "us",
            take: |run| waited(run, "zone"),
            ..Quantity::DEFAULT
        },
    ],
    presentation: Presentation::Matrix {
        plot: &["success pass 1 percent", "success pass 2 percent", "success while rested percent"],
    },
};

/// Percent of the attempts of a pass.
fn success(run: &SimulationFigures, pass: usize) -> f64 {
    let passes = run.figures.highalloc.as_ref().map(|figures| &figures.passes);
    passes.and_then(|passes| passes.get(pass)).map_or(0.0, |pass| pass.percent())
}

/// Blocks that were allocated in all passes; at least 1.
fn blocks(run: &SimulationFigures) -> f64 {
    let passes = run.figures.highalloc.iter().flat_map(|figures| &figures.passes);
    passes.map(|pass| pass.successes).sum::<u64>().max(1) as f64
}

fn counted(run: &SimulationFigures, counter: &str) -> f64 {
    run.counters[counter] as f64
}

/// Time that all threads waited for locks of a class, in microseconds.
fn waited(run: &SimulationFigures, class: &str) -> f64 {
    let rows = run.figures.locks.iter().flatten().filter(|row| row.class == class);
    rows.map(|row| row.wait_ns).sum::<u64>() as f64 / 1e3
}
