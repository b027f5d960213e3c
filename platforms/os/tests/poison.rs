//! Pages that cannot be read are poisoned: every access fails until they are dropped, in forked
//! children and at other addresses, too, and nothing else is lost.

use crate::common;
use highwater_devices::{FaultKind, Faults};
use highwater_mm::stats::Counter;
use highwater_mm::{Config, FaultError, Manager, Poisoned, Range};
use highwater_os::Os;
use highwater_platform::Latency::Asynchronous;
use highwater_testkit::trial::{Pins, Program};
use highwater_units::{Bytes, SpaceId, Vpn};
use std::sync::Arc;

const FRAMES: u64 = 128;
const SLOTS: u64 = 4096;
const PAGES: u64 = 600;
/// Far from the pages that were written last.
const LOST: Vpn = Vpn(40);

fn load(manager: &Manager<Os>, space: SpaceId, vpn: Vpn) -> Result<u64, FaultError> {
    Pins.load(manager, space, vpn, 0)
}

/// A manager, and a space whose pages hold their number, plus 1. The page [`LOST`] cannot be read.
fn start(injected: &Arc<Faults>) -> (Manager<Os>, SpaceId) {
    let device = common::memory(SLOTS, Asynchronous, injected);
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    let config = Config { prefetch: false, ..Config::default() };
    let manager = Manager::start(platform, config).expect("threads");
    let space = manager.add_space(SLOTS).expect("a space");
    for page in 0..PAGES {
        assert_eq!(Pins.store(&manager, space, Vpn(page), 0, page + 1), Ok(()));
    }
    injected.set(FaultKind::Read, common::percent(100));
    assert!(matches!(load(&manager, space, LOST), Err(FaultError::Read(_))));
    (manager, space)
}

fn end(mut manager: Manager<Os>) {
    manager.stop_kswapd();
    manager.verify(&[]);
}

fn slots_used(manager: &Manager<Os>) -> u64 {
    manager.statistics().get(Counter::SlotsUsed)
}

#[test]
fn a_lost_page_stays_lost_until_it_is_dropped() {
    let injected = Arc::new(Faults::default());
    let (manager, space) = start(&injected);
    let before = slots_used(&manager);
    let mut reports = 0;
    assert_eq!(manager.poison(space, LOST, || reports += 1), Poisoned::Done);
    assert_eq!(reports, 1);
    assert_eq!(manager.poison(space, LOST, || panic!("reported twice")), Poisoned::Done);
    assert_eq!(slots_used(&manager), before - 1, "its slot is free");
    assert_eq!(manager.statistics().get(Counter::PgPoisoned), 1);
    injected.end();
    // The pages around it are read together, without it.
    for page in (0..PAGES).map(Vpn) {
        let expected = if page == LOST { Err(FaultError::Poisoned) } else { Ok(page.0 + 1) };
        assert_eq!(load(&manager, space, page), expected, "{page:?}");
    }
    assert_eq!(Pins.store(&manager, space, LOST, 0, 1), Err(FaultError::Poisoned));
    manager.discard(space, Range { first: LOST, end: LOST.offset(1) });
    assert_eq!(load(&manager, space, LOST), Ok(0));
    assert_eq!(Pins.store(&manager, space, LOST, 0, 1), Ok(()));
    end(manager);
}

#[test]
fn only_pages_that_are_in_a_slot_alone_are_poisoned() {
    let injected = Arc::new(Faults::default());
    let (manager, space) = start(&injected);
    injected.end();
    assert_eq!(load(&manager, space, LOST), Ok(LOST.0 + 1));
    for vpn in [LOST, Vpn(PAGES)] {
        assert_eq!(manager.poison(space, vpn, || panic!("not lost")), Poisoned::Changed, "{vpn:?}");
    }
    assert_eq!((load(&manager, space, LOST), load(&manager, space, Vpn(PAGES))), (Ok(41), Ok(0)));
    end(manager);
}

#[test]
fn a_lost_page_moves_and_is_passed_on_to_children() {
    let injected = Arc::new(Faults::default());
    let (manager, space) = start(&injected);
    assert_eq!(manager.poison(space, LOST, || ()), Poisoned::Done);
    injected.end();
    let snapshot = manager.snapshot(space).expect("there is room");
    assert_eq!(snapshot.poisoned(), [LOST]);
    let child = manager.add_space(SLOTS).expect("a space");
    let _ = manager.restore_snapshot(child, &snapshot);
    let range = Range { first: Vpn(LOST.0 - 2), end: LOST.offset(2) };
    manager.relocate(space, range, Vpn(1000));
    for (space, lost, first) in [(child, LOST, range.first), (space, Vpn(1002), Vpn(1000))] {
        assert_eq!(load(&manager, space, lost), Err(FaultError::Poisoned));
        assert_eq!(load(&manager, space, first), Ok(39));
    }
    assert_eq!(load(&manager, space, LOST), Ok(0), "the page that it has left");
    assert!(manager.discard_swapped(child, range) >= 1, "of pages that will be overwritten");
    assert_eq!(load(&manager, child, LOST), Ok(0));
    end(manager);
}
