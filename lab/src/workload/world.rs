//! Where a workload runs: its threads, its clocks, and how its CPU time was spent.
//!
//! ```text
//! World -- Host     real threads and clocks, for every service on this machine
//!       \- subject::simulated: threads of a virtual machine, virtual time
//! ```
//! Virtual threads share one thread of the host: a workload waits only in [`World::on_threads`],
//! and across an access it holds nothing that another of its threads needs.

use highwater_platform::Phase;
use highwater_units::{Nanos, NodeId};
use std::time::Duration;

/// What the threads are called that a workload measures.
pub const TASK: &str = "task";

/// Threads and clocks. Times of one world are on one clock.
pub trait World: Sync {
    /// Runs `body` on `threads` threads, with the index of each, until all have returned; results
    /// are in the order of indices. `role` (at most 15 bytes) is the name of the threads.
    fn on_threads<R: Send>(
        &self,
        threads: usize,
        role: &str,
        body: &(dyn Fn(usize) -> R + Sync),
    ) -> Vec<R>;

    /// Like [`World::on_threads`], with each thread on the CPUs of a memory node, if one is given
    /// and the world can bind threads.
    fn on_threads_of<R: Send>(
        &self,
        threads: usize,
        role: &str,
        _node: &dyn Fn(usize) -> Option<NodeId>,
        body: &(dyn Fn(usize) -> R + Sync),
    ) -> Vec<R> {
        self.on_threads(threads, role, body)
    }

    /// Monotonic time.
    fn now(&self) -> Nanos;

    /// The calling thread computes for a time.
    fn work(&self, time: Nanos) {
        let began = self.now();
        while self.now().since(began) < time {
            std::hint::spin_loop();
        }
    }

    /// The calling thread does nothing for a time.
    fn sleep(&self, time: Duration);

    /// A counter that rises evenly with time, and costs less to read than most accesses take. Its
    /// unit follows from [`World::now`].
    fn ticks(&self) -> u64;

    /// CPU time so far.
    fn cpu_use(&self) -> CpuUse;

    /// Counts of the kernel so far; none on a simulated machine, which has no kernel.
    fn kernel_counts(&self) -> KernelCounts {
        KernelCounts::default()
    }
}

/// Events in the kernel of this machine, from the start or between two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Interrupts that make a CPU flush its TLB: on all CPUs, whatever program caused them.
    pub tlb_interrupts: Option<u64>,
    /// Context switches of all threads of this process, also of those that have ended.
    pub context_switches: Option<u64>,
    /// CPU time of all programs, and what a hypervisor took.
    pub busy: Option<Nanos>,
}

impl KernelCounts {
    /// Events since `earlier`, a point of the same world.
    pub fn since(&self, earlier: &KernelCounts) -> KernelCounts {
        let gained = |now: Option<u64>, then| Some(now?.saturating_sub(then?));
        KernelCounts {
            tlb_interrupts: gained(self.tlb_interrupts, earlier.tlb_interrupts),
            context_switches: gained(self.context_switches, earlier.context_switches),
            busy: self.busy.zip(earlier.busy).map(|(now, then)| now.since(then)),
        }
    }
}

/// Where CPU time went, from the start or between two points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// All CPU time, by the names of threads.
    pub roles: Vec<RoleTime>,
    /// By what threads did, where that is known: all of it, or nothing.
    pub phases: Vec<(&'static Phase, Nanos)>,
}

/// CPU time of threads of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTime {
    /// Their name.
    pub name: String,
    /// How many there have been.
    pub threads: usize,
    /// What they used together.
    pub busy: Nanos,
}

impl CpuUse {
    /// All CPU time.
    pub fn total(&self) -> Nanos {
        Nanos(self.roles.iter().map(|role| role.busy.0).sum())
    }

    /// CPU time since `earlier`, a point of the same world, without roles that used none.
    pub fn since(&self, earlier: &CpuUse) -> CpuUse {
        let role_before = |name: &str| earlier.roles.iter().find(|role| role.name == name);
        let roles = self.roles.iter().map(|role| {
            let before = role_before(&role.name).map_or(Nanos(0), |role| role.busy);
            RoleTime { busy: role.busy.since(before), ..role.clone() }
        });
        let phase_before = |phase| earlier.phases.iter().find(|(other, _)| *other == phase);
        let phases = self.phases.iter().map(|(phase, busy)| {
            let before = phase_before(*phase).map_or(Nanos(0), |(_, busy)| *busy);
            (*phase, busy.since(before))
        });
        CpuUse {
            roles: roles.filter(|role| role.busy.0 > 0).collect(),
            phases: phases.filter(|(_, busy)| busy.0 > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::phase;

    fn role(name: &str, busy: u64) -> RoleTime {
        RoleTime { name: name.into(), threads: 2, busy: Nanos(busy) }
    }

    #[test]
    fn time_between_two_points_is_whose_it_was() {
        let roles = vec![role("fill", 70), role("kswapd0:0", 10)];
        let early = CpuUse { roles, phases: vec![(phase::PROGRAM, Nanos(80))] };
        let late = CpuUse {
            roles: vec![role("fill", 70), role("kswapd0:0", 15), role("task", 30)],
            phases: vec![(phase::PROGRAM, Nanos(80)), (phase::FAULT, Nanos(35))],
        };
        let gained = late.since(&early);
        assert_eq!(gained.roles, [role("kswapd0:0", 5), role("task", 30)]);
        assert_eq!(gained.phases, [(phase::FAULT, Nanos(35))]);
        assert_eq!(gained.total(), Nanos(35));
    }
}
