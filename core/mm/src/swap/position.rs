//! Where a CPU takes its next slot, and where a device searches when the CPU's cluster is full.

#[cfg(feature = "history")]
use super::history::scan::ScanPositions;
use highwater_platform::Platform;

/// The cluster that a CPU owns, and the slot there at which the CPU searches next.
#[derive(Clone, Copy)]
pub(super) struct Position {
    pub(super) cluster: u32,
    pub(super) next: u16,
}

/// Where a device searches for a slot when a CPU's cluster is full.
pub(super) enum Fallback<P: Platform> {
    /// Clusters on the lists, then those that other CPUs own.
    Lists,
    /// A free cluster, then slot by slot from this slot on: all writers of a rotational device
    /// stay close together. The lists know free clusters only.
    Scan(P::Atomic<u32>),
    /// A free cluster, then slot by slot from a slot of the CPU's on.
    #[cfg(feature = "history")]
    ScanPerCpu(ScanPositions),
}
