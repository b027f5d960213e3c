//! The program that this process serves, if this process is a helper.

use highwater_os::helper::Program;
use std::sync::atomic::{AtomicI32, Ordering::*};

/// As in [`Program`], in the order of its fields; 0, 0 and -1 before a helper serves.
static PROGRAM: [AtomicI32; 3] = [AtomicI32::new(0), AtomicI32::new(0), AtomicI32::new(-1)];

/// The program, once a helper serves it.
pub(crate) fn program() -> Option<Program> {
    let [pid, in_proc, pidfd] = PROGRAM.each_ref().map(|word| word.load(Acquire));
    (pid > 0).then_some(Program { pid, in_proc, pidfd })
}

/// Makes a program the one that this helper serves.
pub(crate) fn set(program: Program) {
    let values = [program.pid, program.in_proc, program.pidfd];
    // The number last: with it, the others are there.
    PROGRAM.iter().zip(values).rev().for_each(|(word, value)| word.store(value, Release));
}
