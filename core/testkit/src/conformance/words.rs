//! Atomic words: each operation has its specified result, and no update is lost between threads.

use super::locks::on_threads;
use highwater_platform::{Atomic, Int, Platform};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

const THREADS: u64 = 4;
const ROUNDS: u64 = 2000;

pub(super) fn check<P: Platform>(platform: &Arc<P>) {
    operations_match_their_specification::<u8, P::Atomic<u8>>([0, 1, 200, u8::MAX]);
    operations_match_their_specification::<u32, P::Atomic<u32>>([0, 1, 200, u32::MAX]);
    operations_match_their_specification::<u64, P::Atomic<u64>>([0, 1, 200, u64::MAX]);
    sums_are_complete(platform);
    a_limit_is_reached_and_not_passed(platform);
    values_are_handed_on(platform);
    one_at_a_time_gets_in(platform);
    the_largest_stays(platform);
    every_thread_clears_its_bits(platform);
}

/// Tests each operation with `zero`, `one`, some value and the largest value.
fn operations_match_their_specification<T: Int, A: Atomic<T>>([zero, one, some, most]: [T; 4]) {
    let word = A::new(some);
    assert_eq!(word.load(Relaxed), some);
    assert_eq!(word.swap(one, AcqRel), some);
    assert_eq!(word.compare_exchange(some, most, SeqCst, Relaxed), Err(one), "another value");
    assert_eq!(word.compare_exchange(one, most, AcqRel, Acquire), Ok(one));
    assert_eq!(word.fetch_add(one, Relaxed), most);
    assert_eq!(word.fetch_sub(one, Relaxed), zero, "addition wraps around");
    assert_eq!(word.fetch_and(some, Relaxed), most, "subtraction wraps around");
    assert_eq!(word.fetch_max(one, Relaxed), some, "the common bits");
    assert_eq!(word.fetch_max(most, Relaxed), some, "a smaller value changes nothing");
    assert_eq!(word.fetch_update(AcqRel, Acquire, |_| None), Err(most));
    assert_eq!(word.fetch_update(AcqRel, Acquire, |seen| (seen == most).then_some(one)), Ok(most));
    assert_eq!(word.load(Acquire), one);
    word.store(zero, Release);
    assert_eq!(word.load(SeqCst), zero);
}

/// Runs `body` on all threads with a word that starts as `value`. Returns its final value.
fn shared<P: Platform>(
    platform: &Arc<P>,
    value: u64,
    body: impl Fn(&P, &P::Atomic<u64>, u64) + Clone + Send + 'static,
) -> u64 {
    let word = Arc::new(P::Atomic::<u64>::new(value));
    let (theirs, world) = (word.clone(), platform.clone());
    on_threads(platform, THREADS, move |thread| body(&world, &theirs, thread));
    word.load(SeqCst)
}

fn sums_are_complete<P: Platform>(platform: &Arc<P>) {
    let sum = shared(platform, 0, |_, word, thread| {
        for _ in 0..ROUNDS {
            word.fetch_add(thread + 3, Relaxed);
            word.fetch_sub(2, Relaxed);
        }
    });
    assert_eq!(sum, ROUNDS * (0..THREADS).map(|thread| thread + 1).sum::<u64>());
}

fn a_limit_is_reached_and_not_passed<P: Platform>(platform: &Arc<P>) {
    const LIMIT: u64 = THREADS * ROUNDS / 2;
    let taken = Arc::new(P::Atomic::<u64>::new(0));
    let theirs = taken.clone();
    let level = shared(platform, 0, move |_, word, _| {
        for _ in 0..ROUNDS {
            let below = |level| (level < LIMIT).then_some(level + 1);
            match word.fetch_update(AcqRel, Acquire, below) {
                Ok(_) => _ = theirs.fetch_add(1, Relaxed),
                Err(level) => assert_eq!(level, LIMIT, "refused below the limit"),
            }
        }
    });
    assert_eq!((level, taken.load(SeqCst)), (LIMIT, LIMIT));
}

/// Each thread swaps its token for the one in the word: no token is duplicated or lost.
fn values_are_handed_on<P: Platform>(platform: &Arc<P>) {
    let tokens = Arc::new(P::Atomic::<u64>::new(0));
    let theirs = tokens.clone();
    let last = shared(platform, 1, move |_, word, thread| {
        let mut token = 1 << (8 * (thread + 1));
        (0..ROUNDS).for_each(|_| token = word.swap(token, AcqRel));
        theirs.fetch_add(token, SeqCst);
    });
    let all = (0..=THREADS).map(|token| 1 << (8 * token)).sum::<u64>();
    assert_eq!(tokens.load(SeqCst) + last, all);
}

/// A spin lock made of one word protects another.
fn one_at_a_time_gets_in<P: Platform>(platform: &Arc<P>) {
    let inside = Arc::new(P::Atomic::<u64>::new(0));
    let theirs = inside.clone();
    shared(platform, 0, move |platform, word, _| {
        for _ in 0..ROUNDS / 4 {
            let mut attempt = 0;
            while word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
                platform.relax(attempt);
                attempt += 1;
            }
            let before = theirs.load(Relaxed);
            platform.relax(0);
            theirs.store(before + 1, Relaxed);
            word.store(0, Release);
        }
    });
    assert_eq!(inside.load(SeqCst), THREADS * (ROUNDS / 4));
}

fn the_largest_stays<P: Platform>(platform: &Arc<P>) {
    let most = shared(platform, 0, |_, word, thread| {
        for round in 0..ROUNDS {
            let value = round * THREADS + thread;
            assert!(word.fetch_max(value, Relaxed) < THREADS * ROUNDS);
            assert!(word.load(Relaxed) >= value, "a larger value was replaced");
        }
    });
    assert_eq!(most, THREADS * ROUNDS - 1);
}

fn every_thread_clears_its_bits<P: Platform>(platform: &Arc<P>) {
    let left = shared(platform, u64::MAX, |_, word, thread| {
        for bit in (thread..60).step_by(THREADS as usize) {
            let before = word.fetch_and(!(1 << bit), Relaxed);
            assert_ne!(before & 1 << bit, 0, "a bit was cleared by another");
        }
    });
    assert_eq!(left, u64::MAX << 60);
}
