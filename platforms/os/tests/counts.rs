//! Counts of the manager's work for given sequences of accesses: transfers, pages scanned, pages
//! dropped. On one CPU and without kswapd, every count of one thread repeats exactly.

use crate::common::{self, stay};
use highwater_devices::Faults;
use highwater_mm::config::history::{History, ReclaimHistory};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::{Access, Config, Manager, Range};
use highwater_mm::{lock_class, phase};
use highwater_os::Os;
use highwater_platform::{Latency, Memory, Phase};
use highwater_testkit::Watchdog;
use highwater_units::{Bytes, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::time::Duration;

const FRAMES: u64 = 2048;
const PAGES: u64 = 4 * FRAMES;
const SPACE: SpaceId = SpaceId(0);

/// Whether kswapd runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kswapd {
    Runs,
    Stopped,
}

fn manager(latency: Latency, kswapd: Kswapd) -> Manager<Os> {
    let device = common::memory(4 * PAGES, latency, &Arc::new(Faults::default()));
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    // Whether a thread evicts for kswapd depends on idle CPUs, and on the clock.
    let reclaim = ReclaimHistory { kswapd_yields: false, ..ReclaimHistory::default() };
    let history = History { reclaim, ..History::default() };
    let config = Config { history, ..Config::default() };
    let mut manager = Manager::start(platform, config).expect("threads");
    if kswapd == Kswapd::Stopped {
        manager.stop_kswapd();
    }
    assert_eq!(manager.add_space(PAGES).expect("a space"), SPACE);
    manager
}

/// Touches pages in order; a page's first word is its number plus one.
fn pass(manager: &Manager<Os>, pages: impl Iterator<Item = u64>, access: Access) {
    for page in pages {
        let pin = manager.pin(SPACE, Vpn(page), access).expect("room for all");
        match access {
            Access::Read => assert_eq!(manager.platform().load(pin.pfn(), 0), page + 1),
            Access::Write => manager.platform().store(pin.pfn(), 0, page + 1),
        }
    }
}

/// The counts between two snapshots, without times.
fn counted(before: &Snapshot, after: &Snapshot) -> Vec<(&'static str, u64)> {
    let timeless =
        |counter: &Counter| !counter.name().ends_with("_ns") && !counter.name().starts_with("psi_");
    let of = |c: Counter| (c.name(), after.get(c).wrapping_sub(before.get(c)));
    Counter::ALL.into_iter().filter(timeless).map(of).collect()
}

fn growth(before: &Snapshot, after: &Snapshot, counter: Counter) -> u64 {
    after.get(counter) - before.get(counter)
}

/// Writes all pages, reads all twice, then reads and writes random ones.
fn history(latency: Latency) -> Vec<Vec<(&'static str, u64)>> {
    let manager = manager(latency, Kswapd::Stopped);
    let mut random = Prng::new(4);
    let mut history = Vec::new();
    for round in 0..4 {
        let before = manager.statistics();
        match round {
            0 => pass(&manager, 0..PAGES, Access::Write),
            1 | 2 => pass(&manager, 0..PAGES, Access::Read),
            _ => (0..4 * PAGES).for_each(|_| {
                let access = if random.percent(30) { Access::Write } else { Access::Read };
                pass(&manager, std::iter::once(random.below(PAGES)), access);
            }),
        }
        history.push(counted(&before, &manager.statistics()));
    }
    manager.verify(&[]);
    history
}

#[test]
fn every_count_repeats_exactly() {
    let _watchdog = Watchdog::new("repeat", Duration::from_secs(60));
    stay();
    for latency in [Latency::Synchronous, Latency::Asynchronous] {
        assert_eq!(history(latency), history(latency));
    }
}

/// A transfer has 16 pages at best, and fewer if kswapd has just isolated or freed some.
#[test]
fn a_sequential_pass_takes_a_transfer_for_sixteen_pages() {
    let _watchdog = Watchdog::new("sequential", Duration::from_secs(60));
    let manager = manager(Latency::Asynchronous, Kswapd::Runs);
    let start = manager.statistics();
    pass(&manager, 0..PAGES, Access::Write);
    let written = manager.statistics();
    pass(&manager, 0..PAGES, Access::Read);
    let read = manager.statistics();
    for (before, after, pages, ios) in [
        (&start, &written, Counter::PswpOut, Counter::SwapOutIos),
        (&written, &read, Counter::PswpIn, Counter::SwapInIos),
    ] {
        let (pages, ios) = (growth(before, after, pages), growth(before, after, ios));
        assert!(pages >= PAGES - FRAMES, "{pages} pages");
        assert!(ios * 8 <= pages, "{ios} transfers for {pages} pages");
    }
    let faults = growth(&written, &read, Counter::PgFault);
    assert!(faults * 8 <= PAGES, "{faults} faults for {PAGES} pages");
}

#[test]
fn clean_pages_are_dropped_without_a_write() {
    let _watchdog = Watchdog::new("clean", Duration::from_secs(60));
    stay();
    let manager = manager(Latency::Asynchronous, Kswapd::Stopped);
    pass(&manager, 0..PAGES, Access::Write);
    pass(&manager, 0..PAGES, Access::Read);
    let before = manager.statistics();
    pass(&manager, 0..PAGES, Access::Read);
    let after = manager.statistics();
    assert_eq!(growth(&before, &after, Counter::PswpOut), 0, "nothing changed");
    let (dropped, read) = (Counter::PgDropClean, Counter::PswpIn);
    let [dropped, read] = [dropped, read].map(|counter| growth(&before, &after, counter));
    assert!(read >= PAGES - FRAMES && dropped + FRAMES >= read, "{dropped} dropped, {read} read");
}

