//! Decides when a process has asked for enough small blocks to be served.
//!
//! A program that needs little memory should not pay for a manager: its small blocks are the C
//! library's until they add up to 1 MiB, freed ones included. Each thread counts its own requests
//! and adds them to the shared sum after its first request, then after 1 KiB, 2 KiB and so on. So
//! many threads with few requests count, and a thread with many seldom touches the shared cache
//! line.

use crate::{caller, environment, start};
use highwater_session::Malloc;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes after which a process is served.
const ENOUGH: usize = 1 << 20;

/// Bytes that a thread counts before it adds them to the sum: after its first request, ...
const STEP_MIN: usize = 1 << 10;
/// ... and at most.
const STEP_MAX: usize = 32 << 10;

static ASKED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes not yet added to the sum, and the step after which they are.
    static COUNTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Counts a request that may go to the C library. The process may be served afterwards.
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
    // The block's header counts too, so that many tiny blocks add up.
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

/// Whether small blocks are paged in this run.
fn wants_all() -> bool {
    environment::malloc() == Malloc::All
}
