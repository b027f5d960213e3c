//! The shared words of processes in all interleavings, of processes that are killed between any two
//! steps, too: processes never keep more than the limit, each has what it was granted, what a
//! killed one had is free again, and the words of an entry are those of its owner.

use crate::entry::{Entries, Entry, Granted};
use crate::swap_room::SwapWords;
use highwater_model::{Ended, Loom, check, may_die, spawn};
use highwater_platform::Atomic;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;

const LIMIT: u64 = 10;

/// Owners of the first and of the second entry, and of one that joins later.
const OWNERS: [u64; 3] = [11, 12, 13];

struct Run {
    entries: [Entry<Loom>; 2],
    swap: SwapWords<2, Loom>,
}

impl Run {
    /// Two processes, which have no pages.
    fn new() -> Rc<Run> {
        let run = Run { entries: Default::default(), swap: SwapWords::new() };
        run.entries.iter().for_each(Entry::clear);
        run.swap.limit(0, LIMIT);
        // Each word is used before the threads begin.
        (0..2).for_each(|entry| run.swap.give_back(entry, 0, 0));
        (0..2).for_each(|entry| assert_eq!(run.entries().take(OWNERS[entry]), Some(entry)));
        Rc::new(run)
    }

    fn entries(&self) -> Entries<'_, Loom> {
        Entries { all: &self.entries, used: 2 }
    }

    fn borrow(&self, entry: usize, pages: u64, certain: u64) -> Granted {
        let room = || LIMIT.saturating_add_signed(self.entries().shared());
        let excess = || self.entries().granted().saturating_sub(room());
        self.entries[entry].borrow(pages, certain, excess)
    }

    fn granted(&self) -> [u64; 2] {
        [0, 1].map(|entry| self.entries[entry].granted())
    }

    fn claimed(&self) -> u64 {
        self.swap.rooms(2)[0].claimed
    }
}

#[test]
fn processes_that_borrow_at_once_keep_the_limit() {
    check(3, || {
        let run = Run::new();
        let other = run.clone();
        let other = spawn(1, move || other.borrow(1, 7, 0).pages);
        let own = run.borrow(0, 6, 0).pages;
        let other = other.join().unwrap();
        assert_eq!(run.granted(), [own, other], "each has what it was granted");
        assert!(own + other <= LIMIT, "{own} and {other}");
    });
}

#[test]
fn of_processes_that_exceed_the_limit_one_lets_the_others_know() {
    check(3, || {
        let run = Run::new();
        let other = run.clone();
        let other = spawn(1, move || other.borrow(1, 8, 8));
        let own = run.borrow(0, 6, 6);
        let other = other.join().unwrap();
        assert_eq!(run.granted(), [6, 8]);
        assert_eq!(own.excess.max(other.excess), 4, "{own:?} {other:?}");
    });
}

#[test]
fn the_pages_of_a_killed_process_are_free_again() {
    check(2, || {
        let run = Run::new();
        let (victim, other) = (run.clone(), run.clone());
        let victim = may_die(1, move || {
            let pages = victim.borrow(0, 6, 0).pages;
            victim.entries[0].give_back(pages / 2);
        });
        let other = spawn(2, move || {
            let pages = other.borrow(1, 7, 0).pages;
            other.entries[1].give_back(1.min(pages));
            pages.saturating_sub(1)
        });
        victim.join();
        run.entries().release(0, OWNERS[0], &run.swap);
        let own = other.join().unwrap();
        assert_eq!((run.granted(), run.entries().granted()), ([0, own], own));
        assert_eq!(run.borrow(1, LIMIT, 0).pages, LIMIT - own);
    });
}

#[test]
fn an_entry_is_released_once_and_then_its_next_owners() {
    check(3, || {
        let run = Run::new();
        assert_eq!(run.borrow(0, 4, 0).pages, 4);
        // It leaves, while another process finds that it has ended.
        let leave = |cpu| {
            let run = run.clone();
            spawn(cpu, move || {
                run.entries().release(0, OWNERS[0], &run.swap);
            })
        };
        let leaving = [1, 2].map(leave);
        let joined = run.entries().take(OWNERS[2]);
        if let Some(entry) = joined {
            assert_eq!(run.granted()[entry], 0, "the pages of its last owner are gone");
            run.entries[entry].granted.store(5, SeqCst);
        }
        leaving.into_iter().for_each(|leave| leave.join().unwrap());
        let own = joined.map(|entry| run.entries().of(entry, OWNERS[2]).map(Entry::granted));
        assert!(matches!(own, None | Some(Some(5))), "{own:?}");
    });
}

#[test]
fn processes_that_join_at_once_get_entries_of_their_own() {
    check(3, || {
        let run = Run::new();
        run.entries().release(0, OWNERS[0], &run.swap);
        let other = run.clone();
        let other = spawn(1, move || other.entries().take(OWNERS[0]));
        let own = run.entries().take(OWNERS[2]);
        let taken = [own, other.join().unwrap()];
        assert!(matches!(taken, [Some(0), None] | [None, Some(0)]), "{taken:?}");
    });
}

/// Regression: a thread of a process that was taken for ended gave pages back after its entry had
/// another owner. The number of that owner's pages became less than zero, which counts as more than
/// any machine has: all processes were short.
#[test]
fn pages_that_are_given_back_late_leave_the_next_owner_none_at_worst() {
    check(3, || {
        let run = Run::new();
        assert_eq!(run.borrow(0, 8, 0).pages, 8);
        let late = run.clone();
        let late = spawn(1, move || {
            if let Some(entry) = late.entries().of(0, OWNERS[0]) {
                entry.give_back(8);
                entry.add_unpaged(-8);
            }
        });
        run.entries().release(0, OWNERS[0], &run.swap);
        assert_eq!(run.entries().take(OWNERS[2]), Some(0));
        run.entries[0].granted.store(5, SeqCst);
        late.join().unwrap();
        assert!(run.granted()[0] <= 5, "{:?}", run.granted());
        assert_eq!(run.entries[0].unpaged.load(SeqCst), 0);
    });
}

#[test]
fn processes_that_claim_swap_at_once_keep_its_room() {
    check(3, || {
        let run = Run::new();
        let other = run.clone();
        let other = spawn(1, move || other.swap.claim(1, 2, 0, 7));
        let own = run.swap.claim(0, 2, 0, 6);
        let other = other.join().unwrap();
        assert_eq!(run.claimed(), u64::from(own + other), "each has what it was granted");
        assert!(own + other <= LIMIT as u32, "{own} and {other}");
    });
}

#[test]
fn the_swap_of_a_killed_process_is_free_again() {
    check(2, || {
        let run = Run::new();
        let (victim, other) = (run.clone(), run.clone());
        let victim = may_die(1, move || {
            let pages = victim.swap.claim(0, 2, 0, 6);
            victim.swap.give_back(0, 0, pages / 2);
        });
        let other = spawn(2, move || other.swap.claim(1, 2, 0, 7));
        if victim.join() == Ended::Killed {
            run.swap.clear(0);
        } else {
            run.entries().release(0, OWNERS[0], &run.swap);
        }
        let own = other.join().unwrap();
        assert_eq!(run.claimed(), own.into());
        assert_eq!(run.swap.claim(1, 2, 0, 10), 10 - own);
    });
}
