//! Builds and passes on memory that goes wrong in a known way.

use super::super::heap::{Fault, Heap};
use super::super::streams::word_of;
use super::super::{Access, Intent, Target};
use super::*;
use std::sync::atomic::Ordering::Relaxed;

const LAYOUT: Layout = Layout { builds: 3, file_pages: 40, anon_pages: 24 };
const PAGES: u64 = 3 * 64;

fn config() -> Config {
    let kernel = Share { pages: 60, left_percent: 50 };
    let (interval, warm_up) = (Duration::from_micros(20), Duration::ZERO);
    let work = WORK;
    Config { layout: LAYOUT, memory: 100 * 512, kernel, interval, work, warm_up, seed: 5 }
}

/// Trees on the heap, as they must be.
fn trees(fault: Fault) -> Heap {
    let (heap, content) =
        (Heap::new(PAGES as usize, fault), super::super::content::Content::new(5));
    let mut access = heap.enter();
    for page in 0..LAYOUT.files() {
        let words = access.page(page, Intent::Write).expect("sound so far");
        let value = |word| word_of(content, kind_of(page), word);
        words.iter().enumerate().for_each(|(word, cell)| cell.store(value(word), Relaxed));
    }
    heap
}

#[test]
fn passes_ask_for_most_of_memory_and_all_is_given_back() {
    let heap = trees(Fault::None);
    let outcome = run(&heap, &config()).expect("all is as it must be");
    let passes = outcome.highalloc.expect("three passes");
    let asked: Vec<_> = passes.iter().map(|pass| (pass.attempts, pass.latency.len())).collect();
    assert_eq!(asked, [(95, 95); 3]);
    assert!(passes.iter().all(|pass| (1..95).contains(&pass.successes)), "three of four");
    let rested = &HighallocFigures::of(&passes, &outcome.measured).passes[2];
    assert_eq!(rested.name, "while rested");
    assert!((73.0..77.0).contains(&rested.percent()), "nobody else asked: {rested:?}");
    let (given, out) = heap.runs();
    assert!(given > 400 && out == 0, "{given} and {out}");
    assert!(outcome.tally.loads > 1000 && outcome.tally.stores > 300, "{:?}", outcome.tally);
}

#[test]
fn pages_are_of_one_part_of_the_set() {
    let parts = |build| [LAYOUT.sources(build), LAYOUT.objects(build), LAYOUT.compiler(build)];
    let mut all: Vec<u64> = (0..3).flat_map(parts).flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (0..PAGES).collect::<Vec<_>>());
}

/// A page of sources, of objects, of a compiler.
#[test]
fn a_page_of_another_place_is_found() {
    let files = LAYOUT.files();
    for page in [3, 35, LAYOUT.files() + 2] {
        let heap = trees(Fault::WrongPage { page, instead: page + 1, after: files + 1 });
        match run(&heap, &config()) {
            Err(Failure::Mismatch(wrong)) => assert!([page, page + 1].contains(&wrong.page)),
            other => panic!("{page}: {:?}", other.map(|outcome| outcome.tally.loads)),
        }
    }
}

#[test]
fn a_page_that_cannot_be_had_ends_the_run() {
    let heap = trees(Fault::Denies { page: LAYOUT.files() + 30, after: LAYOUT.files() });
    assert!(matches!(run(&heap, &config()), Err(Failure::Denied(_))));
}

#[test]
fn the_kernel_keeps_its_share_and_forgets_most() {
    let heap = Heap::new(1, Fault::None);
    let config = Config { kernel: Share { pages: 300, left_percent: 10 }, ..config() };
    let mut kernel = Kernel::new(&config, 0);
    (0..500).for_each(|_| kernel.grow(&heap));
    let (_, full) = heap.runs();
    assert!((92..=100).contains(&kernel.pages()), "a third of them: {}", kernel.pages());
    kernel.forget(&heap);
    assert_eq!(heap.runs().1, full / 10);
    kernel.end(&heap);
    assert_eq!((kernel.pages(), heap.runs().1), (0, 0));
}
