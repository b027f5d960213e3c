//! Sequential readers of files: readahead, its transfers, and the remaining waits. By counters, in
//! virtual time, with one seed.

use crate::common::{device, machine, setup};
use highwater_mm::config::history::{History, ReadaheadBy};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::{Access, Config, Manager, Range};
use highwater_platform::{Clock, Event, Locks, Memory, Recency};
use highwater_sim::machine::{Answer, DeviceSpec, Role};
use highwater_sim::{InjectedFaults, Sim, SimConfig, Vm, simulate};
use highwater_units::{Nanos, PAGE_SIZE, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const FRAMES: u32 = 16_384;
const PAGES: u64 = 4 * FRAMES as u64;
const RECENCIES: [Recency; 2] = [Recency::AccessedBit, Recency::Unmapping];

/// An NVMe disk: 3.2 GB/s, 85 us, 55 concurrent transfers.
fn nvme() -> DeviceSpec {
    DeviceSpec {
        name: "nvme".into(),
        role: Role::File,
        read_latency: 85_000,
        read_mb_per_s: 3_200,
        write_mb_per_s: 1_800,
        channels: 55,
        ..device(Answer::Asynchronous)
    }
}

fn with(pages: usize) -> Config {
    Config { file_readahead: pages, ..Config::default() }
}

struct World {
    manager: Manager<Sim>,
    spaces: Vec<SpaceId>,
    injected_faults: Arc<InjectedFaults>,
}

impl World {
    fn load(&self, space: SpaceId, page: u64) -> Result<(), highwater_mm::FaultError> {
        let pin = self.manager.pin(space, Vpn(page), Access::Read)?;
        assert_eq!(self.manager.platform().load(pin.pfn(), 7), 0);
        Ok(())
    }
}

/// Runs `main` over `files` files, then verifies the manager. Returns the time and the counters.
fn run(
    recency: Recency,
    config: Config,
    files: u8,
    main: impl Fn(&World, &dyn Fn()) + Copy + 'static,
) -> (Nanos, Snapshot) {
    let whole = move |vm: &Vm| {
        let injected_faults = Arc::new(InjectedFaults::default());
        let swap = (device(Answer::Asynchronous), FRAMES);
        let file = |_| (nvme(), PAGES as u32);
        let platform = SimConfig {
            frames: vec![FRAMES],
            devices: [swap].into_iter().chain((0..files).map(file)).collect(),
            recency,
            injected_faults: injected_faults.clone(),
        };
        let manager = Manager::start(Sim::new(vm, platform), config.clone()).expect("threads");
        let add = |device| manager.add_file_space(PAGES, device).expect("a space");
        let spaces = (1..=files).map(add).collect();
        let mut world = World { manager, spaces, injected_faults };
        let start = world.manager.platform().now();
        main(&world, &*vm.beat());
        let took = world.manager.platform().now().since(start);
        let counted = world.manager.statistics();
        world.manager.stop_kswapd();
        world.manager.verify(&[]);
        (took, counted)
    };
    simulate(setup(machine(1, 4), 3), whole).expect("it ends").result
}

/// Reads from the first page to the last.
fn read_through(world: &World, beat: &dyn Fn()) {
    for page in 0..PAGES {
        world.load(world.spaces[0], page).expect("all is well");
        beat();
    }
}

fn rate(took: Nanos) -> u64 {
    PAGES * PAGE_SIZE as u64 * 1000 / took.0
}

/// Like [`with`], with readahead by the reader.
fn by_reader(pages: usize) -> Config {
    let history = History { readahead_by: ReadaheadBy::Reader, ..History::default() };
    Config { history, ..with(pages) }
}

/// Both kinds of readahead: by the reader, and by a pool.
fn both(pages: usize) -> [Config; 2] {
    [with(pages), by_reader(pages)]
}

#[test]
fn a_sequential_reader_keeps_the_disk_busy() {
    let [threads, reader] = both(256);
    let table = [
        (Recency::AccessedBit, threads.clone(), 95),
        (Recency::Unmapping, threads, 80),
        (Recency::AccessedBit, reader.clone(), 95),
        (Recency::Unmapping, reader, 80),
    ];
    for (recency, config, percent) in table {
        let (alone, _) = run(recency, with(0), 1, read_through);
        let windows_max = match config.history.readahead_by {
            ReadaheadBy::Threads => PAGES / 256 + 32,
            // One fault for each batch of 64 pages, which maps it.
            ReadaheadBy::Reader => PAGES / 256 + PAGES / 64 + 64,
        };
        let (ahead, counted) = run(recency, config, 1, read_through);
        let get = |counter| counted.get(counter);
        assert!(rate(ahead) * 100 >= 3200 * percent, "{recency:?}: {} MB/s", rate(ahead));
        assert!(rate(ahead) >= 4 * rate(alone), "{recency:?}: {} MB/s alone", rate(alone));
        assert!(get(Counter::PgMajFault) <= 20, "{recency:?}: reads that a fault made itself");
        let windows = get(Counter::PgFault);
        assert!(windows <= windows_max, "{recency:?}: {windows} faults");
        // A transfer has up to 16 pages.
        let ios = get(Counter::FileInIos);
        assert!(ios <= PAGES / 16 + PAGES / 256, "{recency:?}: {ios} transfers");
        let [ra, hits] = [Counter::FileRa, Counter::FileRaHit].map(get);
        assert!(hits <= ra && hits * 100 >= ra * 98, "{recency:?}: {hits} of {ra}");
        assert_eq!(get(Counter::FileRaWasted), 0, "{recency:?}");
    }
}

/// 5 us of work per page: a quarter of the disk's bandwidth.
fn read_slowly(world: &World, beat: &dyn Fn()) {
    let pause = world.manager.platform().new_event();
    for page in 0..PAGES / 2 {
        world.load(world.spaces[0], page).expect("all is well");
        pause.wait(pause.ticket(), Some(Nanos(5_000)));
        beat();
    }
}

#[test]
fn a_reader_slower_than_the_disk_does_not_wait() {
    for (recency, config) in RECENCIES.into_iter().flat_map(|r| both(256).map(|c| (r, c))) {
        let (_, counted) = run(recency, config, 1, read_slowly);
        let waits = [Counter::PgMajFault, Counter::FaultWait].map(|c| counted.get(c));
        assert!(waits.iter().sum::<u64>() <= 12, "{recency:?}: {waits:?}");
    }
}

fn read_anywhere(world: &World, beat: &dyn Fn()) {
    let mut random = Prng::new(7);
    for _ in 0..20_000 {
        world.load(world.spaces[0], 1 + random.below(PAGES - 1)).expect("all is well");
        beat();
    }
}

#[test]
fn random_reads_trigger_no_readahead() {
    for recency in RECENCIES {
        let (_, counted) = run(recency, with(256), 1, read_anywhere);
        let [read, ra] = [Counter::PgFileIn, Counter::FileRa].map(|c| counted.get(c));
        assert!(read > 10_000 && ra * 100 <= read, "{recency:?}: {ra} of {read} pages");
    }
}

/// Readers of parts of two files. The readers alternate.
fn take_turns<const READERS: u64>(world: &World, beat: &dyn Fn()) {
    let (each, pages) = (PAGES / READERS, 4000);
    for page in 0..pages.min(each) {
        for reader in 0..READERS {
            let space = world.spaces[reader as usize % 2];
            world.load(space, reader * each + page).expect("all is well");
            beat();
        }
    }
}

#[test]
fn alternating_readers_do_not_disturb_each_other() {
    for (recency, config) in RECENCIES.into_iter().flat_map(|r| both(256).map(|c| (r, c))) {
        let (_, counted) = run(recency, config, 2, take_turns::<16>);
        let [read, major, wasted] = [Counter::PgFileIn, Counter::PgMajFault, Counter::FileRaWasted]
            .map(|counter| counted.get(counter));
        assert!(major * 200 <= read, "{recency:?}: {major} faults read, of {read} pages");
        assert!(wasted * 100 <= read, "{recency:?}: {wasted} wasted of {read}");
    }
}

/// The pages read when alternating readers read 65536 pages of two files twice.
fn read_in_turns<const READERS: u64>(recency: Recency) -> u64 {
    let main = |world: &World, beat: &dyn Fn()| {
        (0..2).for_each(|_| take_turns::<READERS>(world, beat));
    };
    run(recency, with(256), 2, main).1.get(Counter::PgFileIn)
}

/// Two windows of 256 pages for each of 64 readers are twice the memory. Without a limit on the
/// windows, at least 1.5 and 2 times the used pages would be read.
#[test]
fn windows_shrink_if_readers_exceed_memory() {
    for recency in RECENCIES {
        let used = 2 * PAGES;
        let read = read_in_turns::<64>(recency);
        assert!(read * 100 <= used * 115, "{recency:?}: {read} read, {used} used");
        let read = read_in_turns::<128>(recency);
        assert!(read * 100 <= used * 150, "{recency:?}: {read} read, {used} used");
    }
}

/// Transfers fail, some after their first pages: with retries every page can still be read.
fn read_through_failures(world: &World, beat: &dyn Fn()) {
    world.injected_faults.reads.store(100, Relaxed);
    world.injected_faults.short.store(500, Relaxed);
    for page in 0..PAGES / 8 {
        let read = (0..100).find(|_| world.load(world.spaces[0], page).is_ok());
        assert!(read.is_some(), "page {page} cannot be read");
        beat();
    }
    world.injected_faults.end();
}

#[test]
fn a_fault_reads_pages_whose_readahead_failed() {
    for (recency, config) in RECENCIES.into_iter().flat_map(|r| both(256).map(|c| (r, c))) {
        let (_, counted) = run(recency, config, 1, read_through_failures);
        assert!(counted.get(Counter::SwapIoErrors) > 50, "{recency:?}");
        let [read, ra] = [Counter::PgFileIn, Counter::FileRa].map(|c| counted.get(c));
        assert!(ra * 2 > read, "{recency:?}: {ra} of {read} pages are read ahead all the same");
    }
}

/// The only reader reads some pages and stops; later all pages are dropped.
fn leave_behind(world: &World, beat: &dyn Fn()) {
    for page in 0..100 {
        world.load(world.spaces[0], page).expect("all is well");
        beat();
    }
    let pause = world.manager.platform().new_event();
    pause.wait(pause.ticket(), Some(Nanos(30_000_000)));
    let wanted = Range { first: Vpn(0), end: Vpn(PAGES) };
    world.manager.discard(world.spaces[0], wanted);
    assert_eq!(world.manager.statistics().get(Counter::Resident), 0, "all that was read is gone");
}

#[test]
fn readahead_completes_after_its_reader_stops() {
    for recency in RECENCIES {
        let (_, counted) = run(recency, by_reader(256), 1, leave_behind);
        let [read, ra] = [Counter::PgFileIn, Counter::FileRa].map(|c| counted.get(c));
        assert!(read > 100 && ra > 0, "{recency:?}: {read} pages, {ra} ahead");
    }
}

/// Four readers with a disk each are faster than one kswapd thread, which must unmap every page to
/// detect accesses.
fn outrun_kswapd(config: Config) -> Snapshot {
    let whole = move |vm: &Vm| {
        let files = (0..4).map(|_| (nvme(), PAGES as u32 / 4));
        let platform = SimConfig {
            frames: vec![FRAMES],
            devices: [(device(Answer::Asynchronous), FRAMES)].into_iter().chain(files).collect(),
            recency: Recency::Unmapping,
            injected_faults: Arc::new(InjectedFaults::default()),
        };
        let mut manager = Manager::start(Sim::new(vm, platform), config.clone()).expect("threads");
        let add = |device| manager.add_file_space(PAGES / 4, device).expect("a space");
        let spaces: Vec<SpaceId> = (1..=4).map(add).collect();
        let beat = vm.beat();
        vm.scope(4, "reader", &|reader| {
            for page in 0..PAGES / 4 {
                drop(manager.pin(spaces[reader], Vpn(page), Access::Read).expect("all is well"));
                beat();
            }
        });
        let counted = manager.statistics();
        manager.stop_kswapd();
        manager.verify(&[]);
        counted
    };
    simulate(setup(machine(1, 8), 3), whole).expect("it ends").result
}

#[test]
fn readers_reclaim_for_their_windows_if_kswapd_falls_behind() {
    let [threads, reader] = both(256).map(outrun_kswapd);
    let stalls = [&threads, &reader].map(|counted| counted.get(Counter::AllocStall));
    assert!(stalls[1] > 100, "{stalls:?} direct reclaims");
    let [direct, ra] = [Counter::PgStealDirect, Counter::FileRa].map(|c| reader.get(c));
    assert!(direct > 32 * 100, "{direct} pages freed directly");
    assert!(ra * 100 >= PAGES * 90, "{ra} of {PAGES} pages are read ahead all the same");
}
