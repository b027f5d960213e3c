//! The checker finds the errors it exists for, and nothing else.

use super::*;
use crate::workload::Denied;
use crate::workload::WORDS;
use crate::workload::content::Mismatch;
use crate::workload::heap::{Fault, Heap};

const PAGES: usize = 64;

fn config(threads: usize, pattern: Pattern) -> Config {
    let time = Duration::from_millis(50);
    let (sharing, ahead, warm_up) = (Sharing::Shared, 0, Duration::ZERO);
    Config { threads, read_percent: 50, pattern, sharing, ahead, warm_up, time, seed: 11 }
}

fn run_with(threads: usize, fault: Fault) -> Result<Outcome, Failure> {
    run(&Heap::new(PAGES, fault), &config(threads, Pattern::Uniform))
}

fn mismatch(threads: usize, fault: Fault) -> Mismatch {
    match run_with(threads, fault) {
        Err(Failure::Mismatch(mismatch)) => mismatch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sound_memory_passes_with_any_pattern_and_many_threads() {
    for pattern in [Pattern::Uniform, Pattern::Normal, Pattern::Sequential, Pattern::Zipf] {
        for threads in [1, 2, 7] {
            let heap = Heap::new(PAGES, Fault::None);
            let outcome = run(&heap, &config(threads, pattern)).expect("sound");
            let Tally { loads, stores, latency, first_half } = outcome.tally;
            let accesses = loads + stores;
            assert!(accesses >= 252 * threads as u64, "{accesses}");
            assert_eq!(latency.len() * u64::from(TIMED_EVERY), accesses);
            let share = loads as f64 / accesses as f64;
            assert!((0.3..0.7).contains(&share), "{share} loads");
            assert!(first_half.expect("it ran for a time") <= accesses);
        }
    }
}

#[test]
fn a_lost_store_is_found_as_an_older_version() {
    for threads in [1, 4] {
        let found = mismatch(threads, Fault::LosesStores { page: 9, after: 500 });
        assert_eq!((found.page, found.seed), (9, 11));
        assert!(
            found.found_version.expect("a value of this word") < found.version.expect("filled")
        );
    }
}

#[test]
fn a_wrong_page_is_found() {
    let found = mismatch(2, Fault::WrongPage { page: 9, instead: 10, after: 500 });
    assert_eq!((found.page, found.found_version), (9, None));
}

/// The fill takes 64 accesses and the run is over at once: only the sweep can find the wrong page.
#[test]
fn the_sweep_finds_a_planted_wrong_page() {
    let heap = Heap::new(PAGES, Fault::WrongPage { page: 63, instead: 1, after: 64 });
    let still = Config { time: Duration::ZERO, ..config(1, Pattern::Uniform) };
    match run(&heap, &still) {
        Err(Failure::Mismatch(found)) => assert_eq!((found.page, found.word), (63, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_denied_page_ends_all_threads() {
    let failure = run_with(4, Fault::Denies { page: 3, after: 200 }).expect_err("denied");
    assert_eq!(failure, Failure::Denied(Denied("gone".into())));
}

#[test]
fn a_thread_stays_in_pages_of_its_own_where_it_has_some() {
    const THREADS: usize = 3;
    let heap = Heap::new(PAGES, Fault::None);
    let shared = config(THREADS, Pattern::Uniform);
    let config = Config { read_percent: 0, sharing: Sharing::Private, ..shared };
    let (workers, history) = (Workers::new(&heap, THREADS, 1), History::new(THREADS, PAGES as u64));
    let bench = Bench { workers, config: &config, history };
    let worked = bench
        .workers
        .measure(&heap, |thread, watch| Worker::new(&bench, thread, watch).work(config.time));
    worked.expect("sound");
    for page in 0..PAGES as u64 {
        let written = (0..WORDS).filter(|word| bench.history.version(page, *word) > 0);
        let mut writers: Vec<_> = written.map(|word| bench.history.lane_of(word)).collect();
        writers.sort_unstable();
        writers.dedup();
        let owner = (0..THREADS).find(|thread| bench.workers.stretch(*thread).contains(&page));
        assert_eq!(writers, owner.into_iter().collect::<Vec<_>>(), "page {page}");
    }
}

/// Without any time to run, all stores were made before the measured run.
#[test]
fn a_warm_up_is_checked_and_not_measured() {
    let brief = Config { time: Duration::ZERO, read_percent: 0, ..config(2, Pattern::Uniform) };
    let warm = Config { warm_up: Duration::from_millis(20), ..brief };
    let heap = Heap::new(PAGES, Fault::None);
    let outcome = run(&heap, &warm).expect("sound");
    assert_eq!((outcome.tally.loads, outcome.tally.stores), (0, 0));
    assert!(outcome.measured.run < warm.warm_up, "{:?}", outcome.measured.run);
    let lossy = || Heap::new(PAGES, Fault::LosesStores { page: 3, after: PAGES as u64 });
    assert!(run(&lossy(), &brief).is_ok());
    assert!(matches!(run(&lossy(), &warm), Err(Failure::Mismatch(found)) if found.page == 3));
}
