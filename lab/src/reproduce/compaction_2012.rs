//! "Reduce compaction scanning and lock contention" (Mel Gorman, 2012): stress-highalloc on five
//! kernels, each a patch or more ahead of the one before, and on ours.
//!
//! Success rates of three passes; frames that the scanners looked at, and took. The document names
//! no machine: of memory of another size there would be other numbers of frames, so the scans are
//! compared by what part they are of vanilla's. Its kernels had one LRU list lock and one zone lock
//! in a node, and low and high a quarter of min apart: 724 frames of 8 GiB, 55/10000 of a 16th. How
//! much memory the kernel has is not said either: `kernel` and `kernel_left` are calibrated on the
//! success rates of vanilla, and nothing else is.

use super::matrix::{Line, Matrix, Ratio, Variant};
use super::{Experiment, Known};
use crate::report::simulation::SimulationFigures;
use crate::simulate::Workload;

/// Kernels that are built at once: memory / 400 MiB.
const BUILDS: usize = 20;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "compaction-2012",
    about: "large blocks while kernels are built: five ways of compaction, and ours",
    parts: &[],
    tables: &[],
    matrix: Some(MATRIX),
    published: "",
};

const MATRIX: Matrix = Matrix {
    machine: "desktop-2012-kvm",
    workload: Workload::Highalloc,
    tasks: BUILDS,
    scales: &[16],
    settings: &[
        "lru_lanes=1",
        "zone_parts=1",
        "watermark_scale=55",
        "kernel=0.14",
        "kernel_left=1",
    ],
    variants: &[
        Variant { name: "vanilla", known: Known::Published, settings: &["compact=vanilla"] },
        Variant { name: "lesslock", known: Known::Published, settings: &["compact=lesslock"] },
        Variant { name: "revert", known: Known::Published, settings: &["compact=revert"] },
        Variant { name: "cachefail", known: Known::Published, settings: &["compact=cachefail"] },
        Variant {
            name: "skipuseless",
            known: Known::Published,
            settings: &["compact=skipuseless"],
        },
        Variant { name: "fast", known: Known::Beyond, settings: &["compact=fast"] },
    ],
    lines: &[
        Line {
            name: "success pass 1 percent",
            unit: "percent",
            ratio: Ratio::Hidden,
            take: |run| success(run, 0),
        },
        Line {
            name: "success pass 2 percent",
            unit: "percent",
            ratio: Ratio::Hidden,
            take: |run| success(run, 1),
        },
        Line {
            name: "success while rested percent",
            unit: "percent",
            ratio: Ratio::Hidden,
            take: |run| success(run, 2),
        },
        Line {
            name: "free scanned",
            unit: "frames",
            ratio: Ratio::Told,
            take: |run| counted(run, "compact_free_scanned"),
        },
        Line {
            name: "free isolated",
            unit: "frames",
            ratio: Ratio::Hidden,
            take: |run| counted(run, "compact_free_isolated"),
        },
        Line {
            name: "migrate scanned",
            unit: "frames",
            ratio: Ratio::Told,
            take: |run| counted(run, "compact_migrate_scanned"),
        },
        Line {
            name: "migrate isolated",
            unit: "frames",
            ratio: Ratio::Hidden,
            take: |run| counted(run, "compact_migrate_isolated"),
        },
        Line {
            name: "free scanned per block",
            unit: "frames",
            ratio: Ratio::Hidden,
            take: |run| counted(run, "compact_free_scanned") / blocks(run),
        },
        Line {
            name: "migrate scanned per block",
            unit: "frames",
            ratio: Ratio::Hidden,
            take: |run| counted(run, "compact_migrate_scanned") / blocks(run),
        },
        Line {
            name: "waited for lru locks",
            unit: "us",
            ratio: Ratio::Hidden,
            take: |run| waited(run, "lru"),
        },
        Line {
            name: "waited for zone locks",
            unit: "us",
            ratio: Ratio::Hidden,
            take: |run| waited(run, "zone"),
        },
    ],
    plot: &["success pass 1 percent", "success pass 2 percent", "success while rested percent"],
    csv: include_str!("../../reproduce/published/compaction-2012.csv"),
};

/// Percent of the attempts of a pass.
fn success(run: &SimulationFigures, pass: usize) -> f64 {
    let passes = run.figures.highalloc.as_ref().map(|figures| &figures.passes);
    passes.and_then(|passes| passes.get(pass)).map_or(0.0, |pass| pass.percent())
}

/// Blocks that there were, in all passes; 1 for none.
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
