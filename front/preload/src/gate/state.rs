//! Whether there is a gate, and the function that follows advice about memory.

use crate::environment;
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
