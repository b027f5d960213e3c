//! This machine as the world of a workload.

use super::world::{CpuUse, RoleTime, World};
use highwater_units::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::thread;
use std::time::Duration;

/// Threads of this process and the clocks of this machine. CPU time is the whole process's:
/// workers, handlers, kswapd, and the kernel on their behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host;

impl World for Host {
    fn on_threads<R: Send>(
        &self,
        threads: usize,
        role: &str,
        body: &(dyn Fn(usize) -> R + Sync),
    ) -> Vec<R> {
        thread::scope(|scope| {
            let start = |index| {
                let thread = thread::Builder::new().name(role.into());
                thread.spawn_scoped(scope, move || body(index)).expect("the system has threads")
            };
            let started: Vec<_> = (0..threads).map(start).collect();
            let joined = started.into_iter().map(|thread| thread.join());
            joined.map(|result| result.expect("a worker does not panic")).collect()
        })
    }

    fn now(&self) -> Nanos {
        nanos(clock_gettime(ClockId::Monotonic))
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Nanoseconds: there is no cheaper counter here.
    #[cfg(not(target_arch = "x86_64"))]
    fn ticks(&self) -> u64 {
        self.now().0
    }

    /// The time stamp counter. Not serialising: off by some dozen cycles, which a fault's length
    /// hides.
    #[cfg(target_arch = "x86_64")]
    fn ticks(&self) -> u64 {
        // SAFETY: every x86_64 has the instruction, and it touches no memory.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    fn cpu_use(&self) -> CpuUse {
        let busy = nanos(clock_gettime(ClockId::ProcessCPUTime));
        let process = RoleTime { name: "process".into(), threads: 1, busy };
        CpuUse { roles: vec![process], phases: Vec::new() }
    }
}

fn nanos(time: Timespec) -> Nanos {
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_run_at_once_and_answer_in_order() {
        let all_there = Barrier::new(4);
        let body = |index| {
            all_there.wait();
            (index * index, thread::current().name().map(str::to_owned))
        };
        let results = Host.on_threads(4, "task", &body);
        let squares: Vec<_> = results.iter().map(|(square, _)| *square).collect();
        assert_eq!(squares, [0, 1, 4, 9]);
        assert!(results.iter().all(|(_, name)| name.as_deref() == Some("task")));
    }
}
