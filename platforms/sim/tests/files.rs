//! Spaces over files: what is read, dropped and written, and when; counted.

mod common;

use common::{device, machine, setup};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, FaultError, Manager, Range, StartError, alloc};
use highwater_platform::{Block, Io, Memory, Recency};
use highwater_sim::machine::{Answer, DeviceSpec, Role};
use highwater_sim::{Sim, SimConfig, Troubles, Vm, simulate};
use highwater_units::{SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const FRAMES: u32 = 512;
const PAGES: u64 = 4 * FRAMES as u64;
/// The device of the file; before it, one to swap to.
const FILE: u8 = 1;

/// A manager with a file's space, and the troubles of its platform.
struct World {
    manager: Manager<Sim>,
    space: SpaceId,
    troubles: Arc<Troubles>,
}

impl World {
    fn new(vm: &Vm, recency: Recency) -> World {
        let (swap, troubles) = (device(Answer::Asynchronous), Arc::new(Troubles::default()));
        let file = DeviceSpec { name: "file".into(), role: Role::File, ..swap.clone() };
        let pages = PAGES as u32;
        let config = SimConfig {
            frames: vec![FRAMES],
            devices: vec![(swap, pages), (file, pages)],
            recency,
            troubles: troubles.clone(),
        };
        let manager = Manager::start(Sim::new(vm, config), Config::default()).expect("threads");
        let space = manager.add_file_space(PAGES, FILE).expect("a space");
        World { manager, space, troubles }
    }

    fn load(&self, page: u64) -> Result<u64, FaultError> {
        let pin = self.manager.pin(self.space, Vpn(page), Access::Read)?;
        Ok(self.manager.platform().load(pin.pfn(), 7))
    }

    fn store(&self, page: u64, value: u64) {
        let pin = self.manager.pin(self.space, Vpn(page), Access::Write).expect("a page");
        self.manager.platform().store(pin.pfn(), 7, value);
    }

    /// What the device holds.
    fn on_device(&self, page: u64) -> u64 {
        let (machine, platform) = (self.manager.machine(), self.manager.platform());
        let frame = alloc::frames(machine, 1).expect("a frame");
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

/// Runs `main` with a world, then checks everything.
fn run(main: impl Fn(&World) + Copy + 'static) {
    for recency in [Recency::AccessedBit, Recency::Unmapping] {
        let whole = move |vm: &Vm| {
            let mut world = World::new(vm, recency);
            main(&world);
            world.manager.stop_kswapd();
            world.manager.verify(&[]);
        };
        simulate(setup(machine(1, 2), 1), whole).expect("it ends");
    }
}

#[test]
fn unchanged_pages_are_dropped_and_read_again() {
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
fn reclaim_writes_changed_pages_to_their_places() {
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
fn write_back_makes_the_device_equal_to_memory() {
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
        // A stream's window is made writable whole.
        let written = world.count(Counter::PgFileOut);
        assert!((101..=116).contains(&written), "{written} pages were written");
        let read = world.count(Counter::PgFileIn);
        (0..100).for_each(|page| assert!(world.load(page).is_ok()));
        assert_eq!(world.count(Counter::PgFileIn), read, "the pages are still in memory");
    });
}

#[test]
fn what_was_dropped_reads_as_the_device_has_it() {
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
fn what_cannot_be_written_stays() {
    run(|world| {
        (0..64).for_each(|page| world.store(page, page + 1));
        world.troubles.writes.store(1000, Relaxed);
        assert!(matches!(world.write_back(0, 64), Err(FaultError::Write(_))));
        // Nor by reclaim: it drops what is unchanged, and keeps the others.
        (64..PAGES).for_each(|page| assert_eq!(world.load(page), Ok(0)));
        let read = world.count(Counter::PgFileIn);
        (0..64).for_each(|page| assert_eq!(world.load(page), Ok(page + 1)));
        assert_eq!(world.count(Counter::PgFileIn), read, "they were in memory all the time");
        assert!(world.count(Counter::SwapIoErrors) > 0);
        world.troubles.end();
        assert_eq!(world.write_back(0, 64), Ok(()));
        (0..64).for_each(|page| assert_eq!(world.on_device(page), page + 1));
    });
}

#[test]
fn a_page_that_cannot_be_read_is_an_error() {
    run(|world| {
        world.troubles.reads.store(1000, Relaxed);
        assert!(matches!(world.load(1), Err(FaultError::Read(_))));
        world.troubles.end();
        assert_eq!(world.load(1), Ok(0));
    });
}

#[test]
fn a_device_is_one_file() {
    run(|world| {
        for (pages, device) in [(PAGES, FILE), (1, 0), (1, 7)] {
            let refused = world.manager.add_file_space(pages, device).expect_err("it cannot be");
            assert!(matches!(refused, StartError::File(of) if of == device), "{refused}");
        }
    });
}
