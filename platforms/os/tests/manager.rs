//! The test of the whole manager on real threads and devices, against a model of all contents.

use crate::common;
use highwater_devices::{Algorithm, Device, FaultKind, Faults, When};
use highwater_mm::Config;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Fault, FaultError, Manager, Range};
use highwater_os::Os;
use highwater_platform::Latency;
use highwater_testkit::trial::{
    self, Beat, Failures, Mix, Operation, Outcome, Pins, Plan, Program, Reach,
};
use highwater_testkit::{Watchdog, seeds};
use highwater_units::{Bytes, Order, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A plan, and the machine that runs it.
struct Case {
    plan: Plan,
    frames: u64,
    injected: Arc<Faults>,
    devices: Vec<Box<dyn Device>>,
}

/// A case drawn from a seed: 64 frames in half of the cases, devices that are never full.
fn draw(seed: u64, threads: usize, steps: usize) -> Case {
    let mut random = Prng::new(seed ^ 0xd1ce);
    let frames = if random.percent(50) { 64 } else { 40 + random.below(2000) };
    let plan = Plan { threads, ..Plan::draw(seed, frames, steps) };
    let injected = Arc::new(Faults::default());
    match random.below(4) * random.below(8) {
        0 => {}
        rate => injected.set(FaultKind::Delay, When::Rate(rate as u16)),
    }
    let latency = if random.percent(60) { Latency::Asynchronous } else { Latency::Synchronous };
    let mut devices = vec![common::memory(plan.slots(), latency, &injected)];
    // In some cases a small device comes first, which is always full and used by all CPUs.
    if random.percent(50) {
        devices.insert(0, common::memory(256 + random.below(600), latency, &injected));
    }
    if random.percent(60) {
        devices.push(common::home(256 + random.below(600), latency, &injected));
    }
    Case { plan, frames, injected, devices }
}

/// Reports progress to a watchdog, which runs as long as this value exists.
fn beat(name: &str, seed: u64) -> Beat {
    common::print_panics_of_threads();
    let watchdog = Watchdog::new(&format!("{name}, seed {seed}"), Duration::from_secs(40));
    Arc::new(move || watchdog.beat())
}

fn run(name: &str, seed: u64, case: Case) -> Outcome {
    run_program(name, Pins, seed, case)
}

fn run_program(name: &str, program: impl Program<Os>, seed: u64, case: Case) -> Outcome {
    let os = Os::new(Bytes::of_pages(case.frames), case.devices).expect("an arena");
    trial::run(os, program, &case.plan, seed, beat(name, seed), || case.injected.end())
}

fn run_full(name: &str, seed: u64, case: Case) -> Outcome {
    let os = Os::new(Bytes::of_pages(case.frames), case.devices).expect("an arena");
    trial::run_full(os, Pins, &case.plan, seed, beat(name, seed))
}

/// Pins each page for one access only, as a program with page tables.
struct Accesses;

impl Program<Os> for Accesses {
    fn reach(&self) -> Reach {
        Reach::PageTables
    }

    fn load(&self, m: &Manager<Os>, s: SpaceId, vpn: Vpn, word: usize) -> Result<u64, FaultError> {
        Pins.load(m, s, vpn, word)
    }

    fn store(
        &self,
        m: &Manager<Os>,
        s: SpaceId,
        vpn: Vpn,
        word: usize,
        value: u64,
    ) -> Result<(), FaultError> {
        Pins.store(m, s, vpn, word, value)
    }
}

#[test]
fn one_thread_reads_back_what_it_wrote() {
    seeds(12, |seed| {
        run("one thread", seed, draw(seed, 1, 8000));
    });
}

#[test]
fn kswapd_threads_come_and_go() {
    seeds(4, |seed| {
        let drawn = draw(seed, 3, 1500);
        let plan = Plan { changes: 200, ..drawn.plan };
        run("kswapd threads", seed, Case { plan, ..drawn });
    });
}

#[test]
fn large_pages_hold_what_was_written() {
    let collapsed = AtomicU64::new(0);
    seeds(6, |seed| {
        let drawn = draw(seed, 1 + seed as usize % 4, 3000);
        let config = Config { large_pages: true, ..drawn.plan.config.clone() };
        let plan = Plan { config, pages: 1500 + 300 * (seed % 8), ..drawn.plan };
        let devices = vec![common::memory(plan.slots(), Latency::Synchronous, &drawn.injected)];
        let case = Case { plan, frames: 2100 + 500 * (seed % 4), devices, ..drawn };
        let outcome = run("large pages", seed, case);
        let count = |counter| outcome.statistics.get(counter);
        assert!(count(Counter::ThpFaultAlloc) > 0, "seed {seed}");
        assert!(count(Counter::ThpSwpOut) + count(Counter::ThpSplitPage) > 0, "seed {seed}");
        collapsed.fetch_add(count(Counter::KhugepagedCollapsed), Relaxed);
    });
    assert!(collapsed.into_inner() > 0, "single pages became large ones");
}

#[test]
fn two_threads_read_back_what_they_wrote() {
    seeds(10, |seed| {
        run("two threads", seed, draw(seed, 2, 6000));
    });
}

#[test]
fn eight_threads_read_back_what_they_wrote() {
    seeds(10, |seed| {
        run("eight threads", seed, draw(seed, 8, 1500));
    });
}

/// The words of a page are stored one by one: each store may fail independently.
#[test]
fn single_accesses_read_back_what_was_written() {
    seeds(6, |seed| {
        let drawn = draw(seed, 3, 2000);
        let (failures, percent) = match seed % 2 {
            0 => (Failures::None, 0),
            _ => (Failures::Allowed, 10),
        };
        drawn.injected.set(FaultKind::Read, common::percent(percent));
        common::fail_writes(&drawn.injected, percent);
        let plan = Plan { failures, ..drawn.plan };
        run_program("single accesses", Accesses, seed, Case { plan, ..drawn });
    });
}

#[test]
fn contents_survive_on_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    seeds(2, |seed| {
        let drawn = draw(seed, 4, 800);
        let injected = Arc::new(Faults::default());
        let devices = vec![common::file(1 << 14, dir.path(), &injected)];
        let plan = Plan { pages: 200, ..drawn.plan };
        run("on a file", seed, Case { plan, frames: 64, injected, devices });
    });
}

