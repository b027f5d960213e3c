//! Whether a process asks for so much in small blocks that it is to be served.
//!
//! Programs that need little should not pay for a manager: their small blocks are the C library's,
//! until there were 1 MiB of them, freed ones included. Each thread counts for itself, and adds to
//! the sum now and then.

use crate::{caller, process};
use highwater_session::Malloc;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes after which a process is served.
const ENOUGH: usize = 1 << 20;

/// Bytes that a thread counts before it adds them to the sum.
const STEP: usize = 32 << 10;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static WANTED: OnceLock<Malloc> = OnceLock::new();

thread_local! {
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

/// Notes a request of the program that may go to the C library: the process may be served
/// afterwards.
#[cold]
pub(crate) fn note(bytes: usize, caller: usize) {
    let (starting, undecided) = (process::is_starting(), process::is_undecided());
    if !(starting || undecided) || !caller::are_known() || caller::is_inside(caller) {
        return;
    }
    if starting {
        if wants_all() {
            process::wait_for_start();
        }
        return;
    }
    // Headers count too: many of the smallest blocks are no little.
    let counted = COUNTED.get() + bytes + 16;
    COUNTED.set(counted);
    if counted < STEP {
        return;
    }
    COUNTED.set(0);
    let asked = ASKED.fetch_add(counted, Relaxed) + counted;
    if asked >= ENOUGH && wants_all() {
        process::get();
    }
}

/// Whether small blocks are to be paged.
fn wants_all() -> bool {
    *WANTED.get_or_init(Malloc::of_env) == Malloc::All
}
