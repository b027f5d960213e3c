//! When a simulation is considered stuck.

use highwater_units::Nanos;
use std::fmt;

/// Limits on a run without progress: exceeding one ends the simulation with an error.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest virtual time without progress.
    pub idle_time: Nanos,
    /// The most suspensions without progress.
    pub idle_steps: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { idle_time: Nanos(60_000_000_000), idle_steps: 50_000_000 }
    }
}

/// Why a simulation ended before its main task did: a message that lists what each thread waits
/// for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck(
    /// What every thread waits for.
    pub String,
);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
