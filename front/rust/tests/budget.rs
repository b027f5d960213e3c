//! The budget changes while mappings are in use; a mapping that does not fit is refused when it is
//! made.

use crate::common::{PAGE, WAYS, builder, memory};
use highwater::{Error, PagedVec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

#[test]
fn a_budget_shrinks_and_grows_under_load() {
    for way in WAYS {
        let memory = builder(way).memory_max("32M").swap("ram:64M").build().expect("userfaultfd");
        let mut words = PagedVec::<u64>::zeroed(&memory, 5 << 20).expect("room");
        let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let round = rounds.load(Relaxed);
                    for (index, word) in words.iter_mut().enumerate() {
                        assert_eq!(*word, round * index as u64);
                        *word += index as u64;
                    }
                    rounds.store(round + 1, Relaxed);
                }
            });
            for budget in ["30M", "5M", "32M", "4M"] {
                memory.set_budget(budget).expect("pages leave");
                let bytes = highwater_devices::size(budget).expect("a size").0;
                assert_eq!(memory.budget().expect("this process"), bytes, "{way:?}");
                let resident = memory.statistics().expect("this process").get("nr_resident");
                assert!(resident <= Some(bytes / PAGE as u64), "{resident:?} pages");
                let seen = rounds.load(Relaxed);
                while rounds.load(Relaxed) == seen {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            over.store(true, Relaxed);
        });
    }
}

#[test]
fn a_budget_that_cannot_be_is_refused() {
    let memory = memory(WAYS[0]);
    for (budget, part) in [
        ("17M", "more than memory_max, 16 MiB"),
        ("3M", "give 4 MiB or more"),
        ("no", "'no' is not a size"),
    ] {
        let error = memory.set_budget(budget).expect_err("refused");
        assert!(matches!(error, Error::Setting(_)) && error.to_string().contains(part), "{error}");
    }
    memory.set_budget("8M").expect("back");
    let left = memory.left().expect("this process") as usize;
    let _most = memory.map(left).expect("room for it");
    let refused = memory.set_budget("6M");
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    assert_eq!(memory.budget().expect("this process"), 8 << 20);
}

/// Mappings fill memory and swap, and every page is written and read; nothing more can be mapped.
#[test]
fn mappings_fill_memory_and_swap_and_no_more() {
    for swap in ["ram:24M", "dir:.:24M"] {
        let dir = tempfile::tempdir().expect("a directory");
        let swap = swap.replace('.', dir.path().to_str().expect("UTF-8"));
        for way in WAYS {
            let memory = builder(way).swap(&swap).build().expect("userfaultfd");
            let left = memory.left().expect("this process") as usize;
            assert!(left > 30 << 20 && left <= 32 << 20, "{left}");
            assert!(matches!(memory.map(left + 1), Err(Error::Full { .. })));
            let mut words = PagedVec::<u64>::zeroed(&memory, left / 8).expect("room");
            assert!(matches!(memory.map(1), Err(Error::Full { .. })));
            for round in 0..3 {
                for (index, word) in words.iter_mut().enumerate() {
                    assert_eq!(*word, round * index as u64, "{swap} {way:?}");
                    *word += index as u64;
                }
            }
            drop(words);
            assert_eq!(memory.left().expect("this process") as usize, left);
            memory.map(left).expect("all of it again");
        }
    }
}
