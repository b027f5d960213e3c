//! How many threads read fault messages, and on which CPUs.
//!
//! [`FaultSources`] finds out whether one thread of the program faults or many: it decides anew
//! every 64 messages, by how often the faulting thread differed from the one before.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Messages between decisions.
const WINDOW: u32 = 64;

/// Up to this many changes of thread in a window count as one faulting thread.
const CHANGES_MAX: u32 = 2;

/// On machines with more CPUs, a reader on each would wake too many threads for every fault.
const READERS_MAX: usize = 4;

/// How many threads of the program fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Mostly one.
    OneThread,
    /// Several in turn.
    ManyThreads,
}

/// Counts of the current window, and the last decision. Relaxed and unlocked: a lost count only
/// delays a decision.
pub(crate) struct FaultSources {
    cpus: usize,
    last: AtomicU32,
    seen: AtomicU32,
    changes: AtomicU32,
    many: AtomicU32,
}

impl FaultSources {
    pub(crate) fn new(cpus: usize) -> FaultSources {
        let [last, seen, changes, many] = [const { AtomicU32::new(0) }; 4];
        FaultSources { cpus, last, seen, changes, many }
    }

    /// The last decision; one thread at first.
    pub(crate) fn found(&self) -> Found {
        match self.many.load(Relaxed) {
            0 => Found::OneThread,
            _ => Found::ManyThreads,
        }
    }

    /// How many threads should read messages.
    pub(crate) fn readers(&self) -> usize {
        match self.found() {
            Found::OneThread if self.cpus <= READERS_MAX => self.cpus,
            Found::OneThread | Found::ManyThreads => 1,
        }
    }

    /// Notes a fault of a thread; returns whether that changed the decision.
    pub(crate) fn note(&self, thread: u32) -> bool {
        if self.last.swap(thread, Relaxed) != thread {
            self.changes.fetch_add(1, Relaxed);
        }
        if self.seen.fetch_add(1, Relaxed) + 1 < WINDOW {
            return false;
        }
        self.seen.store(0, Relaxed);
        let many = u32::from(self.changes.swap(0, Relaxed) > CHANGES_MAX);
        self.many.swap(many, Relaxed) != many
    }
}

/// The CPUs that the threads of a server may use: those of the thread that starts the server. (A
/// reader cannot ask again: it may be pinned to one CPU when it starts another.)
#[derive(Clone, Copy)]
pub(crate) struct AllowedCpus(CpuSet);

impl AllowedCpus {
    pub(crate) fn of_this_thread() -> AllowedCpus {
        AllowedCpus(sched_getaffinity(None).unwrap_or_default())
    }

    /// The `index`th of the CPUs, if there is one for that reader.
    fn nth(&self, index: usize) -> Option<usize> {
        let cpu = (0..CpuSet::MAX_CPU).filter(|cpu| self.0.is_set(*cpu)).nth(index);
        cpu.filter(|_| index < READERS_MAX)
    }
}

/// The CPUs that a thread of the server runs on.
pub(crate) struct Placement {
    allowed: AllowedCpus,
    /// The CPU that it is pinned to while one thread faults.
    own_cpu: Option<usize>,
    /// The case that it is placed for; `None` before the first.
    applied: Option<Found>,
}

impl Placement {
    /// The placement of the `index`th thread.
    pub(crate) fn new(allowed: AllowedCpus, index: usize) -> Placement {
        Placement { allowed, own_cpu: allowed.nth(index), applied: None }
    }

    /// Pins this thread to its CPU if one thread faults, and unpins it if many do. A system call
    /// if the case changed; if that is refused, the thread serves faults where it is.
    pub(crate) fn apply(&mut self, found: Found) {
        if self.applied == Some(found) {
            return;
        }
        let mut set = self.allowed.0;
        if let (Found::OneThread, Some(cpu)) = (found, self.own_cpu) {
            set = CpuSet::new();
            set.set(cpu);
        }
        let _ = sched_setaffinity(None, &set);
        self.applied = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(sources: &FaultSources, threads: impl Fn(u32) -> u32) -> (Found, usize) {
        (0..4 * WINDOW).for_each(|fault| {
            sources.note(threads(fault));
        });
        (sources.found(), sources.readers())
    }

    #[test]
    fn one_faulting_thread_has_a_reader_on_every_cpu_and_many_have_one() {
        let sources = FaultSources::new(2);
        assert_eq!(sources.readers(), 2);
        assert_eq!(noted(&sources, |fault| fault % 3), (Found::ManyThreads, 1));
        assert_eq!(noted(&sources, |_| 7), (Found::OneThread, 2));
        assert_eq!(noted(&sources, |fault| fault / 40), (Found::OneThread, 2));
        assert_eq!(noted(&FaultSources::new(64), |_| 7), (Found::OneThread, 1));
    }

    fn cpus() -> u32 {
        AllowedCpus::of_this_thread().0.count()
    }

    /// A new thread inherits the affinity of its creator.
    #[test]
    fn a_thread_started_by_a_pinned_reader_can_use_all_cpus() {
        let all = cpus();
        let ended = std::thread::spawn(move || {
            let allowed = AllowedCpus::of_this_thread();
            Placement::new(allowed, 0).apply(Found::OneThread);
            assert_eq!(cpus(), 1);
            let second = std::thread::spawn(move || {
                let mut placement = Placement::new(allowed, 1);
                placement.apply(Found::ManyThreads);
                assert_eq!(cpus(), all);
                placement.apply(Found::OneThread);
                assert_eq!(cpus(), 1);
            });
            second.join()
        });
        assert!(matches!(ended.join(), Ok(Ok(()))));
    }
}
