//! The reports of a trial: progress during the run, and figures at the end.

use highwater_mm::stats::Snapshot as Statistics;
use highwater_units::Nanos;
use std::sync::Arc;

/// A callback that all threads call whenever they make progress.
pub type Beat = Arc<dyn Fn() + Send + Sync>;

/// The figures of a successful trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Accesses and other calls to the manager.
    pub operations: u64,
    /// How many of them failed; 0 with [`Failures::None`].
    pub failures: u64,
    /// The longest access to one page.
    pub longest: Nanos,
    /// The manager's counters before everything was freed.
    pub statistics: Statistics,
}
