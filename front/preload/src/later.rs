//! A forked child that is not served yet: most execute another program, or end, and need no
//! manager.
//!
//! ```text
//! fork.rs: put_off, in the child ---> WAITS --- begin, at the first need ---> BEGINS ---> NONE
//! ```
//! Until then the child has the pages that the kernel's fork copied; all others of the range are
//! registered, and an access to one raises SIGBUS. It needs a manager when it makes such an access
//! (`gate/bus.rs`), allocates or changes paged memory, maps a file of 16 MiB or more, forks
//! (`process::running`), or is about to lose rights that the start takes (`credentials.rs`).
//!
//! Locking: STAGE is a lock while it is BEGINS. Threads that wait for it yield.

use crate::memory::Aside;
use crate::signals::Blocked;
use highwater_os::helper;
use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};

const NONE: u8 = 0;
const WAITS: u8 = 1;
const BEGINS: u8 = 2;

static STAGE: AtomicU8 = AtomicU8::new(NONE);

/// First address of the range, and the one behind it.
static RANGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// What serves the child.
static ACT: OnceLock<fn(&Blocked)> = OnceLock::new();

thread_local! {
    /// Whether this thread makes the child served, or waits for the thread that does.
    static ACTS: Cell<bool> = const { Cell::new(false) };
}

/// In a forked child: `act`, always the same function, serves it at the first need.
pub(crate) fn put_off(range: Range<usize>, act: fn(&Blocked)) {
    ACT.get_or_init(|| act);
    RANGE[0].store(range.start, Relaxed);
    RANGE[1].store(range.end, Relaxed);
    STAGE.store(WAITS, Release);
}

/// Whether this process is a forked child that is not served yet.
#[inline]
pub(crate) fn waits() -> bool {
    STAGE.load(Acquire) != NONE
}

/// Whether an address is in the range of a child that is not served yet, but can be. False while
/// this thread is starting to serve the child.
pub(crate) fn holds(address: usize) -> bool {
    if !waits() || is_acting() {
        return false;
    }
    let [first, end] = [&RANGE[0], &RANGE[1]].map(|bound| bound.load(Relaxed));
    (first..end).contains(&address)
}

/// Whether this thread is within [`begin`], or belongs to a helper.
fn is_acting() -> bool {
    ACTS.get() || helper::is_inside()
}

/// Serves this process from now on, if that was put off.
#[inline]
pub(crate) fn begin() {
    if waits() {
        begin_now();
    }
}

#[cold]
fn begin_now() {
    if is_acting() {
        return;
    }
    let blocked = Blocked::now();
    // From here on, system calls of this thread must not begin it again: they would do so without
    // end while another thread is slow.
    ACTS.set(true);
    if STAGE.compare_exchange(WAITS, BEGINS, AcqRel, Acquire).is_ok() {
        // The helper allocates.
        let _aside = Aside::now();
        ACT.get().expect("set before the stage")(&blocked);
        STAGE.store(NONE, Release);
    }
    let mut attempt = 0;
    while STAGE.load(Acquire) == BEGINS {
        highwater_os::relax(attempt);
        attempt += 1;
    }
    ACTS.set(false);
}
