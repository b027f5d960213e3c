//! Swap devices are added to a running manager and removed from it: all contents stay right, and a
//! removal that is impossible leaves the device in use.

use crate::common;
use crate::common::bounded::{Room, bounded};
use highwater_devices::{Device, FaultKind, Faults};
use highwater_mm::{Config, FaultError, Manager, Range, SwapPart, SwapoffOutcome, Taken};
use highwater_os::Os;
use highwater_platform::Latency::{Asynchronous, Synchronous};
use highwater_testkit::Watchdog;
use highwater_testkit::trial::{Pins, Program};
use highwater_units::{Bytes, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const FRAMES: u64 = 128;
const SLOTS: u64 = 4096;
/// Pages of the tests of one thread.
const PAGES: u64 = 600;

fn start(devices: Vec<Option<Box<dyn Device>>>) -> Manager<Os> {
    let platform = Os::with_places(Bytes::of_pages(FRAMES), devices, 0).expect("an arena");
    Manager::start(platform, Config::default()).expect("threads")
}

fn memory(slots: u64) -> Option<Box<dyn Device>> {
    Some(common::memory(slots, Asynchronous, &Arc::default()))
}

/// Writes pages; returns how many.
fn write(manager: &Manager<Os>, space: SpaceId, pages: std::ops::Range<u64>) -> usize {
    let stored = |page: &u64| Pins.store(manager, space, Vpn(*page), 0, page + 1).is_ok();
    pages.take_while(stored).count()
}

fn expect(manager: &Manager<Os>, space: SpaceId, pages: std::ops::Range<u64>) {
    for page in pages {
        let found = Pins.load(manager, space, Vpn(page), 0);
        assert_eq!(found, Ok(page + 1), "page {page}");
    }
}

/// Removes a device, until the removal is complete or waits for snapshots.
fn remove(manager: &Manager<Os>, device: u8) -> SwapoffOutcome {
    let mut swapoff = manager.swapoff(device).expect("there is room elsewhere");
    loop {
        match manager.swapoff_step(&mut swapoff) {
            SwapoffOutcome::Moving => {}
            over => return over,
        }
    }
}

#[test]
fn an_added_device_takes_what_the_first_has_no_slots_for() {
    let mut manager = start(vec![memory(200), None, None]);
    let space = manager.add_space(SLOTS).expect("a space");
    assert!(write(&manager, space, 0..PAGES) <= 200 + FRAMES as usize);
    assert_eq!(manager.swapon(1), Err(Taken), "it has no pages yet");
    for device in [2, 1] {
        manager.platform().swap_devices().add(device, memory(SLOTS).expect("a device"));
        assert_eq!(manager.swapon(device), Ok(()));
        assert_eq!(manager.swapon(device), Err(Taken));
    }
    assert_eq!(write(&manager, space, 0..PAGES), PAGES as usize);
    expect(&manager, space, 0..PAGES);
    let used: Vec<u64> = manager.swaps().iter().map(|(_, swap)| swap.used).collect();
    assert!(used[0] > 0 && used[1] > 0 && used[2] == 0, "in the order of their numbers: {used:?}");
    manager.stop_kswapd();
    manager.verify(&[]);
}

#[test]
fn a_removed_device_is_empty_and_can_come_back() {
    let mut manager = start(vec![memory(SLOTS), memory(SLOTS)]);
    let space = manager.add_space(SLOTS).expect("a space");
    write(&manager, space, 0..PAGES);
    for (device, other) in [(0, 1), (1, 0), (0, 1)] {
        assert_eq!(remove(&manager, device), SwapoffOutcome::Removed);
        assert_eq!(manager.swap_part(device), SwapPart::Removed);
        let resident = manager.platform().swap_devices().fixed()[usize::from(device)]
            .map(|device| device.resident());
        assert_eq!(resident, Some(Bytes(0)), "its memory was freed");
        expect(&manager, space, 0..PAGES);
        write(&manager, space, 0..PAGES);
        let used: Vec<u64> = manager.swaps().iter().map(|(_, swap)| swap.used).collect();
        assert!(used[usize::from(device)] == 0 && used[other] >= PAGES - FRAMES, "{used:?}");
        assert_eq!(manager.swapon(device), Ok(()));
    }
    manager.stop_kswapd();
    manager.verify(&[]);
    expect(&manager, space, 0..PAGES);
}

#[test]
fn slots_of_a_snapshot_stay_until_it_is_released() {
    let mut manager = start(vec![memory(SLOTS), memory(SLOTS)]);
    let space = manager.add_space(SLOTS).expect("a space");
    write(&manager, space, 0..PAGES);
    let snapshot = manager.snapshot(space).expect("there is room");
    assert_eq!(remove(&manager, 0), SwapoffOutcome::Held);
    assert_eq!(manager.swaps()[0].1.used, PAGES, "the child reads them there");
    let child = manager.add_space(SLOTS).expect("a space");
    let _ = manager.restore_snapshot(child, &snapshot);
    assert_eq!(remove(&manager, 0), SwapoffOutcome::Removed, "the child's pages move, too");
    for space in [space, child] {
        expect(&manager, space, 0..PAGES);
    }
    manager.stop_kswapd();
    manager.verify(&[]);
}

#[test]
fn without_room_elsewhere_a_device_stays_and_nothing_is_lost() {
    // Of the second device: too few slots, or slots without room behind them.
    for (slots, room) in [(100, 100), (SLOTS, 200)] {
        let room = Room::of(room);
        let second = bounded(slots, Synchronous, &room);
        let mut manager = start(vec![memory(SLOTS), Some(second)]);
        let space = manager.add_space(SLOTS).expect("a space");
        assert_eq!(write(&manager, space, 0..PAGES), PAGES as usize);
        let refused = match manager.swapoff(0) {
            Err(refused) => refused.missing,
            Ok(_) => match remove(&manager, 0) {
                SwapoffOutcome::NoRoom { left } => left,
                other => panic!("{other:?}"),
            },
        };
        assert!((1..PAGES).contains(&refused), "{slots} slots: {refused}");
        assert_eq!(manager.swap_part(0), SwapPart::Used);
        assert_eq!(write(&manager, space, PAGES..2 * PAGES), PAGES as usize, "it accepts pages");
        expect(&manager, space, 0..2 * PAGES);
        manager.stop_kswapd();
        manager.verify(&[]);
    }
}

#[test]
fn pages_that_cannot_be_read_keep_their_slots() {
    let injected = Arc::new(Faults::default());
    let failing = common::memory(SLOTS, Asynchronous, &injected);
    let mut manager = start(vec![Some(failing), memory(SLOTS)]);
    let space = manager.add_space(SLOTS).expect("a space");
    write(&manager, space, 0..PAGES);
    injected.set(FaultKind::Read, common::percent(100));
    let used = manager.swaps()[0].1.used;
    match remove(&manager, 0) {
        SwapoffOutcome::Failed { error: FaultError::Read(_), left } => {
            assert!((1..=used).contains(&left) && left >= PAGES - FRAMES, "{left} of {used}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(manager.swap_part(0), SwapPart::Used);
    injected.end();
    expect(&manager, space, 0..PAGES);
    assert_eq!(remove(&manager, 0), SwapoffOutcome::Removed);
    expect(&manager, space, 0..PAGES);
    manager.stop_kswapd();
    manager.verify(&[]);
}

/// Uses, drops and copies pages of its own until told to end, and checks them.
fn work(manager: &Manager<Os>, seed: u64, ended: &AtomicBool) {
    let (mut random, mut model) = (Prng::new(seed), [0; 300]);
    let space = manager.add_space(model.len() as u64).expect("a space");
    let page = |random: &mut Prng| random.below(300) as usize;
    let check = |model: &[u64; 300], page: usize| {
        let found = Pins.load(manager, space, Vpn(page as u64), 3);
        assert_eq!(found, Ok(model[page]), "page {page}, seed {seed}");
    };
    let mut snapshot = None;
    while !ended.load(Relaxed) {
        let at = page(&mut random);
        match random.below(40) {
            0 => {
                let end = (at + 20).min(model.len());
                let range = Range { first: Vpn(at as u64), end: Vpn(end as u64) };
                manager.discard(space, range);
                model[at..end].fill(0);
            }
            1 if snapshot.is_none() => snapshot = Some(manager.snapshot(space).expect("room")),
            2 => snapshot.take().iter().for_each(|it| manager.release_snapshot(it)),
            3..20 => {
                model[at] += 1 + (seed << 32);
                let stored = Pins.store(manager, space, Vpn(at as u64), 3, model[at]);
                assert_eq!(stored, Ok(()), "page {at}, seed {seed}");
            }
            _ => check(&model, at),
        }
    }
    snapshot.iter().for_each(|it| manager.release_snapshot(it));
    (0..model.len()).for_each(|page| check(&model, page));
}

#[test]
fn removals_beside_faults_copies_and_drops_lose_nothing() {
    const REMOVALS: u32 = 24;
    let _watchdog = Watchdog::new("removals", Duration::from_secs(60));
    let mut manager = start(vec![memory(SLOTS), memory(SLOTS), memory(SLOTS)]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (manager, ended) = (&manager, &ended);
        (1..4).for_each(|seed| drop(scope.spawn(move || work(manager, seed, ended))));
        for turn in 0..REMOVALS {
            let device = (turn % 3) as u8;
            // Copies are released before long.
            loop {
                match remove(manager, device) {
                    SwapoffOutcome::Removed => break,
                    SwapoffOutcome::Held => std::thread::yield_now(),
                    other => panic!("there is room for all: {other:?}"),
                }
            }
            assert_eq!(manager.swaps()[usize::from(device)].1.used, 0);
            assert_eq!(manager.swapon(device), Ok(()));
        }
        ended.store(true, Relaxed);
    });
    manager.stop_kswapd();
    manager.verify(&[]);
}
