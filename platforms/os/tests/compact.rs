//! Compaction creates large free blocks in fragmented memory, by the current method and by those of
//! earlier kernels, and loses no contents.

use crate::common;
use highwater_devices::Faults;
use highwater_mm::config::history::{CompactHistory, History};
use highwater_mm::inspect::{Contention, Mode, Outcome, Wanted, compact};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::{Access, Config, FaultError, Manager, Mobility, Range};
use highwater_os::Os;
use highwater_platform::{Latency, Memory};
use highwater_testkit::trial::{Pins, Program};
use highwater_units::{Bytes, Order, Pfn, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames of the platform: 32 pageblocks.
const FRAMES: u64 = 32 * 512;
/// Pages in use at first: no large block is free.
const USED: u64 = FRAMES - 400;

/// The compaction of an earlier kernel, or today's.
fn config(compact: Option<CompactHistory>) -> Config {
    let history = History { compact, ..History::default() };
    Config { history, min_free: Some(64), watermark_scale: Some(10), ..Config::default() }
}

/// A manager without threads whose memory is fragmented: one of every `of` pages is kept and the
/// others are dropped.
fn in_pieces(compact: Option<CompactHistory>, of: u64) -> (Manager<Os>, SpaceId) {
    let (mut manager, space) = in_pieces_with_threads(config(compact), of);
    manager.stop_kswapd();
    (manager, space)
}

fn in_pieces_with_threads(config: Config, of: u64) -> (Manager<Os>, SpaceId) {
    let injected = Arc::new(Faults::default());
    let devices = vec![common::memory(4 * FRAMES, Latency::Synchronous, &injected)];
    let platform = Os::new(Bytes::of_pages(FRAMES), devices).expect("an arena");
    let manager = Manager::start(platform, config).expect("threads");
    let space = manager.add_space(USED).expect("a space");
    (0..USED).for_each(|vpn| Pins.store(&manager, space, Vpn(vpn), 1, vpn + 1).expect("room"));
    for vpn in (0..USED).filter(|vpn| vpn % of != 0) {
        manager.discard(space, Range { first: Vpn(vpn), end: Vpn(vpn + 1) });
    }
    manager.inspect().nodes[0].zone.drain();
    assert!(!manager.inspect().nodes[0].zone.has_block(Order::LARGE, Mobility::Movable));
    (manager, space)
}

fn check(manager: &Manager<Os>, space: SpaceId, of: u64) {
    for vpn in (0..USED).step_by(of as usize) {
        assert_eq!(Pins.load(manager, space, Vpn(vpn), 1), Ok(vpn + 1), "page {vpn}");
    }
    manager.verify(&[]);
}

/// Today's compaction, and those of earlier kernels.
fn all_ways() -> impl Iterator<Item = Option<CompactHistory>> {
    CompactHistory::ALL.into_iter().map(Some).chain([None])
}

/// Allocates large runs until one fails.
fn take_all(manager: &Manager<Os>) -> usize {
    let take = || manager.alloc_run(Order::LARGE, Mobility::Unmovable);
    std::iter::from_fn(take).take(FRAMES as usize / 512).count()
}

#[test]
fn pages_make_way_for_large_runs() {
    for compact in all_ways() {
        let (manager, space) = in_pieces(compact, 4);
        let taken = take_all(&manager);
        // A quarter of memory is in use, and is partly swapped out in time.
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
fn all_blocks_are_made_on_request() {
    let (manager, space) = in_pieces(None, 4);
    let made = manager.compact();
    let large = |orders: &[u32]| orders[usize::from(Order::LARGE.0)..].iter().sum::<u32>();
    let free: u32 = manager.blocks()[0].free.iter().map(|orders| large(orders)).sum();
    // Three quarters of 32 blocks are free, less what stays free for pages that move.
    assert!(made >= 20 && free > 0, "{made} made, {free} free");
    assert_eq!(manager.statistics().get(Counter::PswpOut), 0, "pages were moved, not evicted");
    assert_eq!(manager.compact(), 0, "nothing is left to do");
    check(&manager, space, 4);
    let (manager, _) = in_pieces_with_threads(Config { compact: false, ..config(None) }, 4);
    assert_eq!(manager.compact(), 0);
}

#[test]
fn without_compaction_runs_come_from_eviction_alone() {
    let (mut manager, space) = in_pieces_with_threads(Config { compact: false, ..config(None) }, 4);
    manager.stop_kswapd();
    take_all(&manager);
    let counted = |counter| manager.statistics().get(counter);
    assert_eq!(counted(Counter::CompactStall) + counted(Counter::CompactMigrateScanned), 0);
    check(&manager, space, 4);
}

/// Takes an unmovable frame of each pageblock, requests large runs, which all fail, and returns the
/// frames that the migrate scanner and the free scanner scanned.
fn scanned_in_vain(compact: CompactHistory) -> [u64; 2] {
    let (manager, space) = in_pieces(Some(compact), 4);
    let zone = &manager.inspect().nodes[0].zone;
    let mut runs = Vec::new();
    for pageblock in 0..zone.pageblocks() {
        let frames = zone.frames_of(pageblock);
        // By address, at a free frame of the zone, as if it had been allocated there.
        let free = frames.clone().find(|pfn| zone.free_at(Pfn(*pfn)) == Some(Order(0)));
        let free = free.unwrap_or_else(|| panic!("a free frame in {frames:?}"));
        zone.isolate_free(manager.platform(), free..free + 1, Contention::Waits, 0, |pfn, _| {
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
    zone.free_to_zone(&runs);
    check(&manager, space, 4);
    scanned
}

#[test]
fn pageblocks_marked_skip_are_not_scanned_again() {
    let [_, lesslock, revert, cachefail, skipuseless] = CompactHistory::ALL.map(scanned_in_vain);
    assert!(lesslock[0] > 60_000, "all of memory, again and again: {lesslock:?}");
    assert!(cachefail[0] * 3 < revert[0] && cachefail[1] < revert[1], "{cachefail:?} {revert:?}");
    println!("{lesslock:?} {revert:?} {cachefail:?} {skipuseless:?}");
    // The frames on a CPU's list depend on where a thread ran, so a few more or fewer are scanned.
    let more = |index: usize| skipuseless[index] > cachefail[index] + cachefail[index] / 50;
    assert!(!more(0) && !more(1), "{skipuseless:?} after {cachefail:?}");
}

#[test]
fn a_contended_lock_ends_compaction_that_may_not_wait() {
    let (manager, space) = in_pieces(Some(CompactHistory::SkipUseless), 4);
    let (machine, before) = (manager.inspect(), manager.statistics());
    let of = |mode| compact(machine, Order::LARGE, Mobility::Movable, mode);
    let lane = machine.nodes[0].lru.hold_shard(Pfn(0), Mode::Sync);
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
    let [skipuseless, fast] = [Some(CompactHistory::SkipUseless), None].map(|compact| {
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
        assert_eq!(counted(Counter::CompactCapture), if compact.is_none() { 16 } else { 0 });
        assert_eq!(counted(Counter::AllocStall), 0, "nothing was reclaimed for it");
        check(&manager, space, 4);
        [Counter::CompactMigrateIsolated, Counter::CompactFreeScanned].map(counted)
    });
    // Blocks are equally easy everywhere, and all scanned frames are useful: the scanners' best
    // case.
    assert!(fast[0] <= skipuseless[0], "{fast:?} {skipuseless:?}");
    assert!(2 * fast[1] < 3 * skipuseless[1], "{fast:?} {skipuseless:?}");
}

#[test]
fn kcompactd_has_blocks_ready_after_a_request() {
    let (mut manager, space) = in_pieces_with_threads(config(None), 4);
    let score = |manager: &Manager<Os>| manager.blocks()[0].unusable(Order::LARGE);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(score(&manager), 1000, "nobody asked");
    let first = manager.alloc_run(Order::LARGE, Mobility::Unmovable).expect("it is made");
    let deadline = Instant::now() + Duration::from_secs(30);
    while score(&manager) > 800 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    manager.stop_kswapd();
    assert!(score(&manager) <= 800, "{}", manager.blocks()[0]);
    let counted = |counter| manager.statistics().get(counter);
    assert!(counted(Counter::CompactDaemonWake) > 0);
    assert!(counted(Counter::CompactDaemonMigrateScanned) > 0);
    // The first request wakes kcompactd, which may have a block ready before the request compacts,
    // or hold the lock, for which the request does not wait at first.
    assert!(counted(Counter::CompactStall) <= 2);
    manager.free_run(first);
    check(&manager, space, 4);
}

/// Pages of an order, and a word of each of their frames.
struct Folios {
    manager: Manager<Os>,
    /// By order.
    spaces: Vec<SpaceId>,
    /// The pages with contents.
    kept: Vec<(usize, Vpn)>,
}

impl Folios {
    /// Memory full of pages of orders 0 to 5, mixed, in equal amounts; three of four are dropped.
    /// There is no swap: a page that cannot be moved stays in the way.
    fn in_pieces(compact: Option<CompactHistory>) -> Folios {
        let platform = Os::new(Bytes::of_pages(FRAMES), Vec::new()).expect("an arena");
        let mut manager = Manager::start(platform, config(compact)).expect("threads");
        manager.stop_kswapd();
        let spaces = (0..6).map(|order| manager.add_space_of(FRAMES, Order(order)).expect("one"));
        let mut all = Folios { spaces: spaces.collect(), manager, kept: Vec::new() };
        let (mut random, mut made) = (Prng::new(1), Vec::new());
        loop {
            let page = (random.next_u64().trailing_zeros() as usize % 6, Vpn(made.len() as u64));
            let stored = all.each_word(page, Access::Write, |platform, frame, value| {
                platform.store(frame, 7, value);
            });
            if stored.is_err() {
                break;
            }
            made.push(page);
        }
        for (index, (order, vpn)) in made.into_iter().enumerate() {
            match index % 4 {
                0 => all.kept.push((order, vpn)),
                _ => {
                    let page = Range { first: vpn, end: vpn.offset(1) };
                    all.manager.discard(all.spaces[order], page);
                }
            }
        }
        all.manager.inspect().nodes[0].zone.drain();
        all
    }

    fn each_word(
        &self,
        (order, vpn): (usize, Vpn),
        access: Access,
        act: impl Fn(&Os, Pfn, u64),
    ) -> Result<(), FaultError> {
        let pin = self.manager.pin(self.spaces[order], vpn, access)?;
        assert_eq!(pin.frames(), 1 << order);
        for frame in 0..pin.frames() {
            let value = vpn.0 << 16 | (order as u64) << 8 | (u64::from(frame) + 1);
            act(self.manager.platform(), pin.pfn().offset(frame), value);
        }
        Ok(())
    }

    fn check(&self) {
        for page in &self.kept {
            let found = self.each_word(*page, Access::Read, |platform, frame, value| {
                assert_eq!(platform.load(frame, 7), value, "{page:?}");
            });
            assert_eq!(found, Ok(()));
        }
        self.manager.verify(&[]);
    }
}

/// Three quarters of memory are free, but no large block is: each has a few pages in use.
#[test]
fn pages_of_many_frames_make_way_for_large_runs() {
    for compact in all_ways() {
        let folios = Folios::in_pieces(compact);
        let taken = take_all(&folios.manager);
        assert!(taken >= 20, "{compact:?}: {taken} runs");
        let counted = |counter| folios.manager.statistics().get(counter);
        let moved = counted(Counter::ThpMigrationSuccess);
        assert!(moved >= 100, "{compact:?}: {moved} pages of many frames moved");
        folios.check();
    }
}

/// Pages move to blocks of their own order, even if many smaller blocks are free.
#[test]
fn a_page_without_a_block_for_it_stays() {
    for compact in [Some(CompactHistory::SkipUseless), None] {
        let mut folios = Folios::in_pieces(compact);
        // Pages of one frame would move, and leave free blocks.
        folios.kept.retain(|(order, _)| *order > 0);
        let all = Range { first: Vpn(0), end: Vpn(FRAMES) };
        folios.manager.discard(folios.spaces[0], all);
        let (manager, machine) = (&folios.manager, folios.manager.inspect());
        let zone = &machine.nodes[0].zone;
        machine.nodes[0].lru.drain(&machine.frames, |dropped| machine.free(dropped));
        zone.drain();
        // The first frame of each free block is allocated, by address.
        let mut taken = Vec::new();
        for pfn in (0..FRAMES as u32).step_by(2) {
            if zone.free_at(Pfn(pfn)).is_some_and(|order| order > Order(0)) {
                zone.isolate_free(
                    manager.platform(),
                    pfn..pfn + 1,
                    Contention::Waits,
                    0,
                    |first, order| {
                        taken.extend((0..order.frames()).map(|index| first.offset(index)));
                        Wanted::More
                    },
                );
            }
        }
        let (back, away): (Vec<Pfn>, Vec<Pfn>) = taken.iter().partition(|pfn| pfn.0 % 2 == 1);
        zone.free_to_zone(&back);
        assert_eq!(manager.alloc_run(Order::LARGE, Mobility::Movable), None, "{compact:?}");
        let counted = |counter| manager.statistics().get(counter);
        assert_eq!(counted(Counter::PgMigrateSuccess), 0, "{compact:?}");
        zone.free_to_zone(&away);
        folios.check();
    }
}