/// Pages used once are scanned once: the accessed bit is cleared on the way to the inactive list,
/// which does not count as a scan, and a scan at the end of that list evicts the page.
#[test]
fn reclaim_scans_about_a_page_for_each_it_frees() {
    let _watchdog = Watchdog::new("scan", Duration::from_secs(60));
    stay();
    let manager = manager(Latency::Synchronous, Kswapd::Stopped);
    pass(&manager, 0..PAGES, Access::Write);
    let now = manager.statistics();
    let (scanned, freed) = (now.get(Counter::PgScanDirect), now.get(Counter::PgStealDirect));
    assert!(freed >= PAGES - FRAMES, "{freed} freed");
    assert!(scanned <= freed + freed / 8, "{scanned} scanned for {freed} freed");
    assert_eq!(now.get(Counter::PgScanKswapd), 0, "kswapd is stopped");
}

/// Each lock is taken in a phase that its thread entered before.
#[test]
fn locks_are_taken_in_the_phases_they_belong_to() {
    let _watchdog = Watchdog::new("phases", Duration::from_secs(60));
    stay();
    let manager = manager(Latency::Synchronous, Kswapd::Stopped);
    let every_third = (0..PAGES).step_by(3);
    pass(&manager, 0..PAGES, Access::Write);
    pass(&manager, every_third, Access::Write);
    manager.discard(SPACE, Range { first: Vpn(0), end: Vpn(PAGES) });
    let locks = manager.lock_statistics();
    for (class, phases) in [
        (lock_class::SWAP_CPU, &[phase::SWAP_OUT][..]),
        // A fault reads the swap cache without the lock.
        (lock_class::SWAP_CLUSTER, &[phase::SWAP_OUT, phase::SWAP_IN, phase::RANGE]),
        (lock_class::PER_CPU_FRAMES, &[phase::ALLOC]),
        (lock_class::ZONE, &[phase::ALLOC]),
        (lock_class::LRU_BATCH, &[phase::FAULT]),
        (lock_class::LRU, &[phase::FAULT, phase::RECLAIM, phase::RANGE]),
    ] {
        let taken = |phase: &&Phase| locks.get(class, phase).acquisitions > 0;
        let found: Vec<&Phase> = phase::ALL.into_iter().filter(taken).collect();
        assert_eq!(found, phases, "{class:?}");
    }
}

/// `discard_swapped` reads nothing, and resident pages stay.
#[test]
fn swapped_pages_are_dropped_and_resident_ones_stay() {
    let _watchdog = Watchdog::new("discard_swapped", Duration::from_secs(60));
    stay();
    let manager = manager(Latency::Synchronous, Kswapd::Stopped);
    pass(&manager, 0..PAGES, Access::Write);
    let before = manager.statistics();
    let resident = before.get(Counter::Resident);
    let all = Range { first: Vpn(0), end: Vpn(PAGES) };
    assert_eq!(manager.discard_swapped(SPACE, all), PAGES - resident);
    assert_eq!(manager.discard_swapped(SPACE, all), 0, "none is left");
    manager.verify(&[]);
    let after = manager.statistics();
    assert_eq!(growth(&before, &after, Counter::PgDiscard), PAGES - resident);
    assert_eq!((after.get(Counter::SlotsUsed), after.get(Counter::Resident)), (0, resident));
    let mut kept = 0;
    // The newest first: resident pages are read before others need their frames.
    for page in (0..PAGES).rev().take(FRAMES as usize / 2) {
        let pin = manager.pin(SPACE, Vpn(page), Access::Read).expect("room");
        assert_eq!(manager.platform().load(pin.pfn(), 0), page + 1);
        kept += 1;
    }
    assert!(kept <= resident, "the newest half are in memory");
    for page in 0..FRAMES / 2 {
        let pin = manager.pin(SPACE, Vpn(page), Access::Read).expect("room");
        assert_eq!(manager.platform().load(pin.pfn(), 0), 0, "page {page} reads as zeros");
    }
    assert_eq!(growth(&before, &manager.statistics(), Counter::PswpIn), 0, "nothing is read");
}

#[test]
fn populated_pages_need_no_fault_and_push_none_out() {
    let _watchdog = Watchdog::new("populate", Duration::from_secs(60));
    let manager = manager(Latency::Synchronous, Kswapd::Stopped);
    pass(&manager, 3..4, Access::Write);
    let before = manager.statistics();
    manager.populate(SPACE, Range { first: Vpn(0), end: Vpn(100) });
    pass(&manager, 3..4, Access::Read);
    for page in (0..100).filter(|page| *page != 3) {
        let pin = manager.pin(SPACE, Vpn(page), Access::Read).expect("it is there");
        assert_eq!(manager.platform().load(pin.pfn(), 0), 0, "page {page} reads as zeros");
    }
    pass(&manager, 0..100, Access::Write);
    let used = manager.statistics();
    let grown = [Counter::PgZero, Counter::PgFault].map(|counter| growth(&before, &used, counter));
    assert_eq!(grown, [99, 0]);
    // More than memory: only as many pages are populated as fit above the watermarks.
    manager.populate(SPACE, Range { first: Vpn(0), end: Vpn(PAGES) });
    let full = manager.statistics();
    assert!((FRAMES / 2..FRAMES).contains(&full.get(Counter::PgZero)));
    let moved = [Counter::PswpOut, Counter::PgScanDirect, Counter::AllocStall];
    assert_eq!(moved.map(|counter| growth(&used, &full, counter)), [0; 3]);
    manager.verify(&[]);
}
