//! Pages are migrated between frames while programs use them: the programs read back what they
//! wrote.

use crate::common::{Paged, Setup, file, memory};
use highwater_devices::Device;
use highwater_mm::inspect::Mode;
use highwater_mm::inspect::Page;
use highwater_mm::stats::Counter;
use highwater_uffd::{Delivery, Mapping};
use highwater_units::{Pfn, Prng, Vpn, adjacent};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const BOTH: [Mapping; 2] = [Mapping::Move, Mapping::Copy];

/// The contents stay, the frames change, and the pages are mapped again at once.
#[test]
fn a_mapped_page_is_mapped_again_in_its_new_frame() {
    for mapping in BOTH {
        let setup = Setup { frames: 64, pages: 8, region: 8, mapping, delivery: Delivery::Handler };
        let paged = Paged::new(setup, memory());
        (0..8).for_each(|page| paged.store(page, 5, 100 + page));
        let space = || paged.manager.inspect().space(paged.space);
        // Hold the entry to read it: the thread that served the fault may still hold it.
        let frame = |page| match space().hold(Vpn(page)).page() {
            Page::Resident(pfn) => pfn,
            other => panic!("page {page} was just used: {other:?}"),
        };
        let before: Vec<Pfn> = (0..8).map(frame).collect();
        let drain = || {
            let machine = paged.manager.inspect();
            machine.nodes[0].lru.drain(&machine.frames, |orphans| machine.free(orphans));
        };
        drain();
        let (one, more) = before.split_first().expect("eight");
        assert_eq!(paged.manager.migrate(*one, 1, Mode::Async), 1);
        let moves = adjacent(more).map(|(_, pfn, len)| paged.manager.migrate(pfn, len, Mode::Sync));
        assert_eq!(moves.sum::<usize>(), 7);
        let faults = paged.manager.statistics().get(Counter::PgFault);
        for page in 0..8 {
            assert_ne!(frame(page), before[page as usize], "page {page} with {mapping:?}");
            assert!(space().entry(Vpn(page)).is_mapped());
            assert_eq!(paged.load(page, 5), 100 + page);
            paged.store(page, 5, 200 + page);
        }
        assert_eq!(paged.manager.statistics().get(Counter::PgFault), faults, "{mapping:?}");
        drain();
        (0..8).for_each(|page| assert_eq!(paged.load(page, 5), 200 + page));
        paged.finish();
    }
}

/// Threads use twice the budget, or half of it, while two others migrate pages all the time.
fn check(setup: Setup, device: Box<dyn Device>) {
    const THREADS: usize = 4;
    const MOVED_MIN: u64 = 5000;
    let paged = Paged::new(setup, device);
    let running = AtomicUsize::new(THREADS);
    let moved = || paged.manager.statistics().get(Counter::PgMigrateSuccess);
    std::thread::scope(|scope| {
        let (paged, running, moved) = (&paged, &running, &moved);
        for thread in 0..THREADS {
            scope.spawn(move || {
                let pages: Vec<u64> = (0..paged.pages).collect();
                while moved() < MOVED_MIN {
                    paged.hammer(&pages, thread, 8000);
                }
                running.fetch_sub(1, SeqCst);
            });
        }
        for seed in 0..2 {
            scope.spawn(move || {
                let mut random = Prng::new(seed);
                while running.load(SeqCst) > 0 {
                    let first = random.below(setup.frames);
                    let frames = 1 + random.below(16.min(setup.frames - first)) as usize;
                    let mode = if random.percent(50) { Mode::Async } else { Mode::Sync };
                    paged.manager.migrate(Pfn(first as u32), frames, mode);
                }
            });
        }
    });
    paged.finish();
}

#[test]
fn programs_find_what_they_wrote_while_pages_are_moved() {
    for mapping in BOTH {
        for (pages, delivery) in [(128, Delivery::InThread), (512, Delivery::Handler)] {
            check(Setup { frames: 256, pages, region: pages, mapping, delivery }, memory());
        }
    }
}

/// Clean pages keep their slots, and are mapped read-only so that a write faults.
#[test]
fn clean_pages_of_a_file_are_moved_too() {
    let dir = tempfile::tempdir().expect("a directory");
    for mapping in BOTH {
        let delivery = Delivery::Handler;
        let setup = Setup { frames: 256, pages: 400, region: 400, mapping, delivery };
        check(setup, file(dir.path()));
    }
}
