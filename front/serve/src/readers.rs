//! How many threads read fault messages, and on which CPUs.
//!
//! One reader is pinned to each CPU, so that a fault is served on its own CPU by a context switch:
//! the kernel wakes all readers, the one on the CPU that faulted runs first, and the program's
//! thread continues there. A wake-up on another CPU and back costs more than the fault itself: on
//! two CPUs, one unpinned reader served 54,000 faults/s of 32 threads, two pinned ones 86,000.

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Machines with more CPUs have a single, unpinned reader: with a reader on each CPU, every fault
/// would wake too many threads.
const CPUS_MAX: usize = 4;

/// Nice value of readers, where the system permits it. The program's threads wait for readers, and
/// a reader that loses its CPU to them in the middle of a fault delays them all: on two CPUs, 32
/// threads make 1.15 times as many accesses as with 0.
const NICE: i32 = -10;

/// Gives this thread, a reader, a higher priority than the threads that it serves. Without the
/// privilege its priority stays equal to theirs.
pub(crate) fn raise_priority() {
    let _ = setpriority_process(None, NICE);
}

/// How many threads should read messages at a time.
pub(crate) fn readers_for(cpus: usize) -> usize {
    if cpus <= CPUS_MAX { cpus } else { 1 }
}

/// The CPUs that the threads of a server may use: those of the thread that starts the server. (They
/// cannot be read again later: a reader that starts another one may itself be pinned to one CPU.)
#[derive(Clone, Copy)]
pub(crate) struct AllowedCpus(CpuSet);

impl AllowedCpus {
    pub(crate) fn of_this_thread() -> AllowedCpus {
        AllowedCpus(sched_getaffinity(None).unwrap_or_default())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.count() as usize
    }

    /// Pins this thread, the `index`th of a server, to its CPU. Threads beyond the number of CPUs,
    /// and all threads on a machine with many CPUs, may run on any of the CPUs. If the system
    /// refuses, the thread keeps its present affinity.
    pub(crate) fn apply(&self, index: usize) {
        let mut set = self.0;
        if let Some(cpu) = self.of_reader(index) {
            set = CpuSet::new();
            set.set(cpu);
        }
        let _ = sched_setaffinity(None, &set);
    }

    fn of_reader(&self, index: usize) -> Option<usize> {
        let cpu = (0..CpuSet::MAX_CPU).filter(|cpu| self.0.is_set(*cpu)).nth(index);
        cpu.filter(|_| self.count() <= CPUS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_few_cpus_has_a_reader() {
        assert_eq!([1, 2, 4, 5, 64].map(readers_for), [1, 2, 4, 1, 1]);
    }

    /// A new thread inherits the affinity of its creator.
    #[test]
    fn a_thread_started_by_a_pinned_reader_can_use_all_cpus() {
        let cpus = || AllowedCpus::of_this_thread().count();
        let ended = std::thread::spawn(move || {
            // As on a machine with few CPUs.
            let mut all = AllowedCpus(CpuSet::new());
            let here = AllowedCpus::of_this_thread().0;
            let few = (0..CpuSet::MAX_CPU).filter(|cpu| here.is_set(*cpu)).take(CPUS_MAX);
            few.for_each(|cpu| all.0.set(cpu));
            all.apply(0);
            assert_eq!(cpus(), 1);
            let second = std::thread::spawn(move || {
                all.apply(CPUS_MAX);
                assert_eq!(cpus(), all.count());
            });
            second.join()
        });
        assert!(matches!(ended.join(), Ok(Ok(()))));
    }
}
