//! Single pages are collapsed into large ones while threads use them, and are swapped out and in as
//! large pages.

use crate::common::{self, stay};
use highwater_devices::{FaultKind, Faults};
use highwater_mm::config::KhugepagedConfig;
use highwater_mm::inspect::Page;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Asked, CollapseError, Config, Fault, Manager, Mobility, Range};
use highwater_os::Os;
use highwater_platform::Latency;
use highwater_testkit::Watchdog;
use highwater_testkit::trial::{Pins, Program};
use highwater_units::{Bytes, LARGE_PAGES, Nanos, Order, Pfn, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const BLOCK: u64 = LARGE_PAGES as u64;
/// Frames of the platform.
const FRAMES: u64 = 16 * BLOCK;

/// khugepaged that runs only on request.
const ASKED: KhugepagedConfig = KhugepagedConfig {
    pages_to_scan: 0,
    scan_sleep: Nanos(1_000_000),
    max_ptes_none: 64,
    max_ptes_swap: 64,
    referenced_min: 448,
};

fn manager(khugepaged: KhugepagedConfig, injected: &Arc<Faults>) -> Manager<Os> {
    let device = common::memory(8 * FRAMES, Latency::Synchronous, injected);
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    let config = Config { large_pages: true, khugepaged, ..Config::default() };
    Manager::start(platform, config).expect("threads")
}

fn count(manager: &Manager<Os>, counter: Counter) -> u64 {
    manager.statistics().get(counter)
}

fn value(page: u64, word: usize) -> u64 {
    page << 16 | word as u64 | 1 << 60
}

/// A space whose pages are faulted in one by one in random order, so that their frames are
/// scattered.
fn touched(manager: &Manager<Os>, blocks: u64, pages: impl Fn(u64) -> bool) -> SpaceId {
    let space = manager.add_space(blocks * BLOCK).expect("a space");
    let mut order: Vec<u64> = (0..blocks * BLOCK).filter(|page| pages(*page)).collect();
    let mut random = Prng::new(blocks);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    for page in order {
        let vpn = Vpn(page);
        let within = Range { first: vpn, end: vpn.offset(1) };
        manager.fault(space, Fault { vpn, access: Access::Write, within }).expect("room");
        for word in [0, 300] {
            Pins.store(manager, space, vpn, word, value(page, word)).expect("room");
        }
    }
    space
}

#[track_caller]
fn check(manager: &Manager<Os>, space: SpaceId, pages: impl Iterator<Item = u64>) {
    for page in pages {
        for word in [0, 300] {
            let found = Pins.load(manager, space, Vpn(page), word);
            assert_eq!(found, Ok(value(page, word)), "word {word} of page {page}");
        }
    }
}

fn is_large(manager: &Manager<Os>, space: SpaceId, page: u64) -> bool {
    manager.inspect().space(space).entry(Vpn(page)).is_large_resident()
}

fn whole(blocks: u64) -> Range {
    Range { first: Vpn(0), end: Vpn(blocks * BLOCK) }
}

/// Touches blocks of another space until no page of the first blocks is in memory.
fn press(manager: &Manager<Os>, space: SpaceId, blocks: u64) {
    let other = manager.add_space(4 * FRAMES).expect("a space");
    let resident = || {
        let space = manager.inspect().space(space);
        (0..blocks * BLOCK).any(|page| space.entry(Vpn(page)).is_large_resident())
    };
    for page in 0..4 * FRAMES {
        Pins.store(manager, other, Vpn(page), 0, page + 1).expect("room");
        if page % BLOCK == BLOCK - 1 && !resident() {
            return;
        }
    }
    panic!("four times the memory was used, and large pages of {space:?} stay");
}

/// Touches blocks of another space on all CPUs, as long as any large page of a space is in memory.
/// A page in the LRU batch of an idle CPU is on no list, and would stay.
fn press_on_all_cpus(manager: &Manager<Os>, space: SpaceId, blocks: u64) {
    let other = manager.add_space(4 * FRAMES).expect("a space");
    let resident = || (0..blocks * BLOCK).any(|page| is_large(manager, space, page));
    for round in 0..16 * FRAMES / BLOCK {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for page in (0..BLOCK).map(|page| (round * 4 + thread) * BLOCK + page) {
                        let page = page % (4 * FRAMES);
                        Pins.store(manager, other, Vpn(page), 0, page + 1).expect("room");
                    }
                });
            }
        });
        if !resident() {
            return;
        }
    }
    panic!("64 times the memory was used, and large pages of {space:?} stay");
}

