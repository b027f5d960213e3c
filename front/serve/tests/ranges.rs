//! Programs protect, drop, move and copy ranges while pages are swapped in and out.

use crate::common::{Paged, Regions, Setup, memory};
use highwater_mm::Range;
use highwater_mm::inspect::Page;
use highwater_mm::stats::Counter;
use highwater_platform::Mmu;
use highwater_serve::Service;
use highwater_uffd::{Delivery, Mapping, Placement, Site};
use highwater_units::{Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const BOTH: [Mapping; 2] = [Mapping::Move, Mapping::Copy];

fn range(first: u64, pages: u64) -> Range {
    Range { first: Vpn(first), end: Vpn(first + pages) }
}

fn setup(mapping: Mapping, region: u64) -> Setup {
    Setup { frames: 128, pages: 640, region, mapping, delivery: Delivery::Handler }
}

fn protect(paged: &Paged, range: Range, bits: i32) {
    let platform = paged.manager.platform();
    platform.protect(paged.space, range.first, range.end, bits).expect("mprotect");
}

/// How many pages of a range are on the device.
fn swapped(paged: &Paged, range: Range) -> usize {
    let space = paged.manager.inspect().space(paged.space);
    let is_swapped = |page: &u64| matches!(space.entry(Vpn(*page)).page(), Page::Swapped(_));
    (range.first.0..range.end.0).filter(is_swapped).count()
}

fn value(page: u64, word: usize) -> u64 {
    page << 16 | word as u64
}

fn fill(paged: &Paged, range: Range) {
    for page in range.first.0..range.end.0 {
        [0, 1, 255, 511].iter().for_each(|word| paged.store(page, *word, value(page, *word)));
    }
}

#[track_caller]
fn assert_filled(paged: &Paged, range: Range) {
    for page in range.first.0..range.end.0 {
        for word in [0, 1, 255, 511] {
            assert_eq!(paged.load(page, word), value(page, word), "page {page}");
        }
    }
}

/// Touches all other pages until the protected ones are the oldest.
fn press(paged: &Paged) {
    let others: Vec<u64> = (200..paged.pages).collect();
    paged.hammer(&others, 3, 8000);
}

#[test]
fn protected_pages_go_and_come_back() {
    for mapping in BOTH {
        let paged = Paged::new(setup(mapping, 640), memory());
        let [readable, hidden, code] = [range(0, 50), range(60, 50), range(120, 20)];
        let ordinary = libc::PROT_READ | libc::PROT_WRITE;
        [readable, hidden, code].into_iter().for_each(|range| fill(&paged, range));
        protect(&paged, readable, libc::PROT_READ);
        protect(&paged, hidden, libc::PROT_NONE);
        // Swap the pages in first: pages that are writable and executable are never swapped out.
        assert_filled(&paged, code);
        protect(&paged, code, ordinary | libc::PROT_EXEC);
        press(&paged);
        for out in [readable, hidden] {
            assert_eq!(swapped(&paged, out), 50, "{out:?} with {mapping:?}");
        }
        assert_filled(&paged, readable);
        assert_filled(&paged, code);
        press(&paged);
        protect(&paged, hidden, ordinary);
        protect(&paged, readable, ordinary);
        assert_filled(&paged, hidden);
        assert_filled(&paged, readable);
        fill(&paged, readable);
        protect(&paged, code, ordinary);
        press(&paged);
        assert!(swapped(&paged, code) > 0, "ordinary pages go");
        [readable, hidden, code].into_iter().for_each(|range| assert_filled(&paged, range));
        paged.finish();
    }
}

#[test]
fn pages_that_may_be_executed_and_written_stay() {
    for mapping in BOTH {
        let paged = Paged::new(setup(mapping, 640), memory());
        let code = range(0, 30);
        protect(&paged, code, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        fill(&paged, code);
        press(&paged);
        assert_eq!(swapped(&paged, code), 0, "{mapping:?}");
        assert_filled(&paged, code);
        paged.finish();
    }
}

/// One thread changes protections all the time while others force its pages out.
#[test]
fn protections_change_under_load() {
    for mapping in BOTH {
        let paged = Paged::new(setup(mapping, 640), memory());
        std::thread::scope(|scope| {
            let paged = &paged;
            scope.spawn(move || change_protections(paged));
            for thread in 1..4 {
                let others: Vec<u64> = (200..paged.pages).collect();
                scope.spawn(move || paged.hammer(&others, thread, 8000));
            }
        });
        paged.finish();
    }
}

fn change_protections(paged: &Paged) {
    let mut random = Prng::new(5);
    let mut versions = [0; 100];
    for step in 1..600 {
        let first = random.below(100);
        let part = range(first, 1 + random.below(100 - first));
        let hidden = random.percent(50);
        protect(paged, part, if hidden { libc::PROT_NONE } else { libc::PROT_READ });
        if hidden {
            std::thread::yield_now();
            protect(paged, part, libc::PROT_READ);
        }
        for page in part.first.0..part.end.0 {
            assert_eq!(paged.load(page, 9), versions[page as usize], "page {page}, step {step}");
        }
        protect(paged, part, libc::PROT_READ | libc::PROT_WRITE);
        for page in (part.first.0..part.end.0).filter(|_| random.percent(50)) {
            paged.store(page, 9, step);
            versions[page as usize] = step;
        }
    }
}

/// Each thread drops and moves pages of its own region.
#[test]
fn pages_are_dropped_and_moved_under_load() {
    for mapping in BOTH {
        let paged = Paged::new(setup(mapping, 128), memory());
        std::thread::scope(|scope| {
            let paged = &paged;
            (0..5).for_each(|thread| {
                scope.spawn(move || drop_and_move(paged, thread));
            });
        });
        paged.finish();
    }
}

fn drop_and_move(paged: &Paged, thread: u64) {
    const REGION: u64 = 128;
    let (mut random, mut model) = (Prng::new(thread), [0; REGION as usize]);
    let base = thread * REGION;
    let mut any = |below: u64| random.below(below);
    for step in 1..4000u64 {
        let (page, first, pages) = (any(REGION), any(REGION), 1 + any(40));
        let part = range(base + first, pages.min(REGION - first));
        let pages = part.end.0 - part.first.0;
        let to = any(REGION - pages + 1);
        match any(20) {
            0 => {
                paged.manager.discard(paged.space, part);
                model[first as usize..(first + pages) as usize].fill(0);
            }
            1 if to + pages <= first || first + pages <= to => {
                paged.manager.discard(paged.space, range(base + to, pages));
                paged.manager.relocate(paged.space, part, Vpn(base + to));
                for index in 0..pages as usize {
                    let moved = std::mem::take(&mut model[first as usize + index]);
                    model[to as usize + index] = moved;
                }
            }
            _ => {
                let expected = &mut model[page as usize];
                let found = [paged.load(base + page, 1), paged.load(base + page, 510)];
                assert_eq!(found, [*expected; 2], "page {page} of thread {thread}, step {step}");
                if step % 3 != 0 {
                    *expected = step << 8 | thread;
                    [1, 510].iter().for_each(|word| paged.store(base + page, *word, *expected));
                }
            }
        }
    }
}

/// Copies a range while threads store to it: each page of the copy has contents that the page had
/// at some time during the copy.
#[test]
fn a_copy_holds_what_was_there() {
    const PAGES: u64 = 300;
    for mapping in BOTH {
        let paged = Paged::new(Setup { pages: PAGES, ..setup(mapping, PAGES) }, memory());
        let copy = SpaceId(1);
        let placement = Placement { site: Site::Anywhere, delivery: Delivery::InThread };
        paged.manager.platform().place(copy, placement);
        assert_eq!(paged.manager.add_space(PAGES).expect("address space"), copy);
        let owner = Arc::new(Regions(PAGES));
        let service = Service::of_engine(paged.manager.clone(), copy, owner).expect("a place");
        let counts = || (0..PAGES).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (begun, done, stop) = (counts(), counts(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Prng::new(3);
                for step in 1.. {
                    if stop.load(SeqCst) {
                        break;
                    }
                    let page = random.below(PAGES);
                    begun[page as usize].store(step, SeqCst);
                    paged.store(page, 77, step);
                    done[page as usize].store(step, SeqCst);
                }
            });
            (0..12).for_each(|_| compare_copy(&paged, copy, &begun, &done));
            stop.store(true, SeqCst);
        });
        drop(service);
        paged.finish();
    }
}

