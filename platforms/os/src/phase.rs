//! The phase of a thread: the kind of work that it does for the manager. It belongs to the thread,
//! not to a platform, because a thread is in one phase at a time on every platform.

use highwater_platform::Phase;
use std::cell::Cell;

// Const and without a destructor: nothing is allocated or registered at the first use, so that it
// works inside malloc and in signal handlers.
thread_local! {
    static PHASE: Cell<&'static Phase> = const { Cell::new(Phase::PROGRAM) };
}

/// Sets the phase of this thread; returns the one before.
pub fn enter(phase: &'static Phase) -> &'static Phase {
    PHASE.replace(phase)
}

/// The phase of this thread.
pub(crate) fn current() -> &'static Phase {
    PHASE.get()
}