fn asked(large: usize, failed: CollapseError) -> Asked {
    Asked { large, failed: Some(failed) }
}

#[test]
fn a_collapsed_page_is_written_and_read_in_one_transfer() {
    let mut manager = manager(ASKED, &Arc::default());
    stay();
    let space = touched(&manager, 3, |_| true);
    assert_eq!(count(&manager, Counter::ThpFaultAlloc), 0, "pages came one by one");
    assert_eq!(manager.collapse(space, whole(3)).large, 3);
    assert_eq!(count(&manager, Counter::KhugepagedCollapsed), 3);
    assert_eq!(count(&manager, Counter::ThpCollapseAlloc), 3);
    assert_eq!(manager.collapse(space, whole(3)).large, 3, "they are large already");
    assert_eq!(count(&manager, Counter::KhugepagedCollapsed), 3);
    check(&manager, space, 0..3 * BLOCK);
    press(&manager, space, 3);
    let [written, writes] =
        [Counter::PswpOut, Counter::SwapOutIos].map(|counter| count(&manager, counter));
    assert!(written >= 3 * BLOCK);
    assert_eq!(written, writes * BLOCK, "512 pages with each write");
    assert_eq!(count(&manager, Counter::ThpSplitPage), 0);
    let reads = count(&manager, Counter::SwapInIos);
    check(&manager, space, 0..3 * BLOCK);
    assert_eq!(count(&manager, Counter::SwapInIos) - reads, 3);
    manager.stop_kswapd();
    manager.verify(&[]);
}

#[test]
fn absent_pages_become_zeros_and_swapped_ones_are_read() {
    let injected: Arc<Faults> = Arc::default();
    let mut manager = manager(ASKED, &injected);
    // One page of the second block is in memory, and no page of the third.
    let there = |page: u64| page < BLOCK && !page.is_multiple_of(5) || page == BLOCK + 7;
    let space = touched(&manager, 3, there);
    let other = manager.add_space(2 * FRAMES).expect("a space");
    for page in 0..2 * FRAMES {
        let within = Range { first: Vpn(page), end: Vpn(page + 1) };
        let fault = Fault { vpn: Vpn(page), access: Access::Write, within };
        manager.fault(other, fault).expect("room");
    }
    let used = |manager: &Manager<Os>| manager.statistics().get(Counter::SlotsUsed);
    let swapped = used(&manager);
    manager.discard(other, Range { first: Vpn(0), end: Vpn(2 * FRAMES) });
    assert!(swapped > BLOCK && used(&manager) > 0, "pages of the first block are swapped");
    injected.set(FaultKind::Read, common::percent(100));
    assert_eq!(manager.collapse(space, whole(1)), asked(0, CollapseError::Busy));
    assert_eq!(manager.collapse(space, whole(3)).large, 0, "nothing can be read");
    injected.end();
    assert_eq!(manager.collapse(space, whole(3)), asked(2, CollapseError::Nothing));
    // Pages of the other space that kswapd is writing keep their slots until the writes end.
    manager.stop_kswapd();
    assert_eq!(used(&manager), 0, "large pages have no slots");
    assert_eq!(count(&manager, Counter::KhugepagedCollapsed), 2);
    assert!(!is_large(&manager, space, 2 * BLOCK));
    check(&manager, space, (0..2 * BLOCK).filter(|page| there(*page)));
    for page in (0..3 * BLOCK).filter(|page| !there(*page)) {
        assert_eq!(Pins.load(&manager, space, Vpn(page), 300), Ok(0), "page {page}");
    }
    manager.verify(&[]);
}

