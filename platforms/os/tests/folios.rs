//! Pages of 4 KiB to 2 MiB: each contiguous in memory, and read and written in one transfer.

use crate::common::memory;
use highwater_devices::Faults;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, FaultError, Manager, Range, StartError};
use highwater_os::Os;
use highwater_platform::{Latency, Memory};
use highwater_testkit::Watchdog;
use highwater_units::{Bytes, Nanos, Order, PAGE_SIZE, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::time::Duration;

/// A manager with a device, and a space of pages of an order that is four times as large as memory.
fn setup(order: Order, latency: Latency) -> (Manager<Os>, SpaceId, u64) {
    let frames = (24u64 << order.0).max(64);
    let pages = 4 * (frames >> order.0);
    let device = memory((2 * pages) << order.0, latency, &Arc::new(Faults::default()));
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

/// Writes and reads every word of pages of every order, in a quarter of the memory.
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

/// Threads use pages of their own while another migrates all pages.
#[test]
fn pages_of_an_order_are_migrated_while_they_are_used() {
    use highwater_mm::inspect::{Mode, Page};
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
                if let Page::Resident(head) = manager.inspect().space(space).entry(vpn).page() {
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
    let is_moved = || manager.statistics().get(Counter::PgMigrateSuccess) > 0;
    // A loaded machine may not run the thread that moves pages before the first steps are over.
    for step in (1..300_000).take_while(|step| *step < 1500 || !is_moved()) {
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

/// A space of single pages leaves every other slot in use. Pages of 16 frames find no run of slots
/// and fill the memory; then an allocation soon fails, although there are free slots.
#[test]
fn memory_full_of_pages_without_runs_of_slots_is_out_of_memory_soon() {
    const FRAMES: u64 = 1024;
    let device = memory(4 * FRAMES, Latency::Synchronous, &Arc::new(Faults::default()));
    let os = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    let mut manager = Manager::start(os, Config::default()).expect("threads");
    let singles = manager.add_space(8 * FRAMES).expect("a space");
    let folios = manager.add_space_of(FRAMES, Order(4)).expect("a space");
    let store = |space, vpn: u64| -> Result<(), FaultError> {
        let pin = manager.pin(space, Vpn(vpn), Access::Write)?;
        for frame in 0..pin.frames() {
            manager.platform().store(pin.pfn().offset(frame), 3, vpn + 1);
        }
        Ok(())
    };
    let made: u64 = (0..5 * FRAMES).take_while(|vpn| store(singles, *vpn).is_ok()).count() as u64;
    for vpn in (0..made).filter(|vpn| vpn % 2 == 1) {
        manager.discard(singles, Range { first: Vpn(vpn), end: Vpn(vpn + 1) });
    }
    let kept = (0..FRAMES).take_while(|vpn| store(folios, *vpn).is_ok()).count() as u64;
    assert!(kept > FRAMES / 16 / 2, "{kept} pages of 16 in memory and swapped");
    // These pages are in use, and cannot be evicted in their turn.
    let pins: Vec<_> = (made..8 * FRAMES)
        .map_while(|vpn| manager.pin(singles, Vpn(vpn), Access::Write).ok())
        .collect();
    assert!(pins.len() < FRAMES as usize, "memory is full");
    let seen = manager.inspect().stats.shortage().expect("somebody ran out of memory");
    assert!(seen.slots_used < seen.slots, "{seen:?}");
    assert!(seen.waited < Nanos(10_000_000_000), "nothing can be waited for: {seen:?}");
    drop(pins);
    let load = |space, vpn| {
        manager.pin(space, Vpn(vpn), Access::Read).map(|pin| {
            let frames = (0..pin.frames()).map(|frame| pin.pfn().offset(frame));
            assert!(frames.map(|pfn| manager.platform().load(pfn, 3)).all(|word| word == vpn + 1));
        })
    };
    let found = (0..kept).filter(|vpn| load(folios, *vpn).is_ok()).count() as u64;
    assert!(found * 16 > FRAMES / 2, "what is in memory is as it was stored: {found} pages");
    manager.stop_kswapd();
    manager.verify(&[]);
}
