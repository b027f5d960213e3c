//! Phases are per thread, and lock statistics are correct: exactly, or within the sampling error.

use super::locks::on_threads;
use highwater_platform::{Atomic, Guard, Lock, LockClass, LockRecord, Phase, PhaseKind, Platform};
use highwater_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The tolerance for the acquisitions of one lock: a sample stands for several.
const SAMPLE_MAX: u64 = 32;

const OTHER: LockClass = LockClass::new(7, "other");

const FAULT: &Phase = &Phase::new(1, "fault", PhaseKind::Fault);
const ALLOC: &Phase = &Phase::new(2, "alloc", PhaseKind::Other);
const RECLAIM: &Phase = &Phase::new(3, "reclaim", PhaseKind::Eviction);
const SWAP_OUT: &Phase = &Phase::new(4, "swap_out", PhaseKind::Eviction);
const SWAP_IN: &Phase = &Phase::new(5, "swap_in", PhaseKind::Other);
const RANGE: &Phase = &Phase::new(6, "range", PhaseKind::Other);
const PHASES: [&Phase; 7] = [Phase::PROGRAM, FAULT, ALLOC, RECLAIM, SWAP_OUT, SWAP_IN, RANGE];

pub(super) fn check<P: Platform>(platform: &Arc<P>) {
    phases_belong_to_threads(platform);
    acquisitions_are_counted(&**platform);
    failed_attempts_are_not_counted(platform);
    many_locks_count_together(&**platform);
    phases_in_turn_get_their_share(&**platform);
    waiting_is_counted(platform);
}

