//! Spaces over files: reads, drops and writeback, by counters.

use crate::common::{device, machine, setup};
use highwater_mm::inspect::Page;
use highwater_mm::inspect::frames;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, FaultError, Manager, Range, StartError};
use highwater_platform::{Block, Io, Memory, Recency};
use highwater_sim::machine::{Answer, DeviceSpec, Role};
use highwater_sim::{InjectedFaults, Sim, SimConfig, Vm, simulate};
use highwater_units::{Nanos, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const FRAMES: u32 = 512;
const PAGES: u64 = 4 * FRAMES as u64;
/// The file's device; device 0 is for swap.
const FILE: u8 = 1;

/// A manager with one space over a file, and the faults that its platform injects.
struct World {
    manager: Manager<Sim>,
    space: SpaceId,
    injected_faults: Arc<InjectedFaults>,
}

impl World {
    fn new(vm: &Vm, recency: Recency, dirty_ratios: [u32; 2]) -> World {
        let (swap, injected_faults) =
            (device(Answer::Asynchronous), Arc::new(InjectedFaults::default()));
        let file = DeviceSpec { name: "file".into(), role: Role::File, ..swap.clone() };
        let pages = PAGES as u32;
        let [dirty_background_ratio, dirty_ratio] = dirty_ratios;
        let settings = Config { dirty_background_ratio, dirty_ratio, ..Config::default() };
        let config = SimConfig {
            frames: vec![FRAMES],
            devices: vec![(swap, pages), (file, pages)],
            recency,
            injected_faults: injected_faults.clone(),
        };
        let manager = Manager::start(Sim::new(vm, config), settings).expect("threads");
        let space = manager.add_file_space(PAGES, FILE).expect("a space");
        World { manager, space, injected_faults }
    }

    fn load(&self, page: u64) -> Result<u64, FaultError> {
        let pin = self.manager.pin(self.space, Vpn(page), Access::Read)?;
        Ok(self.manager.platform().load(pin.pfn(), 7))
    }

    fn store(&self, page: u64, value: u64) {
        let pin = self.manager.pin(self.space, Vpn(page), Access::Write).expect("a page");
        self.manager.platform().store(pin.pfn(), 7, value);
    }

    /// The first word of a page on the device.
    fn on_device(&self, page: u64) -> u64 {
        let (machine, platform) = (self.manager.inspect(), self.manager.platform());
        let frame = frames(machine, 1).expect("a frame");
        let mut io = [Io::new(page as u32, frame)];
        platform.read(FILE, &mut io);
        assert_eq!(io[0].result, Ok(()));
        let found = platform.load(frame[0], 7);
        machine.free(&frame);
        found
    }

    fn write_back(&self, first: u64, end: u64) -> Result<(), FaultError> {
        self.manager.write_back(self.space, Range { first: Vpn(first), end: Vpn(end) })
    }

    fn count(&self, counter: Counter) -> u64 {
        self.manager.statistics().get(counter)
    }
}

/// Runs `main` with a flusher that writes only expired pages, then verifies the manager.
fn run(main: impl Fn(&World) + Copy + 'static) {
    run_flushing([100; 2], move |_, world| main(world));
}

/// Runs `main` with these dirty ratios, in percent, then verifies the manager.
fn run_flushing(dirty_ratios: [u32; 2], main: impl Fn(&Vm, &World) + Copy + 'static) {
    for recency in [Recency::AccessedBit, Recency::Unmapping] {
        let whole = move |vm: &Vm| {
            let mut world = World::new(vm, recency, dirty_ratios);
            main(vm, &world);
            world.manager.stop_kswapd();
            world.manager.verify(&[]);
        };
        simulate(setup(machine(1, 2), 1), whole).expect("it ends");
    }
}

#[test]
fn clean_pages_are_dropped_and_read_again() {
    run(|world| {
        for _ in 0..2 {
            (0..PAGES).for_each(|page| assert_eq!(world.load(page), Ok(0)));
        }
        let read = world.count(Counter::PgFileIn);
        assert!(read >= 2 * PAGES - u64::from(FRAMES), "{read} pages were read");
        let ios = world.count(Counter::FileInIos);
        assert!(ios * 7 <= read, "{ios} reads of {read} pages: a stream reads 16 at a time");
        let none = [Counter::PgFileOut, Counter::PswpOut, Counter::PswpIn, Counter::SlotsUsed];
        assert_eq!(none.map(|counter| world.count(counter)), [0; 4]);
    });
}

#[test]
fn reclaim_writes_dirty_pages_to_the_file() {
    run(|world| {
        (0..PAGES).for_each(|page| world.store(page, page + 1));
        (0..PAGES).for_each(|page| assert_eq!(world.load(page), Ok(page + 1)));
        let (written, ios) = (world.count(Counter::PgFileOut), world.count(Counter::FileOutIos));
        assert!(written >= PAGES - u64::from(FRAMES), "{written} pages were written");
        assert!(ios * 4 <= written, "{ios} writes of {written} pages");
        assert_eq!(world.count(Counter::PswpOut), 0, "files' pages take no slots");
    });
}

#[test]
fn writeback_makes_the_device_equal_to_memory() {
    run(|world| {
        (0..100).for_each(|page| world.store(page, page + 1));
        assert_eq!((world.on_device(3), world.on_device(50)), (0, 0));
        assert_eq!(world.write_back(0, 50), Ok(()));
        assert_eq!((world.on_device(3), world.on_device(50)), (4, 0));
        assert_eq!(world.count(Counter::PgFileOut), 50);
        assert_eq!(world.write_back(0, 50), Ok(()));
        assert_eq!(world.count(Counter::PgFileOut), 50, "nothing has changed since");
        world.store(40, 9);
        assert_eq!(world.write_back(0, PAGES), Ok(()));
        assert_eq!((world.on_device(40), world.on_device(50)), (9, 51));
        // A fault in a stream makes its whole window writable.
        let written = world.count(Counter::PgFileOut);
        assert!((101..=116).contains(&written), "{written} pages were written");
        let read = world.count(Counter::PgFileIn);
        (0..100).for_each(|page| assert!(world.load(page).is_ok()));
        assert_eq!(world.count(Counter::PgFileIn), read, "the pages are still in memory");
    });
}

#[test]
fn dropped_pages_are_read_from_the_device() {
    run(|world| {
        (0..20).for_each(|page| world.store(page, 1));
        assert_eq!(world.write_back(0, 20), Ok(()));
        (0..20).for_each(|page| world.store(page, 2));
        world.manager.discard(world.space, Range { first: Vpn(5), end: Vpn(10) });
        for page in 0..20 {
            let expected = if (5..10).contains(&page) { 1 } else { 2 };
            assert_eq!(world.load(page), Ok(expected), "page {page}");
        }
    });
}

#[test]
fn dirty_pages_stay_if_writeback_fails() {
    run(|world| {
        (0..64).for_each(|page| world.store(page, page + 1));
        world.injected_faults.writes.store(1000, Relaxed);
        assert!(matches!(world.write_back(0, 64), Err(FaultError::Write(_))));
        // Reclaim fails to write them too: it drops clean pages and keeps dirty ones.
        (64..PAGES).for_each(|page| assert_eq!(world.load(page), Ok(0)));
        let read = world.count(Counter::PgFileIn);
        (0..64).for_each(|page| assert_eq!(world.load(page), Ok(page + 1)));
        assert_eq!(world.count(Counter::PgFileIn), read, "they were in memory all the time");
        assert!(world.count(Counter::SwapIoErrors) > 0);
        world.injected_faults.end();
        assert_eq!(world.write_back(0, 64), Ok(()));
        (0..64).for_each(|page| assert_eq!(world.on_device(page), page + 1));
    });
}

#[test]
fn the_flusher_writes_above_the_background_ratio() {
    run_flushing([10, 100], |vm, world| {
        (0..200).for_each(|page| world.store(page, page + 1));
        vm.sleep(Nanos(100_000_000));
        let (dirty, flushed) = (world.count(Counter::Dirty), world.count(Counter::Flushed));
        assert!(dirty <= u64::from(FRAMES) / 10, "{dirty} pages are dirty");
        assert!(flushed >= 200 - dirty, "{flushed} pages were flushed");
        let ios = world.count(Counter::FileOutIos);
        assert!(ios * 8 <= flushed, "{ios} writes of {flushed} pages");
        let clean = (0..200).filter(|page| world.on_device(*page) == page + 1).count() as u64;
        assert!(clean >= 200 - dirty, "{clean} pages are on the device");
        assert_eq!(world.count(Counter::PgStealFile), 0, "the pages are still in memory");
        assert_eq!(world.count(Counter::DirtyThrottle), 0, "nobody waited");
    });
}

#[test]
fn dirty_pages_expire() {
    run_flushing([10, 20], |vm, world| {
        let sleep = |seconds: u64| {
            vm.beat()();
            vm.sleep(Nanos(seconds * 1_000_000_000));
        };
        (0..20).for_each(|page| world.store(page, page + 1));
        sleep(25);
        assert_eq!((world.count(Counter::Flushed), world.on_device(3)), (0, 0));
        sleep(6);
        assert_eq!((world.count(Counter::Dirty), world.on_device(3)), (0, 4));
        // A later dirty page also expires, even though the flusher has slept without work.
        world.store(3, 9);
        sleep(31);
        assert_eq!((world.count(Counter::Dirty), world.on_device(3)), (0, 9));
    });
}

#[test]
fn writers_above_the_dirty_ratio_wait_for_the_flusher() {
    run_flushing([3, 4], |_, world| {
        let mut most = 0;
        for page in 0..PAGES {
            world.store(page, page + 1);
            most = most.max(world.count(Counter::Dirty));
        }
        // Plus a window made writable when there was room for only one page.
        let limit = u64::from(FRAMES) / 25 + 16;
        assert!((limit / 2..=limit).contains(&most), "{most} pages were dirty");
        assert!(world.count(Counter::DirtyThrottle) > 0);
        assert_eq!(world.manager.sync(), Ok(()));
        assert_eq!(world.count(Counter::Dirty), 0);
        (0..PAGES).for_each(|page| assert_eq!(world.on_device(page), page + 1));
    });
}

#[test]
fn a_failing_flusher_does_not_block_writers_forever() {
    run_flushing([1, 2], |vm, world| {
        world.injected_faults.writes.store(1_000_000, Relaxed);
        (0..64).for_each(|page| world.store(page, page + 1));
        assert!(matches!(world.manager.sync(), Err(FaultError::Write(_))));
        (0..64).for_each(|page| assert_eq!(world.load(page), Ok(page + 1)));
        world.injected_faults.end();
        assert_eq!(world.manager.sync(), Ok(()));
        vm.sleep(Nanos(1_000_000_000));
        (0..64).for_each(|page| assert_eq!(world.on_device(page), page + 1));
    });
}

#[test]
fn accesses_beyond_a_truncated_end_fail() {
    run(|world| {
        (0..200).for_each(|page| world.store(page, page + 1));
        assert_eq!(world.manager.sync(), Ok(()));
        (90..110).for_each(|page| world.store(page, 0));
        world.manager.truncate(world.space, Vpn(100));
        let beyond = |page| world.load(page) == Err(FaultError::BeyondEnd);
        assert!([100, 101, 150, PAGES - 1].into_iter().all(beyond));
        // Readahead of any width stops at the end, too.
        for page in 0..100 {
            assert_eq!(world.load(page), Ok(if page < 90 { page + 1 } else { 0 }), "page {page}");
        }
        let machine = world.manager.inspect();
        let there =
            |page: &u64| machine.space(world.space).entry(Vpn(*page)).page() != Page::Absent;
        assert_eq!((100..PAGES).find(there), None);
        assert_eq!((world.on_device(95), world.on_device(105)), (96, 106), "it drops, as it is");
        // Truncation only shortens a file.
        world.manager.truncate(world.space, Vpn(150));
        assert_eq!(world.manager.end_of(world.space), Vpn(100));
        assert_eq!(world.manager.sync(), Ok(()));
        assert_eq!((world.on_device(95), world.on_device(105)), (0, 106));
    });
}

#[test]
fn a_failed_read_is_an_error() {
    run(|world| {
        world.injected_faults.reads.store(1000, Relaxed);
        assert!(matches!(world.load(1), Err(FaultError::Read(_))));
        world.injected_faults.end();
        assert_eq!(world.load(1), Ok(0));
    });
}

#[test]
fn a_device_backs_one_file() {
    run(|world| {
        for (pages, device) in [(PAGES, FILE), (1, 0), (1, 7)] {
            let refused = world.manager.add_file_space(pages, device).expect_err("it cannot be");
            assert!(matches!(refused, StartError::File(of) if of == device), "{refused}");
        }
    });
}
