//! Runs and their median; threads on given CPUs, alone or while other threads run.
//!
//! ```text
//! asked    the partner works once each time that it is asked    A ask ──> B work ──> A measures
//! beside   others work all the time meanwhile                   A measures | B, C work
//! ```
//! Threads spin for each other, because a wake-up takes longer than most of these times.

use crate::workload::host::Host;
use crate::workload::world::World;
use highwater_os::{monotonic, thread_cpu_time};
use highwater_units::{CpuId, Nanos, Prng};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hint::spin_loop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Duration;

/// Runs at least, however short the time.
const RUNS_MIN: usize = 5;

/// The median of runs for about this long.
pub(super) fn median(time: Duration, mut run: impl FnMut() -> f64) -> f64 {
    let end = monotonic().0 + time.as_nanos() as u64;
    let mut results = Vec::new();
    while results.len() < RUNS_MIN || monotonic().0 < end {
        results.push(run());
    }
    median_of(&mut results)
}

/// The median; 0 of nothing.
pub(super) fn median_of(results: &mut [f64]) -> f64 {
    results.sort_by(f64::total_cmp);
    results.get(results.len() / 2).copied().unwrap_or(0.0)
}

/// The CPU time of one of `count` steps.
pub(super) fn cpu_time_each(count: usize, act: impl FnOnce()) -> f64 {
    each(count, thread_cpu_time, act)
}

/// The CPU time of all threads for one of `count` steps.
pub(super) fn process_time_each(count: usize, act: impl FnOnce()) -> f64 {
    each(count, || Host.cpu_use().total(), act)
}

/// The time of one of `count` steps.
pub(super) fn time_each(count: usize, act: impl FnOnce()) -> f64 {
    each(count, monotonic, act)
}

fn each(count: usize, clock: fn() -> Nanos, act: impl FnOnce()) -> f64 {
    let began = clock();
    act();
    clock().since(began).0 as f64 / count as f64
}

/// A circle through `len` places, in random order: the place after each (Sattolo's shuffle).
pub(super) fn circle(len: usize) -> Vec<u32> {
    let mut random = Prng::new(1);
    let mut next: Vec<u32> = (0..len as u32).collect();
    for last in (1..len).rev() {
        next.swap(last, random.below(last as u64) as usize);
    }
    next
}

/// Binds the calling thread to a CPU, if the system lets it.
pub(super) fn pin(cpu: CpuId) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(cpu.0));
    sched_setaffinity(None, &set)
}

/// Calls `act` in a thread of this CPU.
pub(super) fn on<R: Send>(cpu: CpuId, act: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let pinned = || {
            // `Shape` has checked that this is possible. If it no longer is, the figures are less
            // exact.
            let _ = pin(cpu);
            act()
        };
        scope.spawn(pinned).join().expect("a measurement does not panic")
    })
}

const OWN: u32 = 0;
const PARTNERS: u32 = 1;
const OVER: u32 = 2;

/// The thread of the other CPU.
pub(super) struct Partner(AtomicU32);

impl Partner {
    /// Lets the partner work, and waits until it is done.
    pub(super) fn ask(&self) {
        self.0.store(PARTNERS, Release);
        while self.0.load(Acquire) != OWN {
            spin_loop();
        }
    }

    fn answer(&self, work: &dyn Fn()) {
        loop {
            match self.0.load(Acquire) {
                PARTNERS => {
                    work();
                    self.0.store(OWN, Release);
                }
                OVER => return,
                _ => spin_loop(),
            }
        }
    }
}

/// Calls `measure` on the first CPU, with a partner on the second that works when it is asked.
pub(super) fn asked<R: Send>(
    [own, other]: [CpuId; 2],
    work: &(dyn Fn() + Sync),
    measure: impl FnOnce(&Partner) -> R + Send,
) -> R {
    let partner = Partner(AtomicU32::new(OWN));
    thread::scope(|scope| {
        scope.spawn(|| on(other, || partner.answer(work)));
        let result = on(own, || measure(&partner));
        partner.0.store(OVER, Release);
        result
    })
}

/// Calls `measure` on a CPU while threads on others repeat `work`.
pub(super) fn beside<R: Send>(
    own: CpuId,
    others: &[CpuId],
    work: &(dyn Fn() + Sync),
    measure: impl FnOnce() -> R + Send,
) -> R {
    let (started, over) = (AtomicU32::new(0), AtomicU32::new(OWN));
    let repeat = || {
        started.fetch_add(1, Release);
        while over.load(Acquire) != OVER {
            work();
        }
    };
    thread::scope(|scope| {
        others.iter().for_each(|cpu| {
            scope.spawn(|| on(*cpu, repeat));
        });
        while started.load(Acquire) < others.len() as u32 {
            thread::yield_now();
        }
        let result = on(own, measure);
        over.store(OVER, Release);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_median_leaves_out_what_was_interrupted() {
        assert_eq!(median_of(&mut [3.0, 900.0, 1.0, 2.0, 4.0]), 3.0);
        assert_eq!(median_of(&mut []), 0.0);
        let mut runs = 0.0;
        let add = || {
            runs += 1.0;
            runs
        };
        assert_eq!(median(Duration::ZERO, add), 3.0, "of 5 runs");
    }

    #[test]
    fn a_partner_works_once_each_time() {
        let worked = AtomicU32::new(0);
        let work = || {
            worked.fetch_add(1, Relaxed);
        };
        let seen = asked([CpuId(0), CpuId(0)], &work, |partner| {
            [(); 3].map(|()| {
                partner.ask();
                worked.load(Relaxed)
            })
        });
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    fn others_work_meanwhile() {
        let worked = AtomicU32::new(0);
        let work = || {
            worked.fetch_add(1, Relaxed);
            thread::yield_now();
        };
        beside(CpuId(0), &[CpuId(0)], &work, || {
            while worked.load(Relaxed) < 10 {
                thread::yield_now();
            }
        });
        let ended = worked.load(Relaxed);
        thread::sleep(Duration::from_millis(2));
        assert_eq!(worked.load(Relaxed), ended);
    }
}
