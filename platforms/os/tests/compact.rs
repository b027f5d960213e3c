//! Compaction: memory in pieces becomes blocks, in each of the ways that there were, and nothing is
//! lost on the way.

mod common;

use common::Trouble;
use highwater_mm::compact::{self, Mode, Outcome};
use highwater_mm::config::Compact;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::trial::{Pins, Program};
use highwater_mm::zone::{Contention, Hold, Mobility, Wanted};
use highwater_mm::{Config, Manager, Range};
use highwater_os::Os;
use highwater_platform::Latency;
use highwater_units::{Bytes, Order, Pfn, SpaceId, Vpn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames of the platform: 32 pageblocks.
const FRAMES: u64 = 32 * 512;
/// Pages that are used at first: no large block is left.
const USED: u64 = FRAMES - 400;

/// A manager, without threads, whose memory is in pieces: of each `of` pages one is kept, the
/// others are dropped.
fn in_pieces(compact: Compact, of: u64) -> (Manager<Os>, SpaceId) {
    let (mut manager, space) = in_pieces_with_threads(compact, of);
    manager.stop_kswapd();
    (manager, space)
}

fn in_pieces_with_threads(compact: Compact, of: u64) -> (Manager<Os>, SpaceId) {
    let trouble = Arc::new(Trouble::default());
    let devices = vec![common::memory(4 * FRAMES, Latency::Synchronous, &trouble)];
    let platform = Os::new(Bytes::of_pages(FRAMES), devices).expect("an arena");
    let config =
        Config { compact, min_free: Some(64), watermark_scale: Some(10), ..Config::default() };
    let manager = Manager::start(platform, config).expect("threads");
    let space = manager.add_space(USED).expect("a space");
    (0..USED).for_each(|vpn| Pins.store(&manager, space, Vpn(vpn), 1, vpn + 1).expect("room"));
    for vpn in (0..USED).filter(|vpn| vpn % of != 0) {
        manager.discard(space, Range { first: Vpn(vpn), end: Vpn(vpn + 1) });
    }
    manager.machine().nodes[0].zone.drain();
    assert!(!manager.machine().nodes[0].zone.has_block(Order::LARGE, Mobility::Movable));
    (manager, space)
}

fn check(manager: &Manager<Os>, space: SpaceId, of: u64) {
    for vpn in (0..USED).step_by(of as usize) {
        assert_eq!(Pins.load(manager, space, Vpn(vpn), 1), Ok(vpn + 1), "page {vpn}");
    }
    manager.verify(&[]);
}

const SCANNERS: [Compact; 5] = [
    Compact::Vanilla,
    Compact::LessLock,
    Compact::Revert,
    Compact::CacheFail,
    Compact::SkipUseless,
];

/// Large runs, until there is none to be had.
fn take_all(manager: &Manager<Os>) -> usize {
    let take = || manager.alloc_run(Order::LARGE, Mobility::Unmovable);
    std::iter::from_fn(take).take(FRAMES as usize / 512).count()
}

#[test]
fn pages_make_way_for_large_runs() {
    for compact in [&SCANNERS[..], &[Compact::Fast]].concat() {
        let (manager, space) = in_pieces(compact, 4);
        let taken = take_all(&manager);
        // A quarter of memory is in use, part of which is swapped out by and by.
        assert!(taken >= 20, "{compact:?}: {taken} runs");
        let counted = |counter| manager.statistics().get(counter);
        assert!(counted(Counter::CompactSuccess) > 0);
        let moved = counted(Counter::PgMigrateSuccess);
        assert!(moved >= 2000, "{compact:?}: {moved} pages moved");
        assert!(counted(Counter::CompactMigrateIsolated) >= moved);
        assert!(counted(Counter::CompactFreeIsolated) >= moved);
        check(&manager, space, 4);
    }
}

#[test]
fn without_compaction_runs_are_had_by_eviction_alone() {
    let (manager, space) = in_pieces(Compact::Off, 4);
    take_all(&manager);
    let counted = |counter| manager.statistics().get(counter);
    assert_eq!(counted(Counter::CompactStall) + counted(Counter::CompactMigrateScanned), 0);
    check(&manager, space, 4);
}

/// One frame of each pageblock is taken by who cannot move it; returns what requests for large runs
/// did then, all of which fail: frames scanned for pages, and for free frames.
fn scanned_in_vain(compact: Compact) -> [u64; 2] {
    let (manager, space) = in_pieces(compact, 4);
    let zone = &manager.machine().nodes[0].zone;
    let mut runs = Vec::new();
    for pageblock in 0..zone.pageblocks() {
        let frames = zone.frames_of(pageblock);
        // By address, where the zone has a free frame to be had: as if taken there by chance.
        let free = frames.clone().find(|pfn| zone.free_at(Pfn(*pfn)) == Some(Order(0)));
        let free = free.unwrap_or_else(|| panic!("a free frame in {frames:?}"));
        let how = (Hold::Late, Contention::Waits);
        zone.isolate_free(manager.platform(), free..free + 1, how, 0, |pfn, _| {
            runs.push(pfn);
            Wanted::More
        });
    }
    for _ in 0..40 {
        assert_eq!(manager.alloc_run(Order::LARGE, Mobility::Movable), None, "{compact:?}");
    }
    let counted = |counter| manager.statistics().get(counter);
    assert_eq!(counted(Counter::CompactSuccess), 0);
    assert!(counted(Counter::CompactStall) < 40, "the longer it fails, the less often it tries");
    let scanned = [Counter::CompactMigrateScanned, Counter::CompactFreeScanned].map(counted);
    zone.free_for_all(&runs);
    check(&manager, space, 4);
    scanned
}

#[test]
fn what_is_known_to_be_useless_is_not_scanned_again() {
    let [_, lesslock, revert, cachefail, skipuseless] = SCANNERS.map(scanned_in_vain);
    assert!(lesslock[0] > 60_000, "all of memory, again and again: {lesslock:?}");
    assert!(cachefail[0] * 3 < revert[0] && cachefail[1] < revert[1], "{cachefail:?} {revert:?}");
    assert!(skipuseless <= cachefail, "{skipuseless:?} after {cachefail:?}");
}

#[test]
fn a_lock_that_others_have_ends_what_may_not_wait() {
    let (manager, space) = in_pieces(Compact::SkipUseless, 4);
    let (machine, before) = (manager.machine(), manager.statistics());
    let of = |mode| compact::direct(machine, Order::LARGE, Mobility::Movable, mode);
    let lane = machine.nodes[0].lru.hold_lane(Pfn(0), Mode::Sync);
    assert_eq!(of(Mode::Async), Outcome::Contended);
    drop(lane);
    let isolated = |now: &Snapshot| now.get(Counter::CompactIsolated);
    assert_eq!(isolated(&manager.statistics()), isolated(&before));
    assert_eq!(of(Mode::Async), Outcome::Partial);
    assert!(machine.nodes[0].zone.has_block(Order::LARGE, Mobility::Movable));
    check(&manager, space, 4);
}

#[test]
fn fast_moves_no_more_than_scanners_do() {
    let [skipuseless, fast] = [Compact::SkipUseless, Compact::Fast].map(|compact| {
        let (manager, space) = in_pieces(compact, 4);
        let taken = (0..16).filter_map(|_| manager.alloc_run(Order::LARGE, Mobility::Unmovable));
        assert_eq!(taken.count(), 16, "{compact:?}");
        let counted = |counter| manager.statistics().get(counter);
        println!(
            "{compact:?}: {} {} scanned, {} {} isolated, {} captured",
            counted(Counter::CompactMigrateScanned),
            counted(Counter::CompactFreeScanned),
            counted(Counter::CompactMigrateIsolated),
            counted(Counter::CompactFreeIsolated),
            counted(Counter::CompactCapture),
        );
        assert_eq!(counted(Counter::CompactCapture), if compact == Compact::Fast { 16 } else { 0 });
        assert_eq!(counted(Counter::AllocStall), 0, "nothing was reclaimed for it");
        check(&manager, space, 4);
        [Counter::CompactMigrateIsolated, Counter::CompactFreeScanned].map(counted)
    });
    // Nowhere is a block easier to be had than elsewhere, and all that is scanned is useful: the
    // scanners' best case.
    assert!(fast[0] <= skipuseless[0], "{fast:?} {skipuseless:?}");
    assert!(fast[1] < 2 * skipuseless[1], "{fast:?} {skipuseless:?}");
}

#[test]
fn kcompactd_has_blocks_ready_once_somebody_asked() {
    let (mut manager, space) = in_pieces_with_threads(Compact::Fast, 4);
    let score = |manager: &Manager<Os>| manager.blocks()[0].unusable(Order::LARGE);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(score(&manager), 1000, "nobody asked");
    let first = manager.alloc_run(Order::LARGE, Mobility::Unmovable).expect("it is made");
    let deadline = Instant::now() + Duration::from_secs(30);
    // It goes on to 80 %, unless a lock is contended, and begins again above 90.
    while score(&manager) > 900 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    manager.stop_kswapd();
    assert!(score(&manager) <= 900, "{}", manager.blocks()[0]);
    let counted = |counter| manager.statistics().get(counter);
    assert!(counted(Counter::CompactDaemonWake) > 0);
    assert!(counted(Counter::CompactDaemonMigrateScanned) > 0);
    // The first request wakes kcompactd, which may have its block ready before it compacts itself.
    assert!(counted(Counter::CompactStall) <= 1);
    manager.free_run(first);
    check(&manager, space, 4);
}
