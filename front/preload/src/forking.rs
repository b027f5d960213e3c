//! Whether a fork of this process is under way.
//!
//! ```text
//! begin -- prepare, fork -- returned: the parent goes on -- registered: the child has all it needs
//! ```
//! Devices and descriptors that a child takes over change only while no fork is under way
//! ([`exclude`]).
//!
//! Locking: FORKING is a lock that is taken in one process and released in two. A thread that waits
//! for it yields. A child made past the C library may inherit it as taken, and goes on without it.

use crate::program::program;
use highwater_os::helper;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Attempts, of up to a millisecond each, before a thread finds out whether the lock is one of a
/// parent.
const PATIENCE: u32 = 200;

static FORKING: AtomicBool = AtomicBool::new(false);

/// Forks whose children may still fetch descriptors from this process's helper.
static UNREGISTERED: AtomicU32 = AtomicU32::new(0);

/// Threads that wait in [`begin`].
static WAITING: AtomicU32 = AtomicU32::new(0);

fn try_begin() -> bool {
    FORKING.compare_exchange(false, true, Acquire, Relaxed).is_ok()
}

/// Waits until no fork is under way, and begins one.
pub(crate) fn begin() {
    if try_begin() {
        return;
    }
    WAITING.fetch_add(1, AcqRel);
    let mut attempt = 0;
    while !(try_begin() || attempt >= PATIENCE && is_stray_child()) {
        highwater_os::relax(attempt);
        attempt += 1;
    }
    WAITING.fetch_sub(1, AcqRel);
}

/// Whether this process is a child that was made past the C library. The thread that had the lock
/// in its parent may not exist here.
fn is_stray_child() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    !helper::is_inside() && program().is_some_and(|program| program.pid != own)
}

/// Lets other threads begin, which may sleep while they wait. A thread that begins again and again
/// calls this, without the lock. Waits 750 us at most, because those that wait may be threads that
/// begin again and again, too.
pub(crate) fn yield_to_others() {
    let mut attempt = 0;
    while attempt < 12 && WAITING.load(Acquire) > 0 {
        highwater_os::relax(attempt);
        attempt += 1;
    }
}

/// Ends the fork in the parent, whose child may still fetch descriptors, until [`registered`].
pub(crate) fn returned() {
    UNREGISTERED.fetch_add(1, AcqRel);
    FORKING.store(false, Release);
}

/// The child has all descriptors.
pub(crate) fn registered() {
    UNREGISTERED.fetch_sub(1, AcqRel);
}

/// In the child: forks by other threads of the parent do not concern it.
pub(crate) fn arrived() {
    UNREGISTERED.store(0, Release);
    WAITING.store(0, Release);
}

/// Ends the fork in the child.
pub(crate) fn end() {
    FORKING.store(false, Release);
}

/// In the helper: runs `act` while no fork is under way.
pub(crate) fn exclude<R>(act: impl FnOnce() -> R) -> R {
    let mut attempt = 0;
    loop {
        begin();
        if UNREGISTERED.load(Acquire) == 0 {
            break;
        }
        end();
        highwater_os::relax(attempt);
        attempt += 1;
    }
    let result = act();
    end();
    result
}
