//! The balance of reclaim between anonymous and file pages, by counters.

use crate::common::{device, machine, setup};
use highwater_mm::config::history::{History, ReclaimHistory};
use highwater_mm::config::{Readahead, Tunables};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::{Answer, DeviceSpec, Role};
use highwater_sim::{InjectedFaults, Sim, SimConfig, Vm, simulate};
use highwater_units::{SpaceId, Vpn};
use std::sync::Arc;

const FRAMES: u32 = 2048;
const PAGES: u64 = 16 * FRAMES as u64;
const ANON: SpaceId = SpaceId(0);
const FILE: SpaceId = SpaceId(1);

/// The ways of [`run`], in the order of its results.
const RECENCIES: [Recency; 2] = [Recency::AccessedBit, Recency::Unmapping];

/// A manager with an anonymous space and a file space.
struct World(Manager<Sim>);

impl World {
    fn new(vm: &Vm, recency: Recency, config: Config) -> World {
        let swap = device(Answer::Asynchronous);
        let file = DeviceSpec { name: "file".into(), role: Role::File, ..swap.clone() };
        let devices = [swap, file].map(|spec| (spec, PAGES as u32)).into();
        let injected_faults = Arc::new(InjectedFaults::default());
        let sim = SimConfig { frames: vec![FRAMES], devices, recency, injected_faults };
        let manager = Manager::start(Sim::new(vm, sim), config).expect("threads");
        assert_eq!(manager.add_space(PAGES).expect("a space"), ANON);
        assert_eq!(manager.add_file_space(PAGES, 1).expect("a space"), FILE);
        World(manager)
    }

    /// Writes a page of the anonymous space, or reads a page of the file.
    fn touch(&self, space: SpaceId, page: u64) {
        if space == FILE {
            return self.look(space, page);
        }
        let pin = self.0.pin(space, Vpn(page), Access::Write).expect("room for all");
        self.0.platform().store(pin.pfn(), 3, page + 1);
    }

    /// Reads and checks a page: the written word, or zero in the file.
    fn look(&self, space: SpaceId, page: u64) {
        let pin = self.0.pin(space, Vpn(page), Access::Read).expect("room for all");
        let expected = if space == FILE { 0 } else { page + 1 };
        assert_eq!(self.0.platform().load(pin.pfn(), 3), expected, "page {page} of {space:?}");
    }

    fn pass(&self, space: SpaceId, pages: std::ops::Range<u64>) {
        pages.for_each(|page| self.touch(space, page));
    }

    /// How much each counter grows during `act`.
    fn grows<const N: usize>(&self, counters: [Counter; N], act: impl FnOnce()) -> [u64; N] {
        let before = self.0.statistics();
        act();
        let after = self.0.statistics();
        counters.map(|counter| after.get(counter) - before.get(counter))
    }
}

/// Runs `main` with each way of detecting accesses, then verifies the manager.
fn run<R: 'static>(config: &Config, main: impl Fn(&World) -> R + Copy + 'static) -> [R; 2] {
    RECENCIES.map(|recency| {
        let config = config.clone();
        let whole = move |vm: &Vm| {
            let mut world = World::new(vm, recency, config);
            let result = main(&world);
            world.0.stop_kswapd();
            world.0.verify(&[]);
            result
        };
        simulate(setup(machine(1, 2), 1), whole).expect("it ends").result
    })
}

const STEALS: [Counter; 2] = [Counter::PgStealAnon, Counter::PgStealFile];

#[test]
fn swappiness_determines_which_pages_are_evicted() {
    // Half of memory is idle and anonymous; then every page of a file is read twice.
    let steals = |swappiness| {
        run(&Config { swappiness, ..Config::default() }, |world| {
            world.pass(ANON, 0..1000);
            world.grows(STEALS, || {
                for page in 0..1800 {
                    world.touch(FILE, page);
                    world.touch(FILE, page);
                }
            })
        })
    };
    for (swappiness, least, most) in [(0, 0, 0), (60, 20, 50), (100, 45, 70), (200, 90, 100)] {
        for [anon, file] in steals(swappiness) {
            assert!(anon + file > 500, "{anon} anonymous and {file} of the file");
            let percent = 100 * anon / (anon + file);
            assert!((least..=most).contains(&percent), "{swappiness}: {anon} and {file}");
        }
    }
}

