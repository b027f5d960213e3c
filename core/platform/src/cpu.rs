//! Which CPU a thread runs on, and how CPUs and memory nodes lie.

use crate::Phase;
use highwater_units::{CpuId, NodeId};

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

    /// Says what this thread does from now on; returns what it did.
    fn enter(&self, phase: Phase) -> Phase;
}
