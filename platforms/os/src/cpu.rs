//! The platform's CPUs are the host's.

use crate::os::Os;
use crate::{phase, sys, topology};
use highwater_platform::{Cpu, IdleTime, Phase};
use highwater_units::{CpuId, NodeId};
use std::os::fd::AsFd;

impl Cpu for Os {
    fn cpu(&self) -> CpuId {
        self.topology.current()
    }

    fn cpus(&self) -> usize {
        self.topology.count()
    }

    fn node_of(&self, cpu: CpuId) -> NodeId {
        self.topology.node_of(cpu)
    }

    fn relax(&self, attempt: u32) {
        topology::relax(attempt);
    }

    fn enter(&self, phase: &'static Phase) -> &'static Phase {
        phase::enter(phase)
    }

    fn idle_time(&self, _: NodeId) -> Option<IdleTime> {
        let (idle, stat) = self.idle.as_ref()?;
        idle.of_this_thread(self.topology.count(), |to| sys::read_at(stat.as_fd(), to, 0))
    }
}
