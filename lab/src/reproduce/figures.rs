//! Quantities that several experiments take from the figures of a run.

use crate::report::locks::LockRow;
use crate::report::simulation::SimulationFigures;

/// Time waited for locks of these classes, in percent of all CPU time.
pub(super) fn lock_share(run: &SimulationFigures, classes: &[&str]) -> f64 {
    share(run, |row| classes.contains(&row.class.as_str()))
}

/// Time waited in one phase for locks of these classes, in percent of all CPU time.
pub(super) fn lock_share_in(run: &SimulationFigures, phase: &str, classes: &[&str]) -> f64 {
    share(run, |row| row.phase == phase && classes.contains(&row.class.as_str()))
}

fn share(run: &SimulationFigures, counts: impl Fn(&LockRow) -> bool) -> f64 {
    let rows = run.figures.locks.iter().flatten().filter(|row| counts(row));
    rows.map(|row| row.wait_ns).sum::<u64>() as f64 / run.figures.cpu_ns.max(1) as f64 * 100.0
}