/// Runs `work` in a phase. Returns the lock statistics of a class meanwhile, for that phase and in
/// total.
fn measured<P: Platform>(
    platform: &P,
    (class, phase): (LockClass, &'static Phase),
    work: impl FnOnce(),
) -> (LockRecord, LockRecord) {
    let before = platform.lock_statistics();
    let outer = platform.enter(phase);
    work();
    platform.enter(outer);
    let gained = platform.lock_statistics().since(&before);
    (*gained.get(class, phase), gained.class(class))
}

#[track_caller]
fn assert_about(found: u64, expected: u64, tolerance: u64) {
    assert!(found.abs_diff(expected) <= tolerance, "{found} instead of about {expected}");
}

fn phases_belong_to_threads<P: Platform>(platform: &Arc<P>) {
    let outer = platform.enter(FAULT);
    let theirs = platform.clone();
    on_threads(platform, 4, move |_| {
        let mut last = Phase::PROGRAM;
        for phase in PHASES.into_iter().rev().cycle().take(100) {
            assert_eq!(theirs.enter(phase), last, "a thread begins with its own work");
            theirs.relax(0);
            last = phase;
        }
    });
    assert_eq!(platform.enter(outer), FAULT, "other threads change nothing");
    assert_eq!(platform.enter(outer), outer);
}

fn acquisitions_are_counted<P: Platform>(platform: &P) {
    let test = platform.new_lock(LockClass::TEST, 0u64);
    let other = platform.new_lock(OTHER, ());
    for thousands in [1, 4] {
        let (range, all) = measured(platform, (LockClass::TEST, RANGE), || {
            for _ in 0..1000 * thousands {
                let mut held = test.lock();
                held.visits(1);
                *held += 1;
                platform.relax(2);
                drop(held);
                drop(other.try_lock().expect("the lock is free"));
            }
        });
        assert_about(range.acquisitions, 1000 * thousands, SAMPLE_MAX);
        assert_eq!(range, all, "all of it in one phase");
        assert_eq!((range.contended, range.wait), (0, Nanos(0)), "nobody else was there");
        assert!(range.hold > Nanos(0), "to hold a lock takes time");
    }
    assert_eq!(*test.lock(), 5000);
    let zone = *platform.lock_statistics().get(OTHER, RANGE);
    assert_about(zone.acquisitions, 5000, SAMPLE_MAX);
}

fn failed_attempts_are_not_counted<P: Platform>(platform: &Arc<P>) {
    let lock = Arc::new(platform.new_lock(LockClass::TEST, ()));
    let held = lock.lock();
    let (shared, theirs) = (lock.clone(), platform.clone());
    let (_, all) = measured(&**platform, (LockClass::TEST, RANGE), || {
        on_threads(platform, 1, move |_| {
            theirs.enter(RANGE);
            (0..1000).for_each(|_| assert!(shared.try_lock().is_none()));
        });
    });
    assert_eq!(all.contended, 0, "a refused thread waits for nothing");
    assert_about(all.acquisitions, 0, SAMPLE_MAX);
    drop(held);
}

/// Locks taken less often than once per sample are also counted.
fn many_locks_count_together<P: Platform>(platform: &P) {
    const LOCKS: u64 = 620;
    let locks: Vec<_> = (0..LOCKS).map(|_| platform.new_lock(LockClass::TEST, ())).collect();
    let (alloc, _) = measured(platform, (LockClass::TEST, ALLOC), || {
        (0..5).for_each(|_| locks.iter().for_each(|lock| drop(lock.lock())));
    });
    assert_about(alloc.acquisitions, 5 * LOCKS, LOCKS / 2);
}

/// Alternating between two phases must not correlate with the sampling.
fn phases_in_turn_get_their_share<P: Platform>(platform: &P) {
    const TURNS: u64 = 2000;
    let lock = platform.new_lock(LockClass::TEST, ());
    let before = platform.lock_statistics();
    let outer = platform.enter(Phase::PROGRAM);
    for _ in 0..TURNS {
        for phase in [SWAP_IN, SWAP_OUT] {
            platform.enter(phase);
            drop(lock.lock());
        }
    }
    platform.enter(outer);
    let gained = platform.lock_statistics().since(&before);
    for phase in [SWAP_IN, SWAP_OUT] {
        let record = gained.get(LockClass::TEST, phase);
        assert_about(record.acquisitions, TURNS, 2 * SAMPLE_MAX);
    }
}

/// One thread holds a lock until another waits for it; the wait is accounted to the waiter's phase.
fn waiting_is_counted<P: Platform>(platform: &Arc<P>) {
    const HOLD: Nanos = Nanos(1_000_000);
    let before = platform.lock_statistics();
    let (mut rounds, mut waiting) = (0, LockRecord::default());
    // On a busy host the second thread may reach the lock only after its release.
    while waiting.contended == 0 {
        assert!(rounds < 100, "nobody ever waited");
        two_threads_meet_at_a_lock(platform, HOLD);
        rounds += 1;
        waiting = *platform.lock_statistics().since(&before).get(LockClass::TEST, RECLAIM);
    }
    assert_eq!(waiting.contended, 1);
    assert!(waiting.wait > Nanos(0) && waiting.acquisitions >= 1, "{waiting:?}");
    let gained = platform.lock_statistics().since(&before);
    let holding = gained.get(LockClass::TEST, SWAP_OUT);
    assert_eq!((holding.contended, holding.wait), (0, Nanos(0)), "the holder never waited");
}

fn two_threads_meet_at_a_lock<P: Platform>(platform: &Arc<P>, hold: Nanos) {
    let lock = Arc::new(platform.new_lock(LockClass::TEST, ()));
    // 1: the first thread holds the lock; 2: the second is about to take it.
    let stage = Arc::new(P::Atomic::<u32>::new(0));
    let theirs = platform.clone();
    on_threads(platform, 2, move |thread| {
        let reach = |least| {
            let mut attempt = 0;
            while stage.load(SeqCst) < least {
                theirs.relax(attempt);
                attempt += 1;
            }
        };
        theirs.enter([SWAP_OUT, RECLAIM][thread as usize]);
        if thread == 0 {
            let held = lock.lock();
            stage.store(1, SeqCst);
            reach(2);
            let met = theirs.now();
            (0..).take_while(|_| theirs.now().since(met) < hold).for_each(|n| theirs.relax(n));
            drop(held);
        } else {
            reach(1);
            stage.store(2, SeqCst);
            drop(lock.lock());
        }
    });
}
