//! Passes are whole, and the checker finds their errors.

use super::*;
use crate::workload::Denied;
use crate::workload::content::Mismatch;
use crate::workload::heap::{Fault, Heap};

const PAGES: usize = 64;
const KINDS: [Kind; 4] = [
    Kind::WriteSequential,
    Kind::WriteRandom,
    Kind::SwapIn(Pattern::Sequential),
    Kind::SwapIn(Pattern::Uniform),
];

fn run_with(kind: Kind, threads: usize, fault: Fault) -> Result<Outcome, Failure> {
    run(&Heap::new(PAGES, fault), &Config { kind, threads, time: None, seed: 11 })
}

#[track_caller]
fn mismatch(kind: Kind, fault: Fault) -> Mismatch {
    match run_with(kind, 2, fault) {
        Err(Failure::Mismatch(mismatch)) => mismatch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pass_is_as_many_accesses_as_a_part_has_words() {
    let words = (PAGES * WORDS) as u64;
    for threads in [1, 4] {
        for (kind, loads, stores) in [
            (Kind::WriteSequential, 0, words),
            (Kind::WriteRandom, 0, words),
            (Kind::SwapIn(Pattern::Sequential), words / 2, 0),
            (Kind::SwapIn(Pattern::Uniform), words, 0),
        ] {
            let outcome = run_with(kind, threads, Fault::None).expect("sound");
            assert_eq!((outcome.tally.loads, outcome.tally.stores), (loads, stores), "{kind:?}");
            let passes = outcome.passes.expect("a pass for each task");
            let bytes: Vec<u64> = passes.iter().map(|pass| pass.bytes).collect();
            assert_eq!(bytes, vec![(loads + stores) * 8 / threads as u64; threads]);
        }
    }
}

/// The share of words that as many random draws leave out is 1/e.
#[test]
fn random_writes_leave_words_out() {
    let heap = Heap::new(PAGES, Fault::None);
    let config = Config { kind: Kind::WriteRandom, threads: 2, time: None, seed: 11 };
    run(&heap, &config).expect("sound");
    let mut access = heap.enter();
    let mut zeros = 0;
    for page in 0..PAGES as u64 {
        let words = access.page(page, Intent::Read).expect("on the heap");
        zeros += words.iter().filter(|word| word.load(Relaxed) == 0).count();
    }
    let share = zeros as f64 / (PAGES * WORDS) as f64;
    assert!((0.35..0.39).contains(&share), "{share}");
}

#[test]
fn a_pass_ends_when_time_is_up() {
    let heap = Heap::new(PAGES, Fault::None);
    for kind in KINDS {
        let config = Config { kind, threads: 2, time: Some(Duration::ZERO), seed: 11 };
        let outcome = run(&heap, &config).expect("sound");
        assert_eq!((outcome.tally.loads, outcome.tally.stores), (0, 0), "{kind:?}");
    }
}

#[test]
fn a_lost_write_is_found_by_the_sweep() {
    let found = mismatch(Kind::WriteSequential, Fault::LosesStores { page: 9, after: 0 });
    assert_eq!((found.page, found.word, found.version, found.found), (9, 0, Some(0), 0));
    let found = mismatch(Kind::WriteRandom, Fault::LosesStores { page: 9, after: 10_000 });
    assert_eq!((found.page, found.version, found.found), (9, Some(0), 0));
}

#[test]
fn a_write_that_nobody_made_is_found() {
    let config =
        Config { kind: Kind::WriteRandom, threads: 1, time: Some(Duration::ZERO), seed: 11 };
    let heap = Heap::new(PAGES, Fault::None);
    let mut access = &heap;
    access.page(10, Intent::Write).expect("on the heap")[5].store(77, Relaxed);
    match run(&heap, &config) {
        Err(Failure::Mismatch(found)) => {
            assert_eq!((found.page, found.word, found.version), (10, 5, None));
            assert_eq!((found.expected, found.found), (0, 77));
        }
        other => panic!("{other:?}"),
    }
}

/// The fill takes 64 accesses, and evicting takes 32 more: only then is the page another one.
#[test]
fn a_wrong_page_is_found_as_it_is_read() {
    for pattern in [Pattern::Sequential, Pattern::Uniform] {
        let fault = Fault::WrongPage { page: 9, instead: 10, after: 96 };
        let found = mismatch(Kind::SwapIn(pattern), fault);
        assert_eq!((found.page, found.found_version), (9, None));
    }
}

#[test]
fn a_denied_page_ends_all_tasks() {
    for kind in KINDS {
        let failure = run_with(kind, 4, Fault::Denies { page: 3, after: 0 }).expect_err("denied");
        assert_eq!(failure, Failure::Denied(Denied("gone".into())));
    }
}
