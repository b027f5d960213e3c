//! Streams on memory that goes wrong in a known way: files that are pages on the heap.

use super::super::heap::{Fault, Heap};
use super::*;

const PAGES: u64 = 64;

fn config(read_path: ReadPath) -> Config {
    let layout = Layout { devices: 2, device_pages: PAGES / 2, anon_pages: 0, small_pages: 0 };
    let (warm_up, time) = (Duration::ZERO, Duration::from_millis(50));
    Config { threads: 3, layout, read_path, span: Span::Filling, warm_up, time, seed: 3 }
}

/// Files on the heap, written as they must be.
fn files(fault: Fault) -> Heap {
    let (heap, content) = (Heap::new(PAGES as usize, fault), Content::new(3));
    let mut access = heap.enter();
    for page in 0..PAGES {
        let words = access.page(page, Intent::Write).expect("sound so far");
        let value = |word| word_of(content, kind_of(page), word);
        words.iter().enumerate().for_each(|(word, cell)| cell.store(value(word), Relaxed));
    }
    heap
}

#[test]
fn streams_read_their_files_over_and_over() {
    for read_path in [ReadPath::Cached, ReadPath::Direct] {
        let outcome = run(&files(Fault::None), &config(read_path)).expect("all is as it must be");
        let passes = outcome.passes.expect("a pass of each");
        let bytes: u64 = passes.iter().map(|pass| pass.bytes).sum();
        assert_eq!(passes.len(), 3);
        assert_eq!(outcome.tally.loads, bytes / 4096 * CHECKED_WORDS);
        assert!(bytes > 10 * PAGES * 4096, "{bytes}: more than once");
    }
}

#[test]
fn files_of_a_device_are_its_pages_once() {
    let config = Config { threads: 5, ..config(ReadPath::Cached) };
    let files: Vec<_> = (0..5).map(|thread| file(&config, thread)).collect();
    assert_eq!(files, [0..10, 32..42, 10..21, 42..53, 21..32]);
}

#[test]
fn a_page_of_another_place_is_found() {
    let writes = PAGES;
    for read_path in [ReadPath::Cached, ReadPath::Direct] {
        let heap = files(Fault::WrongPage { page: 40, instead: 41, after: writes });
        match run(&heap, &config(read_path)) {
            Err(Failure::Mismatch(wrong)) => assert_eq!((wrong.page, wrong.seed), (40, 3)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_page_that_cannot_be_had_ends_the_run() {
    let heap = files(Fault::Denies { page: 9, after: PAGES });
    assert!(matches!(run(&heap, &config(ReadPath::Cached)), Err(Failure::Denied(_))));
}