#[test]
fn ranges_that_cannot_be_collapsed_are_refused() {
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![]).expect("an arena");
    let manager = Manager::start(platform, Config::default()).expect("threads");
    let space = touched(&manager, 1, |_| true);
    assert_eq!(manager.collapse(space, whole(1)), asked(0, CollapseError::Unsupported));
    let injected = Arc::default();
    let manager = self::manager(ASKED, &injected);
    let space = touched(&manager, 1, |_| true);
    let blocks = || manager.alloc_run(Order::LARGE, Mobility::Unmovable);
    let taken: Vec<Pfn> = std::iter::from_fn(blocks).collect();
    assert_eq!(manager.collapse(space, whole(1)), asked(0, CollapseError::NoMemory));
    taken.into_iter().for_each(|first| manager.free_run(first));
    assert_eq!(manager.collapse(space, whole(1)), Asked { large: 1, failed: None });
    check(&manager, space, 0..BLOCK);
}

#[test]
fn a_pinned_page_keeps_its_block_from_being_collapsed() {
    let mut manager = manager(ASKED, &Arc::default());
    let space = touched(&manager, 2, |_| true);
    let pin = manager.pin(space, Vpn(BLOCK + 99), Access::Read).expect("it is there");
    assert_eq!(manager.collapse(space, whole(2)), asked(1, CollapseError::Busy));
    assert!(is_large(&manager, space, 0) && !is_large(&manager, space, BLOCK));
    assert_eq!(count(&manager, Counter::ThpCollapseAlloc), 2, "the second block was given back");
    drop(pin);
    // A range that ends or begins inside a block is refused, too.
    let part = Range { first: Vpn(1), end: Vpn(2 * BLOCK - 1) };
    assert_eq!(manager.collapse(space, part), Asked { large: 0, failed: None });
    assert_eq!(manager.collapse(space, whole(2)).large, 2);
    check(&manager, space, 0..2 * BLOCK);
    manager.stop_kswapd();
    manager.verify(&[]);
}

/// A thread of a program: its word of each page must be what it stored last.
fn hammer(manager: &Manager<Os>, space: SpaceId, thread: usize, pages: u64, end: &AtomicBool) {
    let (word, mut random) = (1 + thread, Prng::new(thread as u64));
    let mut known = vec![0; pages as usize];
    for step in 1.. {
        let page = random.below(pages);
        let found = Pins.load(manager, space, Vpn(page), word);
        assert_eq!(found, Ok(known[page as usize]), "page {page}, thread {thread}, step {step}");
        if random.percent(50) {
            known[page as usize] = step << 32 | page;
            Pins.store(manager, space, Vpn(page), word, step << 32 | page).expect("room");
        }
        if end.load(SeqCst) {
            break;
        }
    }
    for (page, known) in known.into_iter().enumerate() {
        assert_eq!(Pins.load(manager, space, Vpn(page as u64), word), Ok(known), "page {page}");
    }
}

#[test]
fn khugepaged_collapses_under_threads_and_memory_pressure_loses_nothing() {
    const BLOCKS: u64 = 6;
    let khugepaged = KhugepagedConfig { pages_to_scan: 2 * BLOCK as u32, ..ASKED };
    let mut manager = manager(khugepaged, &Arc::default());
    let watchdog = Watchdog::new("khugepaged", Duration::from_secs(40));
    let space = touched(&manager, BLOCKS, |_| true);
    let other = manager.add_space(2 * FRAMES).expect("a space");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (manager, end) = (&manager, &end);
        for thread in 0..2 {
            scope.spawn(move || hammer(manager, space, thread, BLOCKS * BLOCK, end));
        }
        while count(manager, Counter::KhugepagedCollapsed) < BLOCKS {
            std::thread::sleep(Duration::from_millis(1));
        }
        watchdog.beat();
        // Pages that are faulted in one by one evict large pages, which are swapped in again
        // meanwhile.
        let mut random = Prng::new(5);
        for _ in 0..3 * FRAMES {
            let page = random.below(2 * FRAMES);
            let within = Range { first: Vpn(page), end: Vpn(page + 1) };
            let fault = Fault { vpn: Vpn(page), access: Access::Write, within };
            manager.fault(other, fault).expect("room");
        }
        watchdog.beat();
        end.store(true, SeqCst);
    });
    assert!(count(&manager, Counter::KhugepagedFullScans) > 0);
    // Otherwise khugepaged makes large pages again of the evicted pages.
    manager.stop_kswapd();
    press_on_all_cpus(&manager, space, BLOCKS);
    let gone = [Counter::ThpSwpOut, Counter::ThpSplitPage].map(|counter| count(&manager, counter));
    assert!(gone.iter().sum::<u64>() > 0, "large pages went, or came apart");
    check(&manager, space, 0..BLOCKS * BLOCK);
    manager.verify(&[]);
}

