//! Regions that a thread knows to be the program's, readable and writable: the kernel need not be
//! asked about their pages.
//!
//! A thread looks a region up when it has asked about pages of it a few times, and remembers it
//! until regions or protections change. Threads of programs that change these for each buffer never
//! look a region up.

use crate::process::{self, Process, State};
use std::cell::Cell;

/// Questions in one state of memory before a region is looked up, which costs four system calls.
const QUESTIONS_MIN: u32 = 8;
const PLACES: usize = 4;

/// The regions that a thread remembers.
#[derive(Clone, Copy)]
struct Known {
    state: State,
    /// Questions in this state.
    questions: u32,
    /// Regions: first address, and the one behind the last. Empty: unused.
    regions: [(usize, usize); PLACES],
    /// The place for the next region.
    next: usize,
}

thread_local! {
    static KNOWN: Cell<Known> = const {
        Cell::new(Known { state: State::NONE, questions: 0, regions: [(0, 0); PLACES], next: 0 })
    };
}

/// This process if it is served already and the address is in its range.
fn served(address: usize) -> Option<&'static Process> {
    process::already_running().filter(|process| process.holds(address))
}

/// Whether pages are known to be in one region that is the program's to read and write.
pub(super) fn is_plain(first: usize, end: usize) -> bool {
    let Some(process) = served(first) else { return false };
    let known = KNOWN.get();
    known.state == process.state()
        && known.regions.iter().any(|region| region.0 <= first && end <= region.1)
}

/// The kernel was asked about a page of the program's: looks its region up, if that is worth it.
pub(super) fn learn(page: usize) {
    let Some(process) = served(page) else { return };
    // Read before the region is: if that changes afterwards, the state does, too.
    let state = process.state();
    let mut known = KNOWN.get();
    if known.state != state {
        known = Known { state, questions: 0, regions: [(0, 0); PLACES], next: 0 };
    }
    known.questions += 1;
    if known.questions.is_multiple_of(QUESTIONS_MIN)
        && let Some(region) = process.plain_region(process.page(page))
    {
        let address = |vpn| process.address(vpn) as usize;
        known.regions[known.next] = (address(region.first), address(region.end));
        known.next = (known.next + 1) % PLACES;
    }
    KNOWN.set(known);
}
