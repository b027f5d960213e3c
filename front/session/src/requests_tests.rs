//! Processes that ask each other for pages; each is a file with a lock.

use super::*;
use crate::{Forked, Name, Scope, StatsFile};
use highwater_units::Prng;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

const PAGES: Request = Request { first: 0x0004_0000_0000, count: 33, access: Access::Write };

fn start(dir: &Path, pid: u32) -> (StatsFile, Share) {
    let file = StatsFile::create(dir, pid, Name::default()).unwrap();
    let share = Budget::open(dir).unwrap().join(file.image(), Forked::default()).unwrap();
    (file, share)
}

fn run() -> (tempfile::TempDir, Budget) {
    let dir = tempfile::tempdir().unwrap();
    let budget = Budget::create(dir.path(), Scope::Paged, 100_000, 100_000).unwrap();
    (dir, budget)
}

#[test]
fn words_are_requests_or_nothing() {
    let mut random = Prng::new(7);
    for _ in 0..10_000 {
        let word = random.next_u64() >> random.below(64);
        if let Some(posted) = Posted::from_bits(word) {
            assert_eq!(posted.to_bits(), Some(word));
        }
        let access = if random.percent(50) { Access::Read } else { Access::Write };
        let (first, count) = (random.next_u64() >> random.below(64), random.below(80));
        let posted = Posted { request: Request { first, count, access }, by: OUTSIDER, number: 63 };
        let valid = first < 1 << 36 && (1..=64).contains(&count);
        assert_eq!(posted.to_bits().is_some(), valid, "{posted:?}");
        assert!(posted.to_bits().is_none_or(|word| Posted::from_bits(word) == Some(posted)));
    }
}

/// Pages are held for one process at a time, as long as that process wants them.
#[test]
fn a_process_holds_pages_for_others() {
    const ROUNDS: u64 = 300;
    let (dir, _budget) = run();
    let (_file, holder) = start(dir.path(), 1);
    let (held, rounds, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let Some(posted) = holder.wait_requested(Duration::from_millis(5)) else {
                    continue;
                };
                if posted.request.first % 3 == 0 {
                    holder.refuse(posted);
                    continue;
                }
                assert_eq!(held.swap(posted.request.first, SeqCst), 0);
                holder.hold(posted, posted.request.count - 1);
                assert_eq!(held.swap(0, SeqCst), posted.request.first);
            }
        });
        let askers: Vec<_> = (2..6)
            .map(|pid| {
                let (dir, held, rounds) = (dir.path(), &held, &rounds);
                scope.spawn(move || {
                    let (_file, share) = start(dir, pid);
                    for round in 1..=ROUNDS {
                        let first = u64::from(pid) << 20 | round;
                        let got = share.request(1, Request { first, ..PAGES });
                        assert_eq!(got.is_err(), first % 3 == 0);
                        if let Ok(pages) = got {
                            assert_eq!((held.load(SeqCst), pages.count()), (first, 32));
                            assert!(pages.end());
                        }
                        rounds.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        stop.store(true, Relaxed);
    });
    assert_eq!(rounds.into_inner(), 4 * ROUNDS);
}

#[test]
fn nobody_waits_for_a_process_that_has_ended() {
    let (dir, _budget) = run();
    let (_file, share) = start(dir.path(), 1);
    let began = Instant::now();
    assert!(share.request(2, PAGES).is_err(), "there is none");
    let (file, other) = start(dir.path(), 2);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| share.request(2, PAGES).is_err());
        while other.requested().is_none() {
            std::thread::yield_now();
        }
        drop(file);
        assert!(asker.join().unwrap(), "it ended before it answered");
    });
    let (asking, asker) = start(dir.path(), 3);
    let holder = &share;
    std::thread::scope(|scope| {
        let held = scope.spawn(|| asker.request(1, PAGES).is_ok());
        let posted = loop {
            match share.requested() {
                Some(posted) => break posted,
                None => std::thread::yield_now(),
            }
        };
        let holds = scope.spawn(move || holder.hold(posted, 1));
        assert!(held.join().unwrap());
        drop(asking);
        holds.join().unwrap();
        assert_eq!(share.requested(), None, "it has ended with pages held");
    });
    assert!(began.elapsed() < PATIENCE);
}
