//! Threads that sleep and wake each other: on one CPU, and on two.

use super::runs::{cpu_time_each, median, median_of, on, pin, process_time_each};
use highwater_os::monotonic;
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_units::CpuId;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::thread;
use std::time::Duration;

/// Round trips of a run.
const ROUNDS: u32 = 500;

/// Time for the woken thread's CPU to become idle.
const REST: Duration = Duration::from_micros(100);

/// Times of a wake-up, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken {
    /// Of the thread that wakes.
    pub(super) wake: f64,
    /// From its call until the other one runs.
    pub(super) until_it_runs: f64,
}

/// Two threads of a CPU take turns by a futex: the time of a turn, without the system call that
/// wakes.
pub(super) fn switch(time: Duration, cpu: CpuId) -> f64 {
    let turn = AtomicU32::new(0);
    let nobody =
        median(time / 4, || cpu_time_each(1000, || (0..1000).for_each(|_| futex_wake_all(&turn))));
    let last = 2 * ROUNDS;
    // The thread with the even turns, or with the odd ones.
    let take = |own: u32| {
        for round in 0..ROUNDS {
            let mine = 2 * round + own;
            loop {
                match turn.load(Acquire) {
                    now if now == mine => break,
                    now => futex_wait(&turn, now, None),
                }
            }
            turn.store(mine + 1, Release);
            futex_wake_all(&turn);
        }
    };
    let run = || {
        turn.store(0, Release);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = pin(cpu);
                take(1);
            });
            // The other thread starts, too, which so many turns hide.
            process_time_each(last as usize, || take(0))
        })
    };
    median(time, run) - nobody
}

/// A thread wakes another one, whose CPU is idle.
pub(super) fn woken(time: Duration, [own, other]: [CpuId; 2]) -> Woken {
    let (word, ran_at) = (AtomicU32::new(0), AtomicU64::new(0));
    let sleeper = || {
        let mut seen = 0;
        while seen != u32::MAX {
            futex_wait(&word, seen, None);
            let now = word.load(Acquire);
            if now != seen {
                ran_at.store(monotonic().0, Release);
                seen = now;
            }
        }
    };
    let wake = |to: u32| {
        thread::sleep(REST);
        ran_at.store(0, Release);
        word.store(to, Release);
        let began = monotonic();
        futex_wake_all(&word);
        let took = monotonic().since(began).0 as f64;
        let ran = loop {
            match ran_at.load(Acquire) {
                0 => std::hint::spin_loop(),
                ran => break ran,
            }
        };
        (took, ran.saturating_sub(began.0) as f64)
    };
    thread::scope(|scope| {
        scope.spawn(|| on(other, sleeper));
        let waker = || {
            let (mut wakes, mut waits, mut count) = (Vec::new(), Vec::new(), 0);
            median(time, || {
                count += 1;
                let (took, waited) = wake(count);
                wakes.push(took);
                waits.push(waited);
                took
            });
            wake(u32::MAX);
            Woken { wake: median_of(&mut wakes), until_it_runs: median_of(&mut waits) }
        };
        on(own, waker)
    })
}
