//! What a run tells when it is over.

use highwater_platform::{LockStatistics, Phase};
use highwater_units::Nanos;

/// CPU time of all threads of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTime {
    /// The name they were started with.
    pub name: String,
    /// How many there were.
    pub threads: usize,
    /// Their CPU time, spinning and switching included.
    pub busy: Nanos,
}

/// Accounts of a run, or of its time so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Virtual time at which the last CPU stopped.
    pub time: Nanos,
    /// CPU time by name, in the order of first starts.
    pub roles: Vec<RoleTime>,
    /// CPU time by what threads did.
    pub phases: Vec<(&'static Phase, Nanos)>,
    /// Locks, exactly.
    pub locks: LockStatistics,
    /// Locks taken, transfers begun, lines moved, threads woken.
    pub events: u64,
    /// Times a CPU was resumed.
    pub steps: u64,
    /// Of every event with its time, and every step: equal runs have equal hashes.
    pub hash: u64,
}