/// A compressed device frees all memory in the end, also after failed writes.
#[test]
fn contents_survive_compression_and_nothing_stays() {
    seeds(6, |seed| {
        let drawn = draw(seed, 1 + seed as usize % 4, 1500);
        let algorithm = [Algorithm::Lz4, Algorithm::Zstd][seed as usize % 2];
        common::fail_writes(&drawn.injected, seed % 3 * 8);
        let failures = [Failures::None, Failures::Allowed, Failures::Allowed][seed as usize % 3];
        let size = Bytes::of_pages(drawn.plan.slots());
        let (device, held) = common::compressed(size, algorithm, &drawn.injected);
        let plan = Plan { failures, ..drawn.plan };
        run("compressed", seed, Case { plan, devices: vec![device], ..drawn });
        assert_eq!(held.compression().map(|held| held.pages), Some(0), "seed {seed}");
    });
}

/// There are free slots but no memory for them: pages stay resident, and errors are reported.
#[test]
fn compressed_memory_at_its_limit_is_an_error() {
    let failures = AtomicU64::new(0);
    seeds(2, |seed| {
        let drawn = draw(seed, 2 + seed as usize % 3, 150);
        let size = Bytes::of_pages(256);
        let (device, held) = common::compressed(size, Algorithm::Lz4, &drawn.injected);
        let mut mix = Mix::usual();
        mix.set(Operation::Copy, 0);
        let plan = Plan { pages: 1200, mix, failures: Failures::Allowed, ..drawn.plan };
        let devices = vec![device];
        let outcome = run_full("no memory", seed, Case { plan, frames: 64, devices, ..drawn });
        failures.fetch_add(outcome.failures, Relaxed);
        assert_eq!(held.compression().map(|held| held.pages), Some(0), "seed {seed}");
    });
    assert!(failures.into_inner() > 0, "there was room for all");
}

/// Most pages are written back to the slow level, whose transfers fail in two of three runs.
#[test]
fn contents_survive_two_levels_and_nothing_stays() {
    let moved = AtomicU64::new(0);
    seeds(6, |seed| {
        let drawn = draw(seed, 1 + seed as usize % 4, 2000);
        common::fail_writes(&drawn.injected, seed % 3 * 8);
        drawn.injected.set(FaultKind::Read, common::percent(seed % 3 * 2));
        let failures = [Failures::None, Failures::Allowed, Failures::Allowed][seed as usize % 3];
        let plan = Plan { failures, pages: drawn.plan.pages.max(600), ..drawn.plan };
        let (device, held) = common::tiered(plan.slots(), &drawn.injected);
        run("two levels", seed, Case { plan, frames: 64, devices: vec![device], ..drawn });
        // Pages that are being moved are in both levels.
        held.pause();
        let held = held.tiering().expect("a tier");
        assert_eq!((held.fast_pages, held.slow_pages), (0, 0), "seed {seed}");
        moved.fetch_add(held.written_back, Relaxed);
    });
    assert!(moved.into_inner() > 0, "no page was written back");
}

/// Some transfers fail: contents stay correct, and errors are reported.
#[test]
fn failing_devices_lose_nothing() {
    let failures = AtomicU64::new(0);
    seeds(10, |seed| {
        let drawn = draw(seed, 1 + seed as usize % 4, 2500);
        drawn.injected.set(FaultKind::Read, common::percent(seed % 3 * 4));
        common::fail_writes(&drawn.injected, seed % 4 * 15);
        drawn.injected.set(FaultKind::Short, common::percent(seed % 5));
        let plan = Plan { failures: Failures::Allowed, ..drawn.plan };
        let outcome = run("failing device", seed, Case { plan, ..drawn });
        failures.fetch_add(outcome.failures, Relaxed);
    });
    assert!(failures.into_inner() > 0, "no error was said");
}