#[test]
fn swappiness_and_readahead_change_while_the_manager_runs() {
    let steals = run(&Config::default(), |world| {
        world.pass(ANON, 0..1000);
        let of = |swappiness| {
            let tunables = Tunables { swappiness, ..world.0.tunables() };
            world.0.tune(tunables).expect("in range");
            world.grows(STEALS, || {
                for page in 0..1800 {
                    (0..2).for_each(|_| world.touch(FILE, page));
                }
            })
        };
        [of(0), of(200)]
    });
    for [[anon, file], [more_anon, _]] in steals {
        assert!(anon == 0 && file > 500 && more_anon > 100, "{anon}, {file}, {more_anon}");
    }
    let along = run(&Config::default(), |world| {
        let read = |window_max| {
            world.0.tune(Tunables { window_max, ..world.0.tunables() }).expect("in range");
            let [along] = world.grows([Counter::SwapRa], || world.pass(ANON, 0..4000));
            along
        };
        world.pass(ANON, 0..4000);
        let wrong = Tunables { window_max: 17, ..world.0.tunables() };
        assert!(world.0.tune(wrong).is_err() && world.0.tunables().window_max == 16);
        [read(16), read(1)]
    });
    for [some, none] in along {
        assert!(some > 1000 && none == 0, "{some} pages read along, then {none}");
    }
}

#[test]
fn refaults_shift_reclaim_to_the_idle_kind() {
    // Pages of one kind are in constant use and would fit if the idle pages of the other kind were
    // evicted, but swappiness protects the idle pages. The cost of refaults shifts reclaim to the
    // idle kind.
    let reads = |used: SpaceId, idle: SpaceId, swappiness, shadows| {
        // No readahead: its reads would be counted too.
        let reclaim = ReclaimHistory { shadows, ..ReclaimHistory::default() };
        let history = History { reclaim, ..History::default() };
        let (readahead, file_readahead) = (Readahead::Off, 0);
        let config = Config { history, swappiness, readahead, file_readahead, ..Config::default() };
        run(&config, move |world| {
            world.pass(used, 0..1601);
            (0..2).for_each(|_| world.pass(idle, 0..1000));
            let [file, anon] = world.grows([Counter::PgFileIn, Counter::PswpIn], || {
                for index in 0..40 * 1601 {
                    // Twice, so that the page counts as referenced.
                    (0..2).for_each(|_| world.look(used, index * 3 % 1601));
                }
            });
            file + anon
        })
    };
    for (used, idle, swappiness) in [(FILE, ANON, 10), (ANON, FILE, 190)] {
        let [on, off] = [true, false].map(|s| reads(used, idle, swappiness, s));
        for ((on, off), recency) in on.into_iter().zip(off).zip(RECENCIES) {
            // Pages that come from swap do not displace used pages, so few are lost anyway.
            let fifths = if (used, recency) == (ANON, Recency::Unmapping) { 5 } else { 4 };
            assert!(on * 5 <= off * fifths, "{used:?}: {on} pages read, {off} without");
            assert!(on < 25_000, "{used:?}: {on} pages read");
        }
    }
}

#[test]
fn pages_read_once_do_not_evict_the_working_set() {
    let counted = run(&Config::default(), |world| {
        for _ in 0..3 {
            world.pass(FILE, 0..500);
            world.pass(ANON, 0..500);
        }
        let counters = [Counter::PgFileIn, Counter::PgScanFile, Counter::PgStealFile];
        world.grows(counters, || {
            for round in 1..=20 {
                world.pass(FILE, round * 1000..(round + 1) * 1000);
                world.pass(FILE, 0..500);
                world.pass(ANON, 0..500);
            }
        })
    });
    // With accessed bits, a page is scanned once. With unmapping, the first scan unmaps the page,
    // and the second evicts it.
    for ([read, scanned, freed], scans) in counted.into_iter().zip([1, 2]) {
        assert!(read < 20_200, "of the 500 that are used, {} were read again", read - 20_000);
        assert!(scanned * 10 <= freed * (10 * scans + 1), "{scanned} scanned, {freed} freed");
    }
}
