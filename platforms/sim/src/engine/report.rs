//! The statistics of a run.

use highwater_platform::{LockStatistics, Phase};
use highwater_units::Nanos;

/// The CPU time of all threads with one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTime {
    /// The name of the threads.
    pub name: String,
    /// The number of threads.
    pub threads: usize,
    /// Their CPU time, including spinning and context switches.
    pub busy: Nanos,
}

/// The statistics of a run, or of its time so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The virtual time at which the last CPU stopped.
    pub time: Nanos,
    /// CPU time by thread name, in the order of first starts.
    pub roles: Vec<RoleTime>,
    /// CPU time by phase.
    pub phases: Vec<(&'static Phase, Nanos)>,
    /// Lock statistics, exact.
    pub locks: LockStatistics,
    /// Events: locks taken, transfers started, lines moved, threads woken.
    pub events: u64,
    /// How often a CPU was resumed.
    pub steps: u64,
    /// A hash of every event with its time, and of every step: identical runs have equal hashes.
    pub hash: u64,
}
