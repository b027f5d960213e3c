//! Whether there is a gate.

use crate::environment;
use highwater_session::SystemCalls;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);

/// Whether system calls of this process are to get copies.
pub(super) fn is_wanted() -> bool {
    environment::system_calls() == SystemCalls::Copies
}

/// Whether calls can be made through the gate.
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

pub(super) fn turn_on() {
    ON.store(true, Relaxed);
}

pub(super) fn turn_off() {
    ON.store(false, Relaxed);
}