/// The chosen pages of a space that are in memory.
fn resident(manager: &Manager<Os>, space: SpaceId, pages: impl Iterator<Item = u64>) -> usize {
    let space = manager.inspect().space(space);
    pages.filter(|page| matches!(space.entry(Vpn(*page)).page(), Page::Resident(_))).count()
}

#[test]
fn hot_pages_of_cold_blocks_stay_single() {
    stay();
    const BLOCKS: u64 = 3;
    let mut manager = manager(ASKED, &Arc::default());
    let space = touched(&manager, BLOCKS, |_| true);
    assert_eq!(manager.collapse(space, whole(BLOCKS)).large, BLOCKS as usize);
    let is_hot = |page: &u64| page % BLOCK < 20;
    let other = manager.add_space(4 * FRAMES).expect("a space");
    // The thread that uses the pages reclaims them.
    manager.stop_kswapd();
    for page in 0..4 * FRAMES {
        let within = Range { first: Vpn(page), end: Vpn(page + 1) };
        let fault = Fault { vpn: Vpn(page), access: Access::Write, within };
        manager.fault(other, fault).expect("room");
        check(&manager, space, (0..BLOCKS * BLOCK).filter(is_hot));
    }
    assert!(count(&manager, Counter::ThpColdSplit) > 0);
    let all = || 0..BLOCKS * BLOCK;
    let apart = |page: &u64| !is_large(&manager, space, *page);
    assert!(all().any(|page| apart(&page)), "a block that was split is not put together unasked");
    let hot = resident(&manager, space, all().filter(is_hot));
    let cold = resident(&manager, space, all().filter(|page| apart(page) && !is_hot(page)));
    assert!(hot == 60 && cold == 0, "{hot} hot pages and {cold} cold ones are in memory");
    check(&manager, space, all());
    manager.verify(&[]);
}

#[test]
fn pages_of_zeros_are_dropped_and_not_written() {
    let mut manager = manager(ASKED, &Arc::default());
    stay();
    let space = manager.add_space(2 * BLOCK).expect("a space");
    // The largest allowed number of zeros, and one more.
    let written = |page: &u64| page % BLOCK >= 64 + page / BLOCK;
    for page in (0..2 * BLOCK).filter(written) {
        Pins.store(&manager, space, Vpn(page), 300, value(page, 300)).expect("room");
        Pins.store(&manager, space, Vpn(page), 0, value(page, 0)).expect("room");
    }
    assert_eq!(count(&manager, Counter::ThpFaultAlloc), 2, "they came as two");
    press(&manager, space, 2);
    assert_eq!(count(&manager, Counter::ThpUnderusedSplit), 1);
    let entry = |page| manager.inspect().space(space).entry(Vpn(page)).page();
    assert!((0..BLOCK).all(|page| matches!(entry(page), Page::Swapped(_))), "it went whole");
    for page in (BLOCK..2 * BLOCK).filter(|page| !written(page)) {
        assert_eq!(entry(page), Page::Absent, "page {page}");
    }
    check(&manager, space, (0..2 * BLOCK).filter(written));
    for page in (0..2 * BLOCK).filter(|page| !written(page)) {
        assert_eq!(Pins.load(&manager, space, Vpn(page), 300), Ok(0), "page {page}");
    }
    manager.stop_kswapd();
    manager.verify(&[]);
}
