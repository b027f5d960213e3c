//! Whether there is a gate, calls past it, and the function that follows advice about memory.

use super::page;
use crate::environment;
use crate::native::call_by_library;
use highwater_session::SystemCalls;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Follows an advice of the program's: address, length in bytes, and advice of madvise(2). Returns
/// the error number of the call.
pub(crate) type Follow = fn(usize, usize, libc::c_int) -> Result<(), libc::c_int>;

static ON: AtomicBool = AtomicBool::new(false);
static FOLLOW: OnceLock<Follow> = OnceLock::new();

/// Whether system calls of this process are to get copies.
pub(super) fn is_wanted() -> bool {
    environment::system_calls() == SystemCalls::Copies
}

/// Whether calls can be made through the gate.
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

pub(super) fn turn_on(follow: Follow) {
    let _ = FOLLOW.set(follow);
    ON.store(true, Relaxed);
}

/// madvise, made past the C library. The kernel knows of no page that is swapped out.
pub(super) fn advise(address: usize, len: usize, advice: libc::c_int) -> isize {
    let follow = FOLLOW.get().expect("set before the filter is loaded");
    follow(address, len, advice).err().map_or(0, |error| -error as isize)
}

pub(super) fn turn_off() {
    ON.store(false, Relaxed);
}

/// Makes a system call that our filter does not trap; returns minus the error number if it fails.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    if is_on() {
        // SAFETY: as the caller says; the page is mapped.
        unsafe { page::call(number as usize, arguments) }
    } else {
        // SAFETY: as the caller says.
        unsafe { call_by_library(number, arguments) }
    }
}
