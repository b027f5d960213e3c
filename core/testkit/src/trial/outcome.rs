//! What a trial reports: progress meanwhile, and figures at the end.

use highwater_mm::stats::Snapshot as Statistics;
use highwater_units::Nanos;
use std::sync::Arc;

/// Called again and again while there is progress, from all threads.
pub type Beat = Arc<dyn Fn() + Send + Sync>;

/// What a trial that found nothing wrong was like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Accesses and other calls to the manager that were made.
    pub operations: u64,
    /// How many of these failed; 0 where [`Failures::None`] are allowed.
    pub failures: u64,
    /// The longest access to one page.
    pub longest: Nanos,
    /// What the manager counted, before it was emptied.
    pub statistics: Statistics,
}
