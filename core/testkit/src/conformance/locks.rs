//! Locks exclude each other; events lose no wake-up.

use highwater_platform::{Event, Lock, LockClass, Platform, Thread};
use highwater_units::{Nanos, NodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub(super) fn check<P: Platform>(platform: &Arc<P>) {
    locks_exclude(platform);
    try_lock_says_no(platform);
    a_wait_ends_at_its_timeout(&**platform);
    a_notification_before_the_wait_counts(&**platform);
    two_threads_take_turns(platform);
    everyone_is_woken(platform);
}

/// Runs `body` on `count` threads of the platform, and waits for all of them.
pub(super) fn on_threads<P: Platform>(
    platform: &Arc<P>,
    count: u64,
    body: impl Fn(u64) + Clone + Send + 'static,
) {
    let ended = Arc::new(AtomicU64::new(0));
    let start = |index| {
        let (body, ended) = (body.clone(), ended.clone());
        let whole = move || {
            body(index);
            ended.fetch_add(1, SeqCst);
        };
        let name = format!("check{index}");
        platform.spawn(&name, NodeId(0), Box::new(whole)).expect("a thread")
    };
    let threads: Vec<P::Thread> = (0..count).map(start).collect();
    threads.into_iter().for_each(Thread::join);
    assert_eq!(ended.load(SeqCst), count, "a thread panicked");
}

fn locks_exclude<P: Platform>(platform: &Arc<P>) {
    const ROUNDS: u64 = 5000;
    let lock = Arc::new(platform.new_lock(LockClass::TEST, (0u64, 0u64)));
    let (shared, relaxing) = (lock.clone(), platform.clone());
    on_threads(platform, 4, move |_| {
        for round in 0..ROUNDS {
            let mut pair = shared.lock();
            assert_eq!(pair.0, pair.1, "the lock is held twice");
            pair.0 += 1;
            if round % 64 == 0 {
                relaxing.relax(5);
            }
            pair.1 += 1;
        }
    });
    assert_eq!(*lock.lock(), (4 * ROUNDS, 4 * ROUNDS));
}

fn try_lock_says_no<P: Platform>(platform: &Arc<P>) {
    let lock = Arc::new(platform.new_lock(LockClass::TEST, 7));
    let held = lock.lock();
    let shared = lock.clone();
    on_threads(platform, 1, move |_| assert!(shared.try_lock().is_none(), "the lock is held"));
    drop(held);
    *lock.try_lock().expect("the lock is free") += 1;
    assert_eq!(*lock.lock(), 8);
}

fn a_wait_ends_at_its_timeout<P: Platform>(platform: &P) {
    let (event, start) = (platform.new_event(), platform.now());
    let timeout = Nanos(3_000_000);
    // A single wait may return early; many waits must take their time.
    while platform.now().since(start) < timeout {
        event.wait(event.ticket(), Some(timeout));
    }
}

fn a_notification_before_the_wait_counts<P: Platform>(platform: &P) {
    let event = platform.new_event();
    let ticket = event.ticket();
    event.notify_all();
    assert_ne!(event.ticket(), ticket, "a notification makes history");
    event.wait(ticket, None);
}

/// Waits until `value` is at least `least`.
fn wait_for<P: Platform>(event: &P::Event, value: &AtomicU64, least: u64) {
    loop {
        let ticket = event.ticket();
        if value.load(SeqCst) >= least {
            return;
        }
        event.wait(ticket, None);
    }
}

/// Two threads wait for each other in turn: one lost wake-up hangs both.
fn two_threads_take_turns<P: Platform>(platform: &Arc<P>) {
    const TURNS: u64 = 2000;
    let event = Arc::new(platform.new_event());
    let turn = Arc::new(AtomicU64::new(0));
    let shared = turn.clone();
    on_threads(platform, 2, move |thread| {
        for mine in (thread..2 * TURNS).step_by(2) {
            wait_for::<P>(&event, &shared, mine);
            assert_eq!(shared.swap(mine + 1, SeqCst), mine, "out of turn");
            event.notify_all();
        }
    });
    assert_eq!(turn.load(SeqCst), 2 * TURNS);
}

/// Several threads wait for one event, round after round.
fn everyone_is_woken<P: Platform>(platform: &Arc<P>) {
    const WAITERS: u64 = 5;
    const ROUNDS: u64 = 200;
    let (go, came) = (Arc::new(platform.new_event()), Arc::new(platform.new_event()));
    let (round, arrived) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    on_threads(platform, WAITERS + 1, move |thread| {
        for now in 1..=ROUNDS {
            match thread {
                0 => {
                    round.store(now, SeqCst);
                    go.notify_all();
                    wait_for::<P>(&came, &arrived, now * WAITERS);
                }
                _ => {
                    wait_for::<P>(&go, &round, now);
                    arrived.fetch_add(1, SeqCst);
                    came.notify_all();
                }
            }
        }
    });
}
