//! This machine as the world of a workload.

use super::world::{CpuUse, KernelCounts, RoleTime, World};
use highwater_units::Nanos;
use procfs::{CpuTime, CurrentSI, KernelStats};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fs;
use std::mem::MaybeUninit;
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

    /// The time stamp counter. It is not serialising, and so inexact by some dozen cycles, which do
    /// not matter beside the length of a fault.
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

    fn kernel_counts(&self) -> KernelCounts {
        let interrupts = fs::read_to_string("/proc/interrupts").ok();
        KernelCounts {
            tlb_interrupts: interrupts.and_then(|text| tlb_interrupts(&text)),
            context_switches: context_switches(),
            busy: KernelStats::current().ok().map(|stats| busy(&stats.total)),
        }
    }
}

/// CPU time of which no CPU was idle or waiting for a device.
fn busy(cpus: &CpuTime) -> Nanos {
    let interrupts = [cpus.irq_duration(), cpus.softirq_duration(), cpus.steal_duration()];
    let programs = [cpus.user_duration(), cpus.nice_duration(), cpus.system_duration()];
    let all = programs.into_iter().chain(interrupts.into_iter().flatten());
    Nanos(all.sum::<Duration>().as_nanos() as u64)
}

/// The sum over all CPUs of row `TLB` of /proc/interrupts. Machines without such interrupts have no
/// such row.
fn tlb_interrupts(text: &str) -> Option<u64> {
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(row.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum())
}

/// Of all threads of this process, voluntary or not.
fn context_switches() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the structure is writable and of the type that the call fills.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: the call has filled the structure.
    let usage = (done == 0).then(|| unsafe { usage.assume_init() })?;
    Some((usage.ru_nvcsw + usage.ru_nivcsw) as u64)
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

    #[test]
    fn interrupts_of_all_cpus_are_summed() {
        let text = "           CPU0       CPU1\n  0:   7   8  IO-APIC  timer\n\
                    RES:   5   6   Rescheduling interrupts\nTLB:  30  12   TLB shootdowns\n";
        assert_eq!(tlb_interrupts(text), Some(42));
        assert_eq!(tlb_interrupts("           CPU0\nIPI0:  3  Rescheduling\n"), None);
    }

    #[test]
    fn switches_of_threads_that_have_ended_count() {
        let before = Host.kernel_counts();
        Host.on_threads(2, "task", &|_| (0..50).for_each(|_| Host.sleep(Duration::from_micros(1))));
        let gained = Host.kernel_counts().since(&before);
        assert!(gained.context_switches >= Some(100), "{gained:?}");
    }

    #[test]
    fn busy_time_is_that_of_all_programs() {
        let before = Host.kernel_counts().busy.expect("/proc/stat");
        let own = Host.cpu_use();
        Host.work(Nanos(300_000_000));
        let own = Host.cpu_use().since(&own).total();
        let all = Host.kernel_counts().busy.expect("/proc/stat").since(before);
        // Ticks of 10 ms.
        assert!(all.0 + 100_000_000 > own.0 && own.0 > 0, "{all:?} {own:?}");
    }
}
