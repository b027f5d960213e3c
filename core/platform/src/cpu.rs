//! Which CPU a thread runs on, and how CPUs and memory nodes lie.

use crate::Phase;
use highwater_units::{CpuId, Nanos, NodeId};

/// Idle time of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleTime {
    /// How many CPUs.
    pub cpus: usize,
    /// For how long they have idled so far, summed.
    pub time: Nanos,
}

/// The processors of a platform.
pub trait Cpu {
    /// The CPU this thread runs on now. A hint: the thread may move before it returns, so per-CPU
    /// data has a lock of its own.
    fn cpu(&self) -> CpuId;

    /// Number of CPUs; every [`Cpu::cpu`] is below it. Constant.
    fn cpus(&self) -> usize;

    /// The memory node of a CPU; frames need not lie on it. Constant.
    fn node_of(&self, cpu: CpuId) -> NodeId;

    /// A short wait for another thread that is about to finish; `attempt` counts from 0 and a
    /// platform may yield the CPU or sleep as it grows.
    fn relax(&self, attempt: u32);

    /// Begins a phase of this thread; returns the phase before it.
    fn enter(&self, phase: &'static Phase) -> &'static Phase;

    /// This thread scans the records of so many frames, without words of the platform. The
    /// simulator charges for it; elsewhere it costs nothing.
    fn scans(&self, _frames: usize) {}

    /// Of the CPUs that threads started for `node` may run on; waiting for devices is idling. On a
    /// real system in steps of 10 ms, each CPU for itself. `None` where it cannot be known.
    fn idle_time(&self, node: NodeId) -> Option<IdleTime>;

    /// Notes a number that changes over time, where the platform keeps a trace.
    fn trace_value(&self, _name: &str, _value: u64) {}
}
