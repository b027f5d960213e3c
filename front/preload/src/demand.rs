//! Whether a process asks for so much in small blocks that it is to be served.
//!
//! Programs that need little should not pay for a manager: their small blocks are the C library's,
//! until there were 1 MiB of them, freed ones included. Each thread counts for itself, and adds to
//! the sum now and then: with its first request, then after 1 KiB, 2 KiB and so on, so that many
//! threads that ask for little count, and one that asks for much seldom touches what all share.

use crate::{caller, environment, start};
use highwater_session::Malloc;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes after which a process is served.
const ENOUGH: usize = 1 << 20;

/// Bytes that a thread counts before it adds them to the sum: behind its first request, ...
const STEP_MIN: usize = 1 << 10;
/// ... and at most.
const STEP_MAX: usize = 32 << 10;

static ASKED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes not yet added, and the step they are added after.
    static COUNTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Notes a request of the program that may go to the C library: the process may be served
/// afterwards.
#[cold]
pub(crate) fn note(bytes: usize, caller: usize) {
    let (starting, undecided) = (start::is_starting(), start::is_undecided());
    if !(starting || undecided) || !caller::are_known() || caller::is_inside(caller) {
        return;
    }
    if starting {
        if wants_all() {
            start::wait_for_start();
        }
        return;
    }
    // Headers count too: many of the smallest blocks are no little.
    let (before, step) = COUNTED.get();
    let counted = before + bytes + 16;
    if counted < step {
        return COUNTED.set((counted, step));
    }
    COUNTED.set((0, (2 * step).clamp(STEP_MIN, STEP_MAX)));
    let asked = ASKED.fetch_add(counted, Relaxed) + counted;
    if asked >= ENOUGH && wants_all() {
        start::get();
    }
}

/// Whether small blocks are to be paged.
fn wants_all() -> bool {
    environment::malloc() == Malloc::All
}
