//! The CPUs of the host.

use crate::{Os, phase};
use highwater_platform::{Cpu, Phase};
use highwater_units::{CpuId, NodeId};
use std::time::Duration;

/// How many CPUs there are.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    cpus: usize,
}

impl Topology {
    /// The host's: configured CPUs, so that a number never exceeds the count when one comes online.
    /// One memory node; the arena is not bound to any.
    pub fn of_host() -> Topology {
        // SAFETY: sysconf reads a system constant.
        let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        Topology { cpus: configured.max(1) as usize }
    }

    /// The CPU this thread runs on.
    pub fn current(&self) -> CpuId {
        // SAFETY: sched_getcpu only reads the thread's own CPU number (vDSO or rseq).
        let cpu = unsafe { libc::sched_getcpu() };
        CpuId((cpu.max(0) as usize % self.cpus) as u16)
    }

    /// How many CPUs there are.
    pub fn count(&self) -> usize {
        self.cpus
    }
}

/// Waits a little, longer with every attempt: spin, yield, then sleep up to a millisecond.
pub fn relax(attempt: u32) {
    match attempt {
        0..4 => (0..1 << attempt).for_each(|_| std::hint::spin_loop()),
        4..8 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50 << (attempt - 8).min(4))),
    }
}

impl Cpu for Os {
    fn cpu(&self) -> CpuId {
        self.topology.current()
    }

    fn cpus(&self) -> usize {
        self.topology.count()
    }

    fn node_of(&self, _: CpuId) -> NodeId {
        NodeId(0)
    }

    fn relax(&self, attempt: u32) {
        relax(attempt);
    }

    fn enter(&self, phase: Phase) -> Phase {
        phase::enter(phase)
    }
}
