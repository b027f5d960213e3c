//! The program that this process serves, if this process is a helper.

use highwater_os::helper::Program;
use std::sync::atomic::{AtomicI32, Ordering::*};

/// Process number and pidfd; 0 and -1 before a helper serves.
static PROGRAM: (AtomicI32, AtomicI32) = (AtomicI32::new(0), AtomicI32::new(-1));

/// The program, once a helper serves it.
pub(crate) fn program() -> Option<Program> {
    let (pid, pidfd) = (PROGRAM.0.load(Acquire), PROGRAM.1.load(Acquire));
    (pid > 0).then_some(Program { pid, pidfd })
}

/// Makes a program the one that this helper serves.
pub(crate) fn set(program: Program) {
    PROGRAM.1.store(program.pidfd, Release);
    PROGRAM.0.store(program.pid, Release);
}
