//! CPUs: the one that a thread runs on, their nodes, and what the manager reports about a thread.

use crate::Phase;
use highwater_units::{CpuId, Nanos, NodeId};

/// Idle time of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleTime {
    /// The number of CPUs.
    pub cpus: usize,
    /// Their idle time since a fixed point in the past, summed.
    pub time: Nanos,
}

/// The CPUs of a platform.
///
/// Purpose: the manager keeps data per CPU and per node, and reports to the platform what a thread
/// does, for lock statistics and for the simulator's charges.
///
/// Obligations: the numbers of CPUs and nodes are constant. A thread may migrate at any time, so
/// [`Cpu::cpu`] is a hint, and per-CPU data has a lock or atomic words of its own.
///
/// Cost: a fault calls [`Cpu::cpu`] and [`Cpu::enter`] several times, also under locks; both should
/// take a few nanoseconds. [`Cpu::idle_time`] may cost system calls: the manager calls it when it
/// updates pressure, about every 2 s, and when it sizes the pool of kswapd threads.
///
/// Used by `core/mm/src/machine.rs`, `core/mm/src/zone/mod.rs` (frames per CPU),
/// `core/mm/src/phase.rs` and `core/mm/src/reclaim/kswapd_pool.rs`.
pub trait Cpu {
    /// The CPU that the calling thread runs on; below [`Cpu::cpus`]. A hint: the thread may migrate
    /// before the call returns.
    fn cpu(&self) -> CpuId;

    /// The number of CPUs. Constant.
    fn cpus(&self) -> usize;

    /// The memory node of a CPU; it need not have frames. Constant.
    fn node_of(&self, cpu: CpuId) -> NodeId;

    /// Pauses the calling thread for a moment, until another thread may have made progress. The
    /// caller counts its attempts from 0: the first should spin, later ones yield the CPU, further
    /// ones sleep. The caller may hold entries, but no locks.
    fn relax(&self, attempt: u32);

    /// Sets the phase of the calling thread, and returns the previous one. Phases nest: the caller
    /// sets the previous phase again when its own ends.
    fn enter(&self, phase: &'static Phase) -> &'static Phase;

    /// Reports that the calling thread scans the records of `frames` frames without accessing words
    /// of the platform. The simulator charges for them; other platforms do nothing.
    fn scans(&self, _frames: usize) {}

    /// The idle time of the CPUs that threads started for `node` may run on. A CPU whose threads
    /// all wait for devices is idle. On a real system it advances in steps of 10 ms per CPU.
    /// `None`: the platform cannot determine it.
    fn idle_time(&self, node: NodeId) -> Option<IdleTime>;

    /// Records a value that changes over time, on platforms that write a trace.
    fn trace_value(&self, _name: &str, _value: u64) {}
}
