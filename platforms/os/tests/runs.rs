//! Runs of frames outside spaces: their placement and their counters.

use crate::common;
use highwater_devices::Faults;
use highwater_mm::{Config, Fragmentation, Manager, Mobility};
use highwater_os::Os;
use highwater_platform::Latency;
use highwater_testkit::trial::{Pins, Program};
use highwater_units::{Bytes, Order, Pfn, Vpn};
use std::sync::Arc;

/// Frames of the platform: 16 pageblocks.
const FRAMES: u64 = 16 * 512;

fn manager() -> Manager<Os> {
    let injected = Arc::new(Faults::default());
    let devices = vec![common::memory(4 * FRAMES, Latency::Synchronous, &injected)];
    let platform = Os::new(Bytes::of_pages(FRAMES), devices).expect("an arena");
    Manager::start(platform, Config::default()).expect("threads")
}

#[test]
fn a_run_disturbs_no_page_and_is_counted() {
    let mut manager = manager();
    manager.stop_kswapd();
    let mut runs: Vec<(Pfn, Order)> = Vec::new();
    for order in (0..=Order::MAX.0).map(Order) {
        for mobility in Mobility::ALL {
            let first = manager.alloc_run(order, mobility).expect("most is free");
            assert_eq!(first.0 % order.frames(), 0, "aligned");
            assert_eq!(manager.inspect().frames.run(first), Some((order, mobility)));
            runs.push((first, order));
        }
        manager.verify(&[]);
    }
    let used: u32 = runs.iter().map(|(_, order)| order.frames()).sum();
    assert_eq!(manager.inspect().resident(), used);
    let blocks = manager.blocks();
    assert_eq!(blocks[0].pageblocks.iter().sum::<u32>(), 16);
    assert!(blocks[0].pageblocks[Mobility::Unmovable as usize] >= 4, "{}", blocks[0].by_type());
    runs.into_iter().for_each(|(first, _)| manager.free_run(first));
    manager.verify(&[]);
    manager.inspect().nodes[0].zone.drain();
    let [free] = manager.blocks()[..] else { panic!("one node") };
    assert_eq!((free.of(Order::MAX), manager.inspect().resident()), (8, 0), "{free}");
}

#[test]
#[should_panic(expected = "no run starts")]
fn a_run_is_freed_once() {
    let manager = manager();
    let first = manager.alloc_run(Order(2), Mobility::Unmovable).expect("most is free");
    manager.free_run(first);
    manager.free_run(first);
}

#[test]
fn pages_in_a_block_prevent_a_run() {
    let manager = manager();
    let space = manager.add_space(FRAMES * 2).expect("a space");
    let page = |vpn| Pins.store(&manager, space, Vpn(vpn), 0, vpn + 1).expect("there is swap");
    (0..FRAMES * 3 / 4).for_each(page);
    for vpn in (0..FRAMES * 3 / 4).filter(|vpn| vpn % 3 != 0) {
        let range = highwater_mm::Range { first: Vpn(vpn), end: Vpn(vpn + 1) };
        manager.discard(space, range);
    }
    manager.inspect().nodes[0].zone.drain();
    let blocks = manager.blocks()[0];
    assert_eq!(blocks.fragmentation(Order(1)), Fragmentation::Fits);
    assert!(blocks.unusable(Order(2)) > 400, "{blocks}");
    (0..FRAMES * 3 / 4).step_by(3).for_each(|vpn| {
        assert_eq!(Pins.load(&manager, space, Vpn(vpn), 0), Ok(vpn + 1));
    });
}