fn compare_copy(paged: &Paged, copy: SpaceId, begun: &[AtomicU64], done: &[AtomicU64]) {
    let now =
        |counts: &[AtomicU64]| -> Vec<u64> { counts.iter().map(|c| c.load(SeqCst)).collect() };
    let least = now(done);
    let snapshot = paged.manager.snapshot(paged.space).expect("room for the copy");
    let most = now(begun);
    let _ = paged.manager.restore_snapshot(copy, &snapshot);
    for (page, (least, most)) in least.iter().zip(&most).enumerate() {
        let address = paged.manager.platform().address(copy, Vpn(page as u64)).cast::<u64>();
        // SAFETY: word 77 of a page of the copy, whose faults are served in this thread.
        let found = unsafe { address.add(77).read_volatile() };
        assert!((least..=most).contains(&&found), "page {page}: {found}, not {least} to {most}");
        paged.watchdog.beat();
    }
    paged.manager.discard(copy, range(0, least.len() as u64));
}

/// Every page is in a slot or in memory, and during the fork no page of a stretch moves between the
/// two, although another thread needs memory.
#[test]
fn pages_that_a_fork_shares_stay_until_it_is_over() {
    const FILLED: u64 = 200;
    for mapping in BOTH {
        let paged = Paged::new(setup(mapping, 640), memory());
        fill(&paged, range(0, FILLED));
        assert!(swapped(&paged, range(0, FILLED)) > 0);
        let whole = paged.manager.whole(paged.space);
        let (snapshot, frozen) = paged.manager.share(paged.space, &[whole]).expect("slots");
        let there = |page: &u64| paged.manager.platform().holds(paged.space, Vpn(*page));
        let pages_of = |ranges: &[Range]| -> Vec<u64> {
            ranges.iter().flat_map(|range| range.first.0..range.end.0).collect()
        };
        let stretches = pages_of(frozen.stretches());
        let resident = pages_of(snapshot.resident());
        let slots = snapshot
            .runs()
            .iter()
            .flat_map(|run| (0..u64::from(run.pages)).map(|index| run.vpn.0 + index));
        // A window of zeros may extend beyond the range.
        let filled = |page: &u64| *page < FILLED;
        let mut all: Vec<u64> = slots.chain(resident.iter().copied()).filter(filled).collect();
        all.sort_unstable();
        assert_eq!(all, (0..FILLED).collect::<Vec<_>>(), "{mapping:?}: each page once");
        assert!(resident.len() > 32, "{mapping:?}: {} pages in memory", resident.len());
        std::thread::scope(|scope| {
            let wants = scope.spawn(|| fill(&paged, range(FILLED, 200)));
            std::thread::sleep(std::time::Duration::from_millis(30));
            let now: Vec<u64> = stretches.iter().copied().filter(there).collect();
            assert_eq!(now, resident, "{mapping:?}");
            paged.manager.thaw(paged.space, frozen);
            wants.join().expect("the thread stores");
        });
        assert_filled(&paged, range(0, FILLED + 200));
        paged.manager.release_snapshot(&snapshot);
        paged.manager.unshare(paged.space);
        assert!(!(0..FILLED + 200).any(|page| there(&page)), "{mapping:?}: all are unmapped");
        assert_filled(&paged, range(0, FILLED + 200));
        paged.finish();
    }
}

#[test]
fn populated_pages_are_there_without_a_fault() {
    for mapping in BOTH {
        let paged = Paged::new(setup(mapping, 640), memory());
        fill(&paged, range(5, 1));
        let before = paged.manager.statistics();
        paged.manager.populate(paged.space, range(0, 40));
        assert_filled(&paged, range(5, 1));
        (0..40).filter(|page| *page != 5).for_each(|page| assert_eq!(paged.load(page, 511), 0));
        fill(&paged, range(0, 40));
        let after = paged.manager.statistics();
        let grown = [Counter::PgZero, Counter::PgFault].map(|c| after.get(c) - before.get(c));
        assert_eq!(grown, [39, 0], "{mapping:?}");
        press(&paged);
        assert!(swapped(&paged, range(0, 40)) > 0, "{mapping:?}");
        assert_filled(&paged, range(0, 40));
    }
}
