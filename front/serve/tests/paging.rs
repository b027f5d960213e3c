//! Real faults: threads use more memory than the budget, and read back what they wrote.

use crate::common::{Paged, Setup, file, memory, memory_of};
use highwater_mm::stats::Counter;
use highwater_uffd::{Delivery, Mapping};
use highwater_units::{PAGE_SIZE, Prng};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn setup(frames: u64, pages: u64, mapping: Mapping, delivery: Delivery) -> Setup {
    Setup { frames, pages, region: pages, mapping, delivery }
}

/// All threads touch every page once, then random pages.
fn use_all(paged: &Paged, threads: usize, steps: usize) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for page in 0..paged.pages {
                    assert_eq!(paged.load(page, thread * 7), 0, "page {page} is new");
                }
                let pages: Vec<u64> = (0..paged.pages).collect();
                paged.hammer(&pages, thread, steps);
            });
        }
    });
}

fn check(mapping: Mapping, delivery: Delivery, threads: usize) {
    let paged = Paged::new(setup(512, 2048, mapping, delivery), memory());
    use_all(&paged, threads, 20_000);
    let used = paged.manager.platform().frames_peak();
    assert!(used.0 <= (512 * PAGE_SIZE) as u64);
    paged.finish();
}

/// Two threads read four times the budget at random. However loaded the machine is, a fault flushes
/// other CPUs' TLBs less than 0.1 times, and makes less than 1.2 system calls for pages.
#[test]
fn a_fault_flushes_rarely() {
    let paged = Paged::new(setup(8192, 32768, Mapping::Move, Delivery::InThread), memory_of(256));
    (0..paged.pages).for_each(|page| paged.store(page, 3, page));
    let major = || paged.manager.statistics().get(Counter::PgMajFault);
    let measure = |steps: u64| {
        let (calls, faults) = (paged.manager.platform().calls(), major());
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (paged, mut random) = (&paged, Prng::new(thread));
                scope.spawn(move || {
                    for _ in 0..steps {
                        let page = random.below(paged.pages);
                        assert_eq!(paged.load(page, 3), page);
                    }
                });
            }
        });
        let (now, faults) = (paged.manager.platform().calls(), (major() - faults) as f64);
        let per_fault = |after: u64, before: u64| (after - before) as f64 / faults;
        let total = per_fault(now.total(), calls.total());
        (per_fault(now.flushing(), calls.flushing()), total)
    };
    measure(60_000);
    let (flushes, calls) = measure(60_000);
    assert!(flushes < 0.1 && calls < 1.2, "a fault: {flushes:.3} flushes, {calls:.3} calls");
    paged.finish();
}

/// The partition of a quicksort: two scans move towards each other, and load from pages and store
/// to them. Windows are read, and made writable, in both directions.
#[test]
fn scans_in_both_directions_are_served_in_windows() {
    let paged = Paged::new(setup(1024, 4096, Mapping::Move, Delivery::InThread), memory());
    (0..paged.pages).for_each(|page| paged.store(page, 3, page));
    let faults = || paged.manager.statistics().get(Counter::PgFault);
    let before = faults();
    let exchange = |page: u64| {
        assert_eq!(paged.load(page, 3), page);
        paged.store(page, 4, page + 1);
    };
    for page in 0..paged.pages / 2 {
        exchange(page);
        exchange(paged.pages - 1 - page);
    }
    let faults = faults() - before;
    assert!(faults * 5 <= paged.pages, "{faults} faults for {} pages", paged.pages);
    (0..paged.pages).for_each(|page| assert_eq!(paged.load(page, 4), page + 1));
    paged.finish();
}

/// A page of a program that reads it and then stores to it, again and again.
#[test]
fn a_page_that_was_stored_to_is_read_in_for_a_store() {
    let paged = Paged::new(setup(2048, 16384, Mapping::Move, Delivery::InThread), memory_of(128));
    (0..paged.pages).for_each(|page| paged.store(page, 3, page));
    // Pages far apart, so that there is hardly a stream.
    let pages: Vec<u64> = (0..paged.pages).map(|index| index * 6151 % paged.pages).collect();
    let mut minor = [0; 4];
    for minor in &mut minor {
        let count = || {
            let now = paged.manager.statistics();
            now.get(Counter::PgFault) - now.get(Counter::PgMajFault)
        };
        let before = count();
        for page in &pages {
            assert_eq!(paged.load(*page, 3), *page);
            paged.store(*page, 4, page + 1);
        }
        *minor = count() - before;
    }
    assert!(minor[0] * 5 >= paged.pages * 4, "{minor:?}: the first stores fault");
    assert!(minor[1..].iter().all(|minor| minor * 5 <= paged.pages), "{minor:?}");
    (0..paged.pages).for_each(|page| assert_eq!(paged.load(page, 4), page + 1));
    paged.finish();
}

#[test]
fn moved_by_handlers() {
    check(Mapping::Move, Delivery::Handler, 1);
    check(Mapping::Move, Delivery::Handler, 6);
}

#[test]
fn moved_in_thread() {
    check(Mapping::Move, Delivery::InThread, 1);
    check(Mapping::Move, Delivery::InThread, 6);
}

#[test]
fn copied_by_handlers() {
    check(Mapping::Copy, Delivery::Handler, 1);
    check(Mapping::Copy, Delivery::Handler, 6);
}

#[test]
fn copied_in_thread() {
    check(Mapping::Copy, Delivery::InThread, 1);
    check(Mapping::Copy, Delivery::InThread, 6);
}

/// More concurrent threads than half of the frames.
#[test]
fn thirty_two_threads_share_64_frames() {
    for mapping in [Mapping::Move, Mapping::Copy] {
        let paged = Paged::new(setup(64, 300, mapping, Delivery::Handler), memory());
        use_all(&paged, 32, 500);
        paged.finish();
    }
}

#[test]
fn many_threads_wait_for_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for (mapping, delivery) in
        [(Mapping::Move, Delivery::Handler), (Mapping::Copy, Delivery::InThread)]
    {
        let paged = Paged::new(setup(256, 800, mapping, delivery), file(dir.path()));
        use_all(&paged, 16, 200);
        paged.finish();
    }
}

/// A program drops pages by calls that the manager does not see, while the pages are evicted: the
/// copy of a page ends where the page has vanished. Regression: the evicting thread waited for
/// itself.
#[test]
fn pages_vanish_while_they_are_evicted() {
    let paged = Paged::new(setup(256, 1024, Mapping::Move, Delivery::InThread), memory_of(64));
    let (dropped, kept): (Vec<u64>, Vec<u64>) = (0..paged.pages).partition(|page| page % 2 == 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| {
            let mut random = Prng::new(9);
            while !over.load(Relaxed) {
                let page = dropped[random.below(dropped.len() as u64) as usize];
                // SAFETY: a page of the space, which only this thread loads from.
                unsafe { drop_unseen(paged.address(page)) };
                let found = paged.load(page, 5);
                assert!(found == 0 || found == page, "page {page} has {found}");
                paged.store(page, 5, page);
            }
        });
        paged.hammer(&kept, 1, 60_000);
        over.store(true, Relaxed);
        dropping.join().expect("it found what it stored, or zeros");
    });
    paged.finish();
}

/// # Safety
/// The page's contents are not needed.
unsafe fn drop_unseen(page: *mut u8) {
    // SAFETY: by contract.
    unsafe { libc::madvise(page.cast(), PAGE_SIZE, libc::MADV_DONTNEED) };
}
