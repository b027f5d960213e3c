//! The program's limit of addresses (RLIMIT_AS), which counts the whole range of paged memory: a
//! program that sets one (setrlimit, `ulimit -v`) could map nothing any more, nor could this
//! library.
//!
//! ```text
//! the program's limit L --- kernel's: L + EXTRA     stacks, shared memory, files: not below L
//!                       \-- this library's: blocks and mappings of the range up to L  ranges.rs
//! exec: the kernel's soft limit is L again; a process that is served raises it when it starts
//! ```
//! The functions that programs call are in credentials.rs. These run in signal handlers and in
//! children of vfork: they neither allocate nor lock.

use crate::errno::{errno, returned, set_errno};
use libc::{RLIM_INFINITY, c_int, rlimit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Length of the range: a tenth of a process's addresses, so that large reservations are paged,
/// too. The manager's table takes 16 KiB per TiB that is not touched.
pub(crate) const RANGE: u64 = 12 << 40;
/// The kernel's limit is higher than the program's by so many bytes: by the range, and by what the
/// library maps for itself.
const EXTRA: u64 = RANGE + (4 << 30);

/// Whether the kernel's limit is higher than the program's.
static RAISED: AtomicBool = AtomicBool::new(false);
/// The program's limits, if so.
static SOFT: AtomicU64 = AtomicU64::new(RLIM_INFINITY);
static HARD: AtomicU64 = AtomicU64::new(RLIM_INFINITY);

/// Exchanges the kernel's limits of this process.
///
/// # Errors
/// The kernel's error number.
fn exchange(new: Option<rlimit>) -> Result<rlimit, c_int> {
    let mut old = rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: structures that live for the call.
    let made = unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_AS, new, &raw mut old) };
    if made == 0 { Ok(old) } else { Err(errno()) }
}

/// The limits that the program sees. A hard limit that leaves so much room is one that this library
/// set in the process that called exec.
fn seen(kernel: rlimit) -> rlimit {
    if RAISED.load(Acquire) {
        return rlimit { rlim_cur: SOFT.load(Relaxed), rlim_max: HARD.load(Relaxed) };
    }
    match kernel.rlim_max.checked_sub(EXTRA) {
        Some(hard) if kernel.rlim_max != RLIM_INFINITY && kernel.rlim_cur <= hard => {
            rlimit { rlim_max: hard, ..kernel }
        }
        _ => kernel,
    }
}

fn remember(given: rlimit) {
    SOFT.store(given.rlim_cur, Relaxed);
    HARD.store(given.rlim_max, Relaxed);
    RAISED.store(true, Release);
}

/// The limits of the kernel for those of the program. A hard limit that is set cannot be raised.
fn raised(given: rlimit, kernel: rlimit) -> rlimit {
    let extended = |limit: u64| match limit {
        RLIM_INFINITY => RLIM_INFINITY,
        limit => limit.saturating_add(EXTRA).min(RLIM_INFINITY - 1),
    };
    let hard = extended(given.rlim_max).min(kernel.rlim_max.max(given.rlim_max));
    rlimit { rlim_cur: extended(given.rlim_cur).min(hard), rlim_max: hard }
}

/// The process is about to be served: makes room for the range where the soft limit leaves none and
/// the hard one permits it.
pub(crate) fn begin() {
    let Ok(kernel) = exchange(None) else { return };
    if kernel.rlim_cur == RLIM_INFINITY || RAISED.load(Acquire) {
        return;
    }
    let new = rlimit { rlim_max: kernel.rlim_max, ..raised(kernel, kernel) };
    if new.rlim_cur.saturating_sub(kernel.rlim_cur) == EXTRA && exchange(Some(new)).is_ok() {
        remember(seen(kernel));
    }
}

/// How many pages of the range the program may use.
pub(crate) fn pages_max() -> u64 {
    let kernel = rlimit { rlim_cur: RLIM_INFINITY, rlim_max: RLIM_INFINITY };
    seen(kernel).rlim_cur / highwater_units::PAGE_SIZE as u64
}

/// Calls `exec`, which returns only if it fails, with the program's soft limit.
pub(crate) fn with_own(exec: impl FnOnce() -> c_int) -> c_int {
    if !RAISED.load(Acquire) {
        return exec();
    }
    let Ok(kernel) = exchange(None) else { return exec() };
    let soft = SOFT.load(Relaxed).min(kernel.rlim_max);
    let _ = exchange(Some(rlimit { rlim_cur: soft, ..kernel }));
    let result = exec();
    let error = errno();
    let _ = exchange(Some(kernel));
    set_errno(error);
    result
}

/// prlimit(2) of this process for RLIMIT_AS.
///
/// # Safety
/// The structures are the program's, or null.
pub(crate) unsafe fn change(new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: as the caller says.
    let new = unsafe { new.as_ref() }.copied();
    let made = exchange(None).and_then(|kernel| {
        let before = seen(kernel);
        match new {
            None => Ok(before),
            Some(new) if new.rlim_cur > new.rlim_max => Err(libc::EINVAL),
            Some(new) => exchange(Some(raised(new, kernel))).map(|_| {
                remember(new);
                before
            }),
        }
    });
    // SAFETY: as the caller says.
    if let (Ok(before), Some(old)) = (made, unsafe { old.as_mut() }) {
        *old = before;
    }
    returned(made.map_or_else(|error| -(error as isize), |_| 0)) as c_int
}