/// Devices that are too small: the error is reported, and freed slots are used again.
#[test]
fn a_full_device_is_an_error() {
    let failures = AtomicU64::new(0);
    seeds(4, |seed| {
        let drawn = draw(seed, 2 + seed as usize % 3, 200);
        let devices = vec![common::memory(256, Latency::Asynchronous, &drawn.injected)];
        let mut mix = Mix::usual();
        mix.set(Operation::Copy, 0);
        let plan = Plan { pages: 100, mix, failures: Failures::Allowed, ..drawn.plan };
        let outcome = run_full("full device", seed, Case { plan, frames: 64, devices, ..drawn });
        failures.fetch_add(outcome.failures, Relaxed);
    });
    assert!(failures.into_inner() > 0, "no device was full");
}

#[test]
fn pages_beyond_the_end_are_refused() {
    const PAGES: u64 = 10;
    let _watchdog = beat("beyond the end", 0);
    let injected = Arc::new(Faults::default());
    let device = common::memory(64, Latency::Synchronous, &injected);
    let platform = Os::new(Bytes::of_pages(64), vec![device]).expect("an arena");
    let manager = Manager::start(platform, Config::default()).expect("threads");
    let spaces = [manager.add_space(PAGES), manager.add_space_of(PAGES, Order(3))];
    for space in spaces.map(|space| space.expect("a space")) {
        for (page, beyond) in [(PAGES - 1, false), (PAGES, true), (600, true), (1 << 40, true)] {
            let vpn = Vpn(page);
            let expected = if beyond { Some(FaultError::BeyondEnd) } else { None };
            for access in [Access::Read, Access::Write] {
                let pinned = manager.pin(space, vpn, access).map(drop);
                assert_eq!(pinned.err(), expected, "{space:?}, page {page}");
                let within = Range { first: Vpn(0), end: Vpn(PAGES) };
                let served = manager.fault(space, Fault { vpn, access, within });
                assert_eq!(served.err(), expected, "{space:?}, page {page}");
            }
        }
    }
    manager.verify(&[]);
}

/// Writes pinned pages until that fails; returns their number.
fn write_all(manager: &Manager<Os>, space: SpaceId, pages: std::ops::Range<u64>) -> u64 {
    let write = |page: &u64| Pins.store(manager, space, Vpn(*page), 0, page + 1).is_ok();
    pages.take_while(write).count() as u64
}

/// The first allocation that finds a device failing retries with waits; later ones try it without
/// waiting.
#[test]
fn a_device_that_fails_is_waited_for_once() {
    const FRAMES: u64 = 64;
    let _watchdog = beat("failing writes", 0);
    let injected = Arc::new(Faults::default());
    let device = common::memory(1024, Latency::Asynchronous, &injected);
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    let manager = Manager::start(platform, Config::default()).expect("threads");
    let space = manager.add_space(1024).expect("a space");
    injected.set(FaultKind::Write, common::percent(100));
    let there = write_all(&manager, space, 0..1024);
    assert!(there <= FRAMES, "{there} pages are in memory, and none is written");
    let shortage = || manager.inspect().stats.shortage().expect("memory was short");
    assert!(shortage().write_errors > 0, "{:?}", shortage());
    for page in there..there + 20 {
        let failed = Pins.store(&manager, space, Vpn(page), 0, 1);
        assert_eq!(failed, Err(FaultError::OutOfMemory));
        assert_eq!(shortage().rounds, 16, "{:?}", shortage());
    }
    injected.end();
    assert_eq!(write_all(&manager, space, there..1024), 1024 - there, "it works again");
    for page in 0..1024 {
        assert_eq!(Pins.load(&manager, space, Vpn(page), 0), Ok(page + 1));
    }
}

/// Writes are tried for some pages of a round, not for all of memory: each may take long to fail.
#[test]
fn a_device_that_fails_is_not_asked_for_every_page() {
    const FRAMES: u64 = 4096;
    /// Rounds of an allocation, runs tried in each round, and as many runs tried by kswapd.
    const TRIES: u64 = 2 * 16 * 16;
    let _watchdog = beat("failing writes of much memory", 0);
    let injected = Arc::new(Faults::default());
    let device = common::memory(8192, Latency::Asynchronous, &injected);
    let platform = Os::new(Bytes::of_pages(FRAMES), vec![device]).expect("an arena");
    let manager = Manager::start(platform, Config::default()).expect("threads");
    let space = manager.add_space(8192).expect("a space");
    injected.set(FaultKind::Write, common::percent(100));
    let there = write_all(&manager, space, 0..8192);
    assert!(there <= FRAMES, "{there} pages are in memory, and none is written");
    for page in there..there + 5 {
        let failed = Pins.store(&manager, space, Vpn(page), 0, 1);
        assert_eq!(failed, Err(FaultError::OutOfMemory));
        let shortage = manager.inspect().stats.shortage().expect("memory was short");
        assert!((1..=TRIES).contains(&shortage.write_errors), "{shortage:?}");
    }
}
