//! Single pages are collapsed into large ones under a program that loads and stores.

use crate::common::{Paged, Setup, memory};
use highwater_mm::config::KhugepagedConfig;
use highwater_mm::stats::Counter;
use highwater_mm::{Config, Range};
use highwater_uffd::{Delivery, Mapping};
use highwater_units::{LARGE_PAGES, Nanos, Vpn};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const BLOCK: u64 = LARGE_PAGES as u64;
/// Blocks that are collapsed.
const BLOCKS: u64 = 3;
const WORDS: [usize; 3] = [0, 300, 511];

/// Memory of 8 blocks, and a space of 16 blocks, which is faulted in page by page.
fn setup(mapping: Mapping) -> Setup {
    let (frames, pages) = (8 * BLOCK, 16 * BLOCK);
    Setup { frames, pages, region: 1, mapping, delivery: Delivery::Handler }
}

fn paged(mapping: Mapping, pages_to_scan: u32) -> Paged {
    let khugepaged = KhugepagedConfig {
        pages_to_scan,
        scan_sleep: Nanos(1_000_000),
        ..KhugepagedConfig::default()
    };
    let config = Config { large_pages: true, khugepaged, ..Config::default() };
    Paged::with(setup(mapping), config, memory())
}

fn count(paged: &Paged, counter: Counter) -> u64 {
    paged.manager.statistics().get(counter)
}

fn value(page: u64, word: usize) -> u64 {
    1 << 60 | page << 16 | word as u64
}

fn fill(paged: &Paged, pages: impl Iterator<Item = u64>) {
    pages.for_each(|page| {
        WORDS.iter().for_each(|word| paged.store(page, *word, value(page, *word)))
    });
}

#[track_caller]
fn check(paged: &Paged, pages: impl Iterator<Item = u64>) {
    for page in pages {
        for word in WORDS {
            assert_eq!(paged.load(page, word), value(page, word), "word {word} of page {page}");
        }
    }
}

/// Touches all other pages until no page of the first blocks is in memory as a large one.
fn press(paged: &Paged) {
    let others: Vec<u64> = (BLOCKS * BLOCK..paged.pages).collect();
    let space = paged.manager.inspect().space(paged.space);
    let large = || (0..BLOCKS * BLOCK).any(|page| space.entry(Vpn(page)).is_large_resident());
    for _ in 0..50 {
        paged.hammer(&others, 9, 8000);
        if !large() {
            return;
        }
    }
    panic!("large pages stay though nobody uses them");
}

/// If the kernel's huge pages are set to `madvise`, some are used, and dropping some pages removes
/// only those.
fn check_translations(paged: &Paged) {
    let huge = || paged.manager.platform().huge_bytes(paged.space).expect("/proc").pages();
    if !highwater_os::huge::are_on_request() || huge() == 0 {
        highwater_testkit::skip_or_fail("the kernel has no huge pages to give");
        return;
    }
    assert!(huge().is_multiple_of(BLOCK) && huge() <= BLOCKS * BLOCK, "{} pages", huge());
    let dropped = BLOCK + 5;
    paged.manager.discard(paged.space, Range { first: Vpn(dropped), end: Vpn(dropped + 1) });
    assert_eq!(WORDS.map(|word| paged.load(dropped, word)), [0; 3]);
    fill(paged, [dropped].into_iter());
    check(paged, 0..BLOCKS * BLOCK);
    let all = Range { first: Vpn(0), end: Vpn(BLOCKS * BLOCK) };
    assert_eq!(paged.manager.collapse(paged.space, all).large, BLOCKS as usize);
    check(paged, 0..BLOCKS * BLOCK);
}

#[test]
fn collapsed_blocks_go_whole_and_come_back() {
    for mapping in [Mapping::Move, Mapping::Copy] {
        let paged = paged(mapping, 0);
        fill(&paged, (0..BLOCKS * BLOCK).rev());
        assert_eq!(count(&paged, Counter::ThpFaultAlloc), 0, "pages come one by one");
        let all = Range { first: Vpn(0), end: Vpn(BLOCKS * BLOCK) };
        assert_eq!(paged.manager.collapse(paged.space, all).large, BLOCKS as usize, "{mapping:?}");
        let faults = count(&paged, Counter::PgFault);
        check(&paged, 0..BLOCKS * BLOCK);
        assert_eq!(count(&paged, Counter::PgFault), faults, "they are mapped");
        check_translations(&paged);
        press(&paged);
        assert_eq!(count(&paged, Counter::ThpSwpOut), BLOCKS, "{mapping:?}");
        check(&paged, 0..BLOCKS * BLOCK);
        paged.finish();
    }
}

#[test]
fn khugepaged_collapses_under_threads() {
    for mapping in [Mapping::Move, Mapping::Copy] {
        let paged = paged(mapping, BLOCK as u32);
        fill(&paged, 0..BLOCKS * BLOCK);
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in [1, 2] {
                let (paged, end) = (&paged, &end);
                scope.spawn(move || {
                    let pages: Vec<u64> = (0..BLOCKS * BLOCK).collect();
                    while !end.load(SeqCst) {
                        paged.hammer(&pages, thread, 4000);
                    }
                });
            }
            while count(&paged, Counter::KhugepagedCollapsed) < BLOCKS {
                std::thread::sleep(Duration::from_millis(1));
            }
            let others: Vec<u64> = (BLOCKS * BLOCK..paged.pages).collect();
            paged.hammer(&others, 3, 8000);
            end.store(true, SeqCst);
        });
        check(&paged, 0..BLOCKS * BLOCK);
        press(&paged);
        check(&paged, 0..BLOCKS * BLOCK);
        paged.finish();
    }
}
