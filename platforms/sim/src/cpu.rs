//! The virtual CPUs.

use crate::Sim;
use highwater_platform::{Cpu, IdleTime, Phase, PhaseKind};
use highwater_units::{CpuId, NodeId};

/// Length of one pause of a spinning thread, ns.
const PAUSE: u64 = 20;
/// The shortest sleep of a thread that has waited for long, as on the real platforms.
const NAP: u64 = 50_000;

impl Cpu for Sim {
    fn cpu(&self) -> CpuId {
        self.engine().running_cpu()
    }

    fn cpus(&self) -> usize {
        self.engine().machine.cpus()
    }

    fn node_of(&self, cpu: CpuId) -> NodeId {
        self.engine().machine.node_of(cpu)
    }

    /// Spins, then yields, then sleeps, like platform os.
    fn relax(&self, attempt: u32) {
        let engine = self.engine();
        self.flush();
        match attempt {
            0..4 => {
                engine.spin_until(engine.now().0 + (PAUSE << attempt));
                engine.yield_cpu();
            }
            4..8 => {
                engine.charge(engine.machine.costs.context_switch / 4);
                engine.yield_cpu();
            }
            _ => engine.sleep(Some(NAP << (attempt - 8).min(4)), "a moment"),
        }
    }

    fn enter(&self, phase: &'static Phase) -> &'static Phase {
        let engine = self.engine();
        if phase.kind() != PhaseKind::Eviction {
            self.flush();
        }
        let before = engine.enter(phase);
        if (before.kind(), phase.kind()) == (PhaseKind::Program, PhaseKind::Fault) {
            engine.charge(engine.machine.costs.fault);
        }
        before
    }

    fn scans(&self, frames: usize) {
        let engine = self.engine();
        engine.charge(engine.machine.costs.scan * frames as u64);
    }

    fn idle_time(&self, node: NodeId) -> Option<IdleTime> {
        Some(self.engine().idle_time(node))
    }

    fn trace_value(&self, name: &str, value: u64) {
        self.engine().trace_value(name, value);
    }
}
