//! Pages of 4 KiB to 2 MiB: each contiguous in memory, read and written at once.

mod common;

use common::{Trouble, memory};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager, Range, StartError};
use highwater_os::Os;
use highwater_platform::Latency;
use highwater_platform::conformance::Watchdog;
use highwater_units::{Bytes, Order, PAGE_SIZE, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::time::Duration;

/// A manager with a device, and a space of pages of an order: four times as much as memory.
fn setup(order: Order, latency: Latency) -> (Manager<Os>, SpaceId, u64) {
    let frames = (24u64 << order.0).max(64);
    let pages = 4 * (frames >> order.0);
    let device = memory((2 * pages) << order.0, latency, &Arc::new(Trouble::default()));
    let os = Os::new(Bytes::of_pages(frames), vec![device]).expect("an arena");
    let manager = Manager::start(os, Config::default()).expect("threads");
    let space = manager.add_space_of(pages, order).expect("a space");
    (manager, space, pages)
}

/// The bytes of a pinned page, for as long as `act` runs.
fn with_bytes<R>(
    manager: &Manager<Os>,
    space: SpaceId,
    page: u64,
    access: Access,
    act: impl FnOnce(&mut [u64]) -> R,
) -> R {
    let pin = manager.pin(space, Vpn(page), access).expect("memory and slots");
    let words = pin.frames() as usize * PAGE_SIZE / size_of::<u64>();
    let address = manager.platform().frame(pin.pfn()).cast::<u64>();
    assert_eq!(address as usize % 8, 0);
    // SAFETY: the pin holds the page's frames, which are adjacent; one thread uses each page.
    act(unsafe { std::slice::from_raw_parts_mut(address, words) })
}

fn value(page: u64, version: u64, word: usize) -> u64 {
    page << 40 | version << 20 | word as u64
}

/// Every word of every page of every order, again and again, in a quarter of the memory.
#[test]
fn pages_of_all_orders_hold_what_was_written() {
    for (order, latency) in (0..=9).flat_map(|order| {
        [Latency::Synchronous, Latency::Asynchronous].map(|latency| (Order(order), latency))
    }) {
        let watchdog = Watchdog::new(&format!("{order:?}, {latency:?}"), Duration::from_secs(40));
        let (mut manager, space, pages) = setup(order, latency);
        let mut versions = vec![0; pages as usize];
        let mut random = Prng::new(order.0.into());
        for step in 1..400 {
            watchdog.beat();
            let page = random.below(pages);
            let version = &mut versions[page as usize];
            let access = if random.percent(50) { Access::Write } else { Access::Read };
            with_bytes(&manager, space, page, access, |words| {
                assert_eq!(words.len(), 512 << order.0);
                for (word, found) in words.iter_mut().enumerate() {
                    let expected = if *version == 0 { 0 } else { value(page, *version, word) };
                    assert_eq!(*found, expected, "word {word} of page {page}, {order:?}");
                    if access == Access::Write {
                        *found = value(page, step, word);
                    }
                }
            });
            if access == Access::Write {
                *version = step;
            }
            if random.percent(3) {
                manager.discard(space, Range { first: Vpn(page), end: Vpn(page + 1) });
                *version = 0;
            }
        }
        manager.stop_kswapd();
        manager.verify(&[]);
        let now = manager.statistics();
        for [pages, ios] in
            [[Counter::PswpOut, Counter::SwapOutIos], [Counter::PswpIn, Counter::SwapInIos]]
        {
            let (pages, ios) = (now.get(pages), now.get(ios));
            assert!(ios > 0, "{order:?}: pages went and came");
            if order > Order(0) {
                assert_eq!(pages, ios << order.0, "{order:?}: a transfer for each page");
            }
        }
        manager.discard(space, Range { first: Vpn(0), end: Vpn(pages) });
        manager.verify(&[]);
        assert_eq!(manager.statistics().get(Counter::SlotsUsed), 0);
    }
}

/// Threads use pages of their own, others move the frames of all.
#[test]
fn pages_of_an_order_are_moved_whole_while_they_are_used() {
    use highwater_mm::compact::Mode;
    use highwater_mm::space::Page;
    for order in [2, 5].map(Order) {
        let watchdog = Watchdog::new("moved folios", Duration::from_secs(40));
        let (mut manager, space, pages) = setup(order, Latency::Asynchronous);
        std::thread::scope(|scope| {
            let (manager, watchdog) = (&manager, &watchdog);
            let users: Vec<_> = (0..3)
                .map(|thread| scope.spawn(move || use_own(manager, watchdog, space, thread, pages)))
                .collect();
            let mut random = Prng::new(1);
            while !users.iter().all(|user| user.is_finished()) {
                let vpn = Vpn(random.below(pages));
                if let Page::Resident(head) = manager.machine().space(space).entry(vpn).page() {
                    manager.migrate_folio(head, Mode::Sync);
                }
            }
        });
        assert!(manager.statistics().get(Counter::PgMigrateSuccess) > 0, "{order:?}");
        manager.stop_kswapd();
        manager.verify(&[]);
    }
}

fn use_own(manager: &Manager<Os>, watchdog: &Watchdog, space: SpaceId, thread: u64, pages: u64) {
    let mut versions = vec![0; pages as usize];
    let mut random = Prng::new(thread);
    for step in 1..1500 {
        watchdog.beat();
        let page = random.below(pages / 3) * 3 + thread;
        let version = &mut versions[page as usize];
        with_bytes(manager, space, page, Access::Write, |words| {
            let expected = |word| if *version == 0 { 0 } else { value(page, *version, word) };
            assert!(words.iter().enumerate().all(|(word, found)| *found == expected(word)));
            let each = words.iter_mut().enumerate();
            each.for_each(|(word, place)| *place = value(page, step, word));
        });
        *version = step;
    }
}

#[test]
fn orders_have_a_limit() {
    let (manager, ..) = setup(Order(1), Latency::Synchronous);
    assert!(matches!(manager.add_space_of(1, Order(10)), Err(StartError::Config(_))));
    assert!(manager.add_space_of(1, Order(9)).is_ok());
}
