//! The host's CPUs, as on platform `os`.

use crate::uffd::Uffd;
use highwater_platform::{Cpu, IdleTime, Phase};
use highwater_units::{CpuId, NodeId};

impl Cpu for Uffd {
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
        highwater_os::relax(attempt);
    }

    fn enter(&self, phase: &'static Phase) -> &'static Phase {
        highwater_os::enter(phase)
    }

    fn idle_time(&self, _: NodeId) -> Option<IdleTime> {
        let (idle, stat) = self.idle.as_ref()?;
        idle.of_this_thread(self.topology.count(), |to| stat.read_at(to, 0))
    }
}
