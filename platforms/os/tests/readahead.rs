//! Readahead: which pages are read along with a page, and whether they are used. One thread, on one
//! CPU, without kswapd.

use crate::common;
use highwater_devices::{Device, FaultKind, Faults};
use highwater_mm::config::Readahead;
use highwater_mm::config::history::SwapIn;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::{Access, Config, Manager};
use highwater_os::Os;
use highwater_platform::{Latency, Medium, Memory};
use highwater_testkit::Watchdog;
use highwater_units::{Bytes, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::time::Duration;

const FRAMES: u64 = 2048;
const PAGES: u64 = 4 * FRAMES;
const SPACE: SpaceId = SpaceId(0);

fn manager(medium: Medium, config: Config, injected: &Arc<Faults>) -> Manager<Os> {
    let mut device: Box<dyn Device> = common::memory(4 * PAGES, Latency::Asynchronous, injected);
    device.info_mut().medium = medium;
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    let mut manager = Manager::start(platform, config).expect("threads");
    manager.stop_kswapd();
    assert_eq!(manager.add_space(PAGES).expect("a space"), SPACE);
    manager
}

/// Writes pages; the first word of each is its number plus one.
fn write(manager: &Manager<Os>, pages: &[u64]) {
    for page in pages {
        let pin = manager.pin(SPACE, Vpn(*page), Access::Write).expect("room for all");
        manager.platform().store(pin.pfn(), 0, page + 1);
    }
}

/// Reads pages, again after errors; returns the counts of these reads.
fn read(manager: &Manager<Os>, pages: &[u64]) -> [u64; 4] {
    let before = manager.statistics();
    for page in pages {
        let pin = (0..100).find_map(|_| manager.pin(SPACE, Vpn(*page), Access::Read).ok());
        let pin = pin.expect("one of many attempts");
        assert_eq!(manager.platform().load(pin.pfn(), 0), page + 1, "page {page}");
    }
    let after: Snapshot = manager.statistics();
    [Counter::PgMajFault, Counter::SwapRa, Counter::SwapRaHit, Counter::SwapRaWasted]
        .map(|counter| after.get(counter) - before.get(counter))
}

/// All pages in random order.
fn shuffled(seed: u64) -> Vec<u64> {
    let mut random = Prng::new(seed);
    let mut pages: Vec<u64> = (0..PAGES).collect();
    for at in (1..pages.len()).rev() {
        pages.swap(at, random.below(at as u64 + 1) as usize);
    }
    pages
}

fn with(readahead: Readahead) -> Config {
    Config { readahead, ..Config::default() }
}

#[test]
fn a_stream_to_lower_addresses_is_read_in_windows() {
    let _watchdog = Watchdog::new("descending", Duration::from_secs(60));
    let manager = manager(Medium::SolidState, with(Readahead::Virtual), &Arc::default());
    let all: Vec<u64> = (0..PAGES).collect();
    write(&manager, &all);
    let descending: Vec<u64> = (0..PAGES).rev().collect();
    let [major, ahead, hits, wasted] = read(&manager, &descending);
    assert!(major * 15 <= PAGES && ahead > PAGES / 2, "{major} major, {ahead} ahead");
    assert!(hits * 100 >= ahead * 98 && wasted * 100 <= ahead, "{hits}, {wasted} of {ahead}");
    manager.verify(&[]);
}

#[test]
fn a_stream_uses_what_is_read_ahead() {
    let _watchdog = Watchdog::new("stream", Duration::from_secs(60));
    let all: Vec<u64> = (0..PAGES).collect();
    for readahead in [Readahead::Auto, Readahead::Virtual] {
        let manager = manager(Medium::SolidState, with(readahead), &Arc::default());
        write(&manager, &all);
        let [major, ahead, hits, wasted] = read(&manager, &all);
        assert!(major * 8 <= PAGES && ahead > PAGES / 2, "{major} major, {ahead} ahead");
        assert!(hits <= ahead && hits * 100 >= ahead * 98, "{hits} of {ahead}");
        assert!(wasted * 100 <= ahead, "{wasted} of {ahead}");
        manager.verify(&[]);
    }
}

/// Two adjacent faults are taken for a stream: the next two pages are read in vain.
#[test]
fn unused_pages_count_as_wasted() {
    let _watchdog = Watchdog::new("wasted", Duration::from_secs(60));
    let manager = manager(Medium::SolidState, Config::default(), &Arc::default());
    write(&manager, &shuffled(1));
    let pairs: Vec<u64> = shuffled(2).iter().map(|page| page & !7).collect();
    let pairs: Vec<u64> = pairs.iter().flat_map(|page| [*page, page + 1]).collect();
    let [_, ahead, hits, wasted] = read(&manager, &pairs);
    // The writes left readahead state behind: a few pairs are read together.
    assert!(ahead > PAGES / 4 && hits * 10 <= ahead, "{hits} of {ahead}");
    assert!(wasted * 10 >= ahead * 6 && wasted <= ahead, "{wasted} of {ahead}");
}

#[test]
fn a_disk_that_turns_reads_what_was_written_together() {
    let _watchdog = Watchdog::new("around", Duration::from_secs(60));
    let order = shuffled(3);
    let major = |medium, readahead| {
        let manager = manager(medium, with(readahead), &Arc::default());
        write(&manager, &order);
        let [major, ahead, hits, wasted] = read(&manager, &order);
        assert!(hits + wasted <= ahead, "{hits} and {wasted} of {ahead}");
        manager.verify(&[]);
        (major, ahead, hits)
    };
    let (alone, none, _) = major(Medium::Rotational, Readahead::Off);
    assert!(alone >= PAGES - FRAMES && none == 0, "{alone} major, {none} ahead");
    for (medium, readahead) in
        [(Medium::Rotational, Readahead::Auto), (Medium::SolidState, Readahead::Slot)]
    {
        let (few, ahead, hits) = major(medium, readahead);
        assert!(few * 2 <= alone, "{few} major of {alone}");
        assert!(hits * 10 >= ahead * 8, "{hits} of {ahead}");
    }
}

#[test]
fn random_reads_soon_stop_reading_around() {
    let _watchdog = Watchdog::new("random", Duration::from_secs(60));
    let manager = manager(Medium::Rotational, Config::default(), &Arc::default());
    write(&manager, &shuffled(4));
    let [major, ahead, ..] = read(&manager, &shuffled(5));
    assert!(ahead * 3 <= major, "{ahead} ahead for {major}");
}

/// Contents stay correct when reads fail, also through the swap cache.
#[test]
fn reads_that_fail_lose_nothing() {
    let _watchdog = Watchdog::new("failing", Duration::from_secs(60));
    for (medium, swap_in) in [
        (Medium::Rotational, SwapIn::Direct),
        (Medium::Rotational, SwapIn::Cached),
        (Medium::SolidState, SwapIn::Cached),
    ] {
        let injected = Arc::new(Faults::default());
        let mut config = Config::default();
        config.history.swap.swap_in = swap_in;
        let manager = manager(medium, config, &injected);
        let order = shuffled(6);
        write(&manager, &order);
        injected.set(FaultKind::Read, common::percent(30));
        read(&manager, &order);
        read(&manager, &(0..PAGES).collect::<Vec<_>>());
        injected.end();
        manager.verify(&[]);
    }
}
