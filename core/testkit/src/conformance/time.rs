//! Clocks are monotonic, CPUs have numbers, threads start and end.

use super::locks::on_threads;
use highwater_platform::{Event, Platform};
use highwater_units::{CpuId, Nanos, NodeId};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub(super) fn check<P: Platform>(platform: &Arc<P>) {
    time_never_steps_back(&**platform);
    work_takes_cpu_time_and_waiting_does_not(&**platform);
    every_cpu_has_a_number_and_a_node(platform);
    threads_run_at_once_and_end(platform);
    cpus_idle_while_threads_sleep(&**platform);
}

fn time_never_steps_back<P: Platform>(platform: &P) {
    let mut last = platform.now();
    for attempt in 0..2000 {
        platform.relax(attempt % 6);
        let now = platform.now();
        assert!(now >= last, "{now:?} comes after {last:?}");
        last = now;
    }
}

fn work_takes_cpu_time_and_waiting_does_not<P: Platform>(platform: &P) {
    let start = platform.thread_cpu_time();
    let mut rounds = 0u64;
    while platform.thread_cpu_time() == start {
        rounds = black_box(rounds + 1);
        assert!(rounds < 100_000_000, "work takes no CPU time");
    }
    let (before, worked) = (platform.now(), platform.thread_cpu_time());
    let event = platform.new_event();
    while platform.now().since(before) < Nanos(20_000_000) {
        event.wait(event.ticket(), Some(Nanos(20_000_000)));
    }
    let (waited, used) = (platform.now().since(before), platform.thread_cpu_time().since(worked));
    assert!(used.0 < waited.0 / 2, "{used:?} of CPU for waiting {waited:?}");
}

fn every_cpu_has_a_number_and_a_node<P: Platform>(platform: &Arc<P>) {
    let cpus = platform.cpus();
    assert!(cpus > 0);
    for cpu in (0..cpus).map(|cpu| CpuId(cpu as u16)) {
        assert_eq!(platform.node_of(cpu), platform.node_of(cpu), "{cpu:?} stays on its node");
    }
    let shared = platform.clone();
    on_threads(platform, 8, move |_| {
        for attempt in 0..10 {
            assert!(usize::from(shared.cpu().0) < cpus);
            shared.relax(attempt);
        }
        assert_eq!(shared.cpus(), cpus);
    });
}

/// Threads that end only after all have started; their writes are visible after the join.
fn threads_run_at_once_and_end<P: Platform>(platform: &Arc<P>) {
    const THREADS: u64 = 8;
    let started = Arc::new((platform.new_event(), AtomicU64::new(0)));
    let shared = started.clone();
    on_threads(platform, THREADS, move |_| {
        let (event, count) = &*shared;
        count.fetch_add(1, SeqCst);
        event.notify_all();
        loop {
            let ticket = event.ticket();
            if count.load(SeqCst) >= THREADS {
                break;
            }
            event.wait(ticket, None);
        }
        count.fetch_add(100, SeqCst);
    });
    assert_eq!(started.1.load(SeqCst), THREADS * 101);
}

/// Idle time never decreases, and does not exceed the elapsed time of all CPUs.
fn cpus_idle_while_threads_sleep<P: Platform>(platform: &P) {
    let idle = || platform.idle_time(NodeId(0)).expect("idle time is known").time;
    let (start, before) = (platform.now(), idle());
    let event = platform.new_event();
    let (mut last, mut rounds) = (before, 0);
    while platform.now().since(start) < Nanos(60_000_000) {
        event.wait(event.ticket(), Some(Nanos(5_000_000)));
        platform.trace_value("rounds", rounds);
        let now = idle();
        assert!(now >= last, "{now:?} comes after {last:?}");
        (last, rounds) = (now, rounds + 1);
    }
    let (idled, passed) = (last.since(before), platform.now().since(start));
    let cpus = platform.idle_time(NodeId(0)).map(|idle| idle.cpus);
    assert!(cpus.is_some_and(|cpus| (1..=platform.cpus()).contains(&cpus)), "{cpus:?}");
    // Each CPU's time is rounded to ticks, at the start and at the end.
    let most = Nanos((passed.0 + 20_000_000) * platform.cpus() as u64);
    assert!(idled <= most, "{idled:?} in {passed:?}");
}
