//! Workloads of objects: what the kernel allocates while programs run, from slabs.
//!
//! ```text
//! mmap1:     maps and unmaps; what was replaced is freed after grace periods     mmap1.rs
//! hackbench: messages, allocated by senders and freed by receivers              hackbench.rs
//! Shift: threads ── warm-up ── measured ── end; one more looks at the counters in between
//! ```
//! Objects are never accessed: the allocator alone is measured, between periods of work that stand
//! for the rest of a system call. No locks of their own: tasks share flags and counts.

pub mod hackbench;
pub mod mmap1;

use super::outcome::{Measured, Outcome};
use super::tally::Tally;
use super::ticks::Stopwatch;
use super::world::{CpuUse, KernelCounts, TASK, World};
use highwater_mm::slab::{SlabPages, Slabs};
use highwater_mm::stats::Snapshot;
use highwater_platform::{LockStatistics, Locks};
use highwater_units::{Nanos, NodeId};
use std::sync::OnceLock;
use std::time::Duration;

/// When tasks begin to be measured, and when they end.
#[derive(Clone, Copy, Debug)]
struct Shift {
    warm: Nanos,
    end: Nanos,
}

/// What was seen at one time.
struct Seen {
    cpu: CpuUse,
    locks: LockStatistics,
}

/// Runs `body` on `threads` threads. One more thread takes the statistics after the warm-up and at
/// the end.
fn measure<S: SlabPages, W: World>(
    (slabs, world): (&Slabs<S>, &W),
    threads: usize,
    (warm_up, time): (Duration, Duration),
    node: &(dyn Fn(usize) -> Option<NodeId> + Sync),
    body: impl Fn(usize, Shift, &Stopwatch<'_, W>) -> Tally + Sync,
) -> Outcome {
    let began = world.now();
    let after = |time: Duration| Nanos(began.0 + time.as_nanos() as u64);
    let shift = Shift { warm: after(warm_up), end: after(warm_up + time) };
    let (watch, seen) = (Stopwatch::start(world), [const { OnceLock::new() }; 2]);
    let look = |at: Nanos, place: &OnceLock<Seen>| {
        world.sleep(Duration::from_nanos(at.since(world.now()).0));
        let locks = slabs.platform().lock_statistics();
        let now = Seen { cpu: world.cpu_use(), locks };
        place.set(now).unwrap_or_else(|_| unreachable!("one looks on"));
    };
    let thread = |thread: usize| {
        if thread < threads {
            return Some(body(thread, shift, &watch));
        }
        look(shift.warm, &seen[0]);
        look(shift.end, &seen[1]);
        None
    };
    let home = |thread: usize| if thread < threads { node(thread) } else { None };
    let tallies = world.on_threads_of(threads + 1, TASK, &home, &thread);
    let [before, after] = seen.map(|seen| seen.into_inner().expect("it was looked at"));
    slabs.verify();
    let measured = Measured {
        run: time,
        cpu: after.cpu.since(&before.cpu),
        kernel: KernelCounts::default(),
        calls: None,
        nanos_per_tick: watch.scale(),
        before: Snapshot::empty(),
        after: Snapshot::empty(),
        locks: Some(after.locks.since(&before.locks)),
    };
    let caches = slabs.report().into_iter().zip(slabs.from_other_nodes()).collect();
    let done = Outcome::new(Tally::sum(tallies.into_iter().flatten()), measured);
    Outcome { pages: slabs.pages(), threads, slabs: Some(caches), ..done }
}
