//! Devices that refuse pages although they have free slots: the next device is used at once, and an
//! allocation fails only when no device has room.

use crate::common;
use crate::common::bounded::{Room, bounded};
use highwater_devices::{Device, Faults};
use highwater_mm::stats::Counter;
use highwater_mm::{Config, FaultError, Manager, Range};
use highwater_os::Os;
use highwater_platform::Latency::{Asynchronous, Synchronous};
use highwater_testkit::trial::{self, Pins, Plan, Program};
use highwater_testkit::{Watchdog, seeds};
use highwater_units::{Bytes, Prng, SpaceId, Vpn};
use std::ops;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const FRAMES: usize = 64;
const SLOTS: u64 = 4096;
/// The most writes in flight when another write is refused: batches of 32 pages of kswapd and of
/// the allocating thread.
const IN_HAND: usize = 2 * 32;
/// The most times that the maximum run length is halved, from 16 to none: twice per length, because
/// a run that fits doubles the maximum.
const HALVINGS: usize = 2 * 5;

struct World {
    manager: Manager<Os>,
    space: SpaceId,
    _watchdog: Watchdog,
}

fn world(name: &str, devices: Vec<Box<dyn Device>>) -> World {
    let _watchdog = Watchdog::new(name, Duration::from_secs(40));
    let platform = Os::new(Bytes::of_pages(FRAMES as u64), devices).expect("an arena");
    let manager = Manager::start(platform, Config::default()).expect("threads");
    let space = manager.add_space(SLOTS).expect("a space");
    World { manager, space, _watchdog }
}

impl World {
    /// Writes pages until that fails; returns their number.
    fn write(&self, pages: ops::Range<u64>) -> usize {
        let World { manager, space, .. } = self;
        let write = |page: &u64| Pins.store(manager, *space, Vpn(*page), 0, page + 1).is_ok();
        pages.take_while(write).count()
    }

    fn discard_every_other(&self, pages: ops::Range<u64>) {
        for page in pages.step_by(2) {
            let one = Range { first: Vpn(page), end: Vpn(page + 1) };
            self.manager.discard(self.space, one);
        }
    }

    fn expect(&self, pages: ops::Range<u64>) {
        for page in pages {
            let found = Pins.load(&self.manager, self.space, Vpn(page), 0);
            let shortage = self.manager.inspect().stats.shortage();
            assert_eq!(found, Ok(page + 1), "page {page}; {shortage:?}");
        }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.manager.inspect().stats.get(counter)
    }
}

#[test]
fn a_device_without_room_is_passed_over() {
    for latency in [Synchronous, Asynchronous] {
        let (first, second) = (Room::of(300), Room::of(SLOTS as usize));
        let devices = vec![bounded(SLOTS, latency, &first), bounded(SLOTS, latency, &second)];
        let mut world = world("no room", devices);
        assert_eq!(world.write(0..2000), 2000);
        assert_eq!(first.held(), 300, "{latency:?}: what room it has is used");
        assert!(second.held() >= 2000 - 300 - FRAMES);
        let refused = first.refused.load(Relaxed);
        assert!((1..HALVINGS * IN_HAND).contains(&refused), "{latency:?}: {refused}");
        assert_eq!(world.count(Counter::SwapRefused), refused as u64);
        assert_eq!(world.count(Counter::AllocOom), 0);
        world.expect(0..2000);
        world.manager.stop_kswapd();
        world.manager.verify(&[]);
    }
}

#[test]
fn a_device_that_fails_is_passed_over() {
    let (first, second) = (Room::of(SLOTS as usize), Room::of(SLOTS as usize));
    first.broken.store(true, Relaxed);
    let devices = [&first, &second].map(|room| bounded(SLOTS, Asynchronous, room));
    let world = world("failing", devices.into());
    assert_eq!(world.write(0..2000), 2000);
    assert_eq!(first.held(), 0);
    let failed = first.refusals.load(Relaxed);
    assert!((1..=IN_HAND).contains(&failed), "{failed} writes failed");
    assert_eq!(world.count(Counter::SwapWriteErrors), failed as u64);
    assert_eq!(world.count(Counter::AllocOom), 0);
    world.expect(0..2000);
}

/// As when one of several servers does not answer.
#[test]
fn pages_that_are_turned_away_at_their_slots_go_to_others() {
    for latency in [Synchronous, Asynchronous] {
        let room = Room::of(SLOTS as usize);
        let world = world("busy slots", vec![bounded(SLOTS, latency, &room)]);
        // Pages are everywhere, and every other one is freed.
        assert_eq!(world.write(0..1500), 1500);
        world.discard_every_other(0..1500);
        room.busy.store(true, Relaxed);
        assert_eq!(world.write(1500..3000), 1500);
        let away = room.refused.load(Relaxed);
        assert!(away > 0 && room.refusals.load(Relaxed) < 40 * IN_HAND, "{latency:?}: {away}");
        assert_eq!(world.count(Counter::SwapBusy), away as u64);
        assert_eq!(world.count(Counter::AllocOom) + world.count(Counter::SwapWriteErrors), 0);
        room.busy.store(false, Relaxed);
        assert_eq!(world.write(3000..3500), 500);
        (1..1500).step_by(2).for_each(|page| world.expect(page..page + 1));
        world.expect(1500..3500);
    }
}

