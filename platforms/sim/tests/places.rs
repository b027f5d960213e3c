//! Files that are opened and closed while other files are in use: every page read belongs to the
//! open file, and closing a file saves its changes. By counters, and under random schedules.

use crate::common::{device, machine, setup};
use highwater_mm::inspect::{Entry, Space};
use highwater_mm::{Access, Config, FaultError, Manager, Range, StartError};
use highwater_platform::{FileAccess, Memory, Recency};
use highwater_sim::machine::{Answer, DeviceSpec, Role};
use highwater_sim::{InjectedFaults, Policy, Setup, Sim, SimConfig, SimFile, Vm, Words, simulate};
use highwater_units::{Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const FRAMES: u32 = 192;
/// The largest file, in pages.
const PAGES: u64 = 300;
/// The word of a page that the tests check.
const WORD: usize = 7;

fn manager(vm: &Vm, recency: Recency, places: usize) -> Manager<Sim> {
    let swap = device(Answer::Asynchronous);
    let place = DeviceSpec { name: "place".into(), role: Role::Place, ..swap.clone() };
    let mut devices = vec![(swap, 64)];
    devices.extend((0..places).map(|_| (place.clone(), PAGES as u32)));
    let injected_faults = Arc::new(InjectedFaults::default());
    let config = SimConfig { frames: vec![FRAMES], devices, recency, injected_faults };
    Manager::start(Sim::new(vm, config), Config::default()).expect("threads")
}

/// The initial contents of a page of a file.
fn first_value(file: u64, page: u64) -> u64 {
    file << 32 | page << 8
}

fn page_of(value: u64) -> Arc<Words> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(value)))
}

fn file(number: u64, access: FileAccess, pages: u64) -> SimFile {
    SimFile::new(access, (0..pages).map(|page| page_of(first_value(number, page))).collect())
}

fn load(manager: &Manager<Sim>, space: SpaceId, page: u64) -> Result<u64, FaultError> {
    let pin = manager.pin(space, Vpn(page), Access::Read)?;
    Ok(manager.platform().load(pin.pfn(), WORD))
}

fn store(m: &Manager<Sim>, space: SpaceId, page: u64, value: u64) -> Result<(), FaultError> {
    let pin = m.pin(space, Vpn(page), Access::Write)?;
    m.platform().store(pin.pfn(), WORD, value);
    Ok(())
}

/// Runs `main`, then verifies the manager.
fn run(seed: u64, places: usize, main: impl Fn(&Vm, &Manager<Sim>) + Copy + 'static) {
    for recency in [Recency::AccessedBit, Recency::Unmapping] {
        let whole = move |vm: &Vm| {
            let mut manager = manager(vm, recency, places);
            main(vm, &manager);
            manager.stop_kswapd();
            manager.verify(&[]);
            let absent = |space: &Space<Sim>| {
                (0..space.pages()).all(|page| space.entry(Vpn(page)) == Entry::ABSENT)
            };
            assert!(manager.inspect().spaces().all(absent), "all files are closed");
        };
        let policy = Policy::draw(&mut Prng::new(seed));
        let setup = Setup { policy, holdups: 50, ..setup(machine(1, 4), seed) };
        simulate(setup, whole).expect("it ends");
    }
}

#[test]
fn a_place_is_reused() {
    run(1, 2, |vm, manager| {
        for number in 0..40 {
            vm.beat()();
            let pages = 1 + number * 7 % PAGES;
            let file = file(number, FileAccess::ReadWrite, pages);
            let space = manager.open_file(file.clone()).expect("a place");
            assert_eq!(manager.end_of(space), Vpn(pages));
            for page in 0..pages {
                assert_eq!(load(manager, space, page), Ok(first_value(number, page)));
            }
            if pages < manager.inspect().space(space).pages() {
                assert_eq!(load(manager, space, pages), Err(FaultError::BeyondEnd));
            }
            assert_eq!(store(manager, space, pages - 1, 5), Ok(()));
            assert_eq!(manager.close_file(space), Ok(()));
            assert_eq!(load(manager, space, 0), Err(FaultError::BeyondEnd));
            assert_eq!(file.pages()[pages as usize - 1][WORD].load(Relaxed), 5);
        }
        // Capacities are powers of two, and a larger place may serve a smaller file.
        assert!(manager.inspect().spaces().count() <= 10);
    });
}

#[test]
fn the_number_of_places_limits_the_open_files() {
    run(2, 2, |_, manager| {
        let open = |number| manager.open_file(file(number, FileAccess::Read, 10));
        let (a, b) = (open(1).expect("a place"), open(2).expect("a place"));
        assert!(matches!(open(3), Err(StartError::Places)));
        assert_eq!(load(manager, b, 3), Ok(first_value(2, 3)));
        assert_eq!(store(manager, b, 3, 9), Err(FaultError::ReadOnly));
        assert_eq!(manager.close_file(b), Ok(()));
        let c = open(4).expect("a place");
        assert_eq!([a, c].map(|s| load(manager, s, 9)), [1, 4].map(|n| Ok(first_value(n, 9))));
        [a, c].into_iter().for_each(|space| assert_eq!(manager.close_file(space), Ok(())));
    });
}

/// Opens a file, uses it and closes it.
fn use_file(manager: &Manager<Sim>, random: &mut Prng, number: u64) {
    let pages = 1 + random.below(PAGES);
    let access = if random.percent(40) { FileAccess::Read } else { FileAccess::ReadWrite };
    let file = file(number, access, pages);
    let mut model: Vec<u64> = (0..pages).map(|page| first_value(number, page)).collect();
    let Ok(space) = manager.open_file(file.clone()) else { return };
    for step in 0..random.below(12) {
        let (first, length) = (random.below(pages), 1 + random.below(80));
        let end = (first + length).min(pages);
        let range = Range { first: Vpn(first), end: Vpn(end) };
        match random.below(10) {
            // Readahead without a waiter: the file may be closed before it starts.
            0..2 => manager.prefetch(space, range),
            2 => assert_eq!(manager.write_back(space, range), Ok(())),
            3..7 if access == FileAccess::ReadWrite => {
                for page in first..end {
                    model[page as usize] = first_value(number, page) + step + 1;
                    assert_eq!(store(manager, space, page, model[page as usize]), Ok(()));
                }
            }
            _ => {
                for page in first..end {
                    let found = load(manager, space, page);
                    assert_eq!(found, Ok(model[page as usize]), "page {page} of file {number}");
                }
            }
        }
    }
    assert_eq!(manager.close_file(space), Ok(()));
    let written: Vec<u64> = file.pages().iter().map(|words| words[WORD].load(Relaxed)).collect();
    assert_eq!(written, model, "file {number}");
}

#[test]
fn files_are_opened_and_closed_concurrently() {
    for seed in 0..12 {
        run(seed, 3, move |vm, manager| {
            vm.scope(4, "user", &|user| {
                let mut random = Prng::new(seed * 10 + user as u64);
                for turn in 0..8 {
                    vm.beat()();
                    use_file(manager, &mut random, user as u64 * 100 + turn + 1);
                }
            });
        });
    }
}
