//! The platform's CPUs are the host's.

use crate::os::Os;
use crate::{phase, topology};
use highwater_platform::{Cpu, IdleTime, Phase};
use highwater_units::{CpuId, NodeId};

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
        self.idle.as_ref()?.of_this_thread(self.topology.count())
    }
}