/// As on a disk parts of which fail. Regression: CPUs wrote to the same clusters again and again.
#[test]
fn pages_whose_writes_fail_at_some_places_go_to_others() {
    let room = Room::of(SLOTS as usize);
    let world = world("worn", vec![bounded(SLOTS, Asynchronous, &room)]);
    assert_eq!(world.write(0..1500), 1500);
    world.discard_every_other(0..1500);
    room.worn.store(true, Relaxed);
    assert_eq!(world.write(1500..3000), 1500);
    let failed = room.refusals.load(Relaxed);
    assert!((1..40 * IN_HAND).contains(&failed), "{failed} writes failed");
    assert_eq!(world.count(Counter::SwapWriteErrors), failed as u64);
    assert_eq!(world.count(Counter::AllocOom), 0);
    (1..1500).step_by(2).for_each(|page| world.expect(page..page + 1));
    world.expect(1500..3000);
}

/// No thread waits while nothing can change; after slots are freed, the devices take pages again.
#[test]
fn without_room_allocations_fail_quickly_and_freed_slots_are_used() {
    let rooms = [Room::of(200), Room::of(100)];
    let devices = rooms.each_ref().map(|room| bounded(SLOTS, Synchronous, room));
    let world = world("full", devices.into());
    let there = world.write(0..SLOTS) as u64;
    assert_eq!(rooms.each_ref().map(|room| room.held()), [200, 100]);
    let shortage = world.manager.inspect().stats.shortage().expect("memory was short");
    assert_eq!((shortage.rounds, shortage.room), (32, 0), "{shortage}");
    assert!(world.manager.capacity_left() < FRAMES as u64);
    // Reading the pages takes frames.
    world.manager.discard(world.space, Range { first: Vpn(50), end: Vpn(90) });
    world.expect(0..50);
    world.expect(90..there);
    assert_eq!(world.write(50..70), 20);
    world.expect(0..70);
    world.expect(90..there);
    world.manager.discard(world.space, Range { first: Vpn(0), end: Vpn(there) });
    assert_eq!(world.write(0..there), there as usize);
    world.manager.discard(world.space, Range { first: Vpn(50), end: Vpn(90) });
    world.expect(0..50);
    world.expect(90..there);
}

/// Room that appears on a device, as when files are deleted on its file system, is found before an
/// allocation fails.
#[test]
fn a_device_with_new_room_is_tried_before_an_allocation_fails() {
    let room = Room::of(100);
    let world = world("more room", vec![bounded(SLOTS, Asynchronous, &room)]);
    let there = world.write(0..SLOTS) as u64;
    let shortage = world.manager.inspect().stats.shortage().expect("memory was short");
    assert!(shortage.waited.0 >= 2_000_000_000, "worth a pause: {shortage}");
    let failed = Pins.store(&world.manager, world.space, Vpn(there), 0, 1);
    assert_eq!(failed, Err(FaultError::OutOfMemory));
    room.pages.store(SLOTS as usize, Relaxed);
    assert_eq!(world.write(there..2000), 2000 - there as usize);
    world.expect(0..2000);
}

/// Random accesses of several threads against a model: no allocation fails while another device has
/// room.
#[test]
fn devices_without_room_before_others_lose_nothing() {
    let all_refused = AtomicU64::new(0);
    seeds(8, |seed| {
        let mut random = Prng::new(seed ^ 0xf011);
        let plan = Plan { threads: 1 + seed as usize % 4, ..Plan::draw(seed, 64, 2500) };
        let room = Room::of(random.below(400) as usize);
        let latency = [Synchronous, Asynchronous][random.below(2) as usize];
        let injected = Arc::new(Faults::default());
        let enough = common::memory(plan.slots(), latency, &injected);
        let devices = vec![bounded(plan.slots(), latency, &room), enough];
        let os = Os::new(Bytes::of_pages(64), devices).expect("an arena");
        let watchdog = Watchdog::new(&format!("no room, seed {seed}"), Duration::from_secs(40));
        let beat = Arc::new(move || watchdog.beat());
        let outcome = trial::run(os, Pins, &plan, seed, beat, || ());
        let refused = room.refused.load(Relaxed) as u64;
        assert_eq!(outcome.statistics.get(Counter::SwapRefused), refused, "seed {seed}");
        all_refused.fetch_add(refused, Relaxed);
    });
    assert!(all_refused.into_inner() > 0, "there was room for all");
}
