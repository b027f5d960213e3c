//! A workload by number of tasks: a table, and curves for a plot.

use super::plot::{Plot, Series};
use super::simulation::{SimulationFigures, Tasks};
use highwater_command::Unit;
use std::fmt::Write;

/// The columns: heading, and the cell of a run.
type Column = (&'static str, fn(&SimulationFigures) -> String);

const COLUMNS: &[Column] = &[
    ("accesses/s", |run| Unit::Rate.show(Some(run.figures.accesses_per_s))),
    ("faults/s", |run| Unit::Rate.show(Some(run.figures.major_faults_per_s))),
    ("swap in", |run| Unit::Speed.show(Some(run.figures.swap_in_gb_per_s))),
    ("swap out", |run| Unit::Speed.show(Some(run.figures.swap_out_gb_per_s))),
    ("fault p99", |run| Unit::Time.show(run.figures.fault_p99_ns.map(|ns| ns as f64))),
    ("CPUs busy", |run| format!("{:.2}", run.cpus_busy())),
    ("lock wait", |run| Unit::Share.show(run.lock_share())),
];

/// The table, under what all runs have in common: their heading without the tasks.
pub fn text(runs: &[SimulationFigures]) -> String {
    let heading = runs.first().map_or(String::new(), |run| run.heading(Tasks::Several));
    let costs = runs.iter().map(|run| run.cost.real_seconds);
    format!("{heading}\n\n{}\n\nsimulated in {:.1} s", table(runs), costs.sum::<f64>())
}

/// A row for each run; "gain" is accesses/s over those of the first run. Lock wait is the time
/// waited for locks by all CPU time.
pub fn table(runs: &[SimulationFigures]) -> String {
    let mut text = format!("{:>5}", "tasks");
    COLUMNS.iter().for_each(|(heading, _)| {
        let _ = write!(text, "{heading:>12}");
    });
    let _ = write!(text, "{:>8}", "gain");
    let first = runs.first().map_or(0.0, |run| run.figures.accesses_per_s);
    for run in runs {
        let _ = write!(text, "\n{:>5}", run.tasks);
        COLUMNS.iter().for_each(|(_, cell)| {
            let _ = write!(text, "{:>12}", cell(run));
        });
        let _ = write!(text, "{:>8}", format!("{:.2}x", run.figures.accesses_per_s / first));
    }
    text
}

/// Throughput against tasks: accesses, and the first run's accesses for each of its tasks.
pub fn plot(runs: &[SimulationFigures]) -> Plot {
    let measured = runs.iter().map(|run| (run.tasks as f64, run.figures.accesses_per_s));
    let each = runs.first().map_or(0.0, |run| run.figures.accesses_per_s / run.tasks as f64);
    let linear = runs.iter().map(|run| (run.tasks as f64, each * run.tasks as f64));
    let title =
        runs.first().map_or(String::new(), |run| format!("{} on {}", run.workload, run.machine));
    Plot {
        title,
        x_label: "tasks".into(),
        y_label: "accesses per second".into(),
        series: vec![
            Series { name: "measured".into(), points: measured.collect() },
            Series { name: "linear".into(), points: linear.collect() },
        ],
    }
}
