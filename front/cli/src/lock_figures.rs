//! The costs of the managers' locks in a run: the part `locks` of the report. The figures are sums
//! over processes, and are sampled: one acquisition in 31 is counted and timed, and stands for 31.

use highwater_session::Parts;
use serde::Serialize;
use std::collections::BTreeMap;

/// The costs of a lock class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LockFigures {
    /// The lock class; ARCHITECTURE.md has their order.
    pub(crate) name: &'static str,
    /// Acquisitions, sampled.
    pub(crate) acquisitions: u64,
    /// Acquisitions that waited.
    pub(crate) contended: u64,
    /// Time waited.
    pub(crate) wait_ns: u64,
    /// Time held, sampled.
    pub(crate) hold_ns: u64,
}

/// Costs by lock class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(BTreeMap<&'static str, LockFigures>);

impl Locks {
    /// Adds the locks of a process.
    pub(crate) fn add(&mut self, parts: &Parts) {
        for (class, record) in parts.by_class().filter(|(_, record)| record.acquisitions > 0) {
            let sum = self.0.entry(class.name()).or_default();
            sum.name = class.name();
            sum.acquisitions += record.acquisitions;
            sum.contended += record.contended;
            sum.wait_ns += record.wait.0;
            sum.hold_ns += record.hold.0;
        }
    }

    /// The classes that were taken, by name.
    pub(crate) fn figures(&self) -> Vec<LockFigures> {
        self.0.values().cloned().collect()
    }
}
