//! What a thread is doing for the manager. A thread does one thing at a time, whichever platform it
//! does it on, so this belongs to the thread and not to a platform.

use highwater_platform::Phase;
use std::cell::Cell;

// Initialised by the compiler and dropped by nobody: no allocation and no registration at the first
// use, so that it works inside malloc and in signal handlers.
thread_local! {
    static PHASE: Cell<&'static Phase> = const { Cell::new(Phase::PROGRAM) };
}

/// Says what this thread does from now on; returns what it did.
pub fn enter(phase: &'static Phase) -> &'static Phase {
    PHASE.replace(phase)
}

/// What this thread does.
pub(crate) fn current() -> &'static Phase {
    PHASE.get()
}
