//! The program's limits of addresses and of data (RLIMIT_AS, RLIMIT_DATA), both of which count the
//! whole range of paged memory: a program that sets one (setrlimit, `ulimit -v`, `ulimit -d`) could
//! map nothing any more, nor could this library.
//!
//! ```text
//! the program's limit L --- kernel's: L + RANGE_AND_OWN: stacks, shared memory, files: not below L
//!                       \-- this library's: blocks and mappings of the range up to L  ranges.rs
//! exec: the kernel's soft limit is L again; a process that is served raises it when it starts
//! ```
//! The functions that programs call are in credentials.rs. These run in signal handlers and in
//! children of vfork: they neither allocate nor lock.

use crate::errno::{errno, returned, set_errno};
use highwater_session::RANGE_AND_OWN;
use libc::{RLIM_INFINITY, c_int, rlimit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// A limit that counts the range.
struct Limit {
    resource: c_int,
    /// Whether the kernel's limit is higher than the program's.
    raised: AtomicBool,
    /// The program's limits, if it is.
    soft: AtomicU64,
    hard: AtomicU64,
}

static LIMITS: [Limit; 2] =
    [Limit::new(libc::RLIMIT_AS as c_int), Limit::new(libc::RLIMIT_DATA as c_int)];

/// The limit of a resource; `None`: it does not count the range.
fn of(resource: c_int) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| limit.resource == resource)
}

impl Limit {
    const fn new(resource: c_int) -> Limit {
        let (soft, hard) = (AtomicU64::new(RLIM_INFINITY), AtomicU64::new(RLIM_INFINITY));
        Limit { resource, raised: AtomicBool::new(false), soft, hard }
    }

    /// Exchanges the kernel's limits of this process.
    ///
    /// # Errors
    /// The kernel's error number.
    fn exchange(&self, new: Option<rlimit>) -> Result<rlimit, c_int> {
        let mut old = rlimit { rlim_cur: 0, rlim_max: 0 };
        let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
        let call = libc::SYS_prlimit64;
        // SAFETY: structures that live for the call.
        let made = unsafe { libc::syscall(call, 0, self.resource, new, &raw mut old) };
        if made == 0 { Ok(old) } else { Err(errno()) }
    }

    /// The limits that the program sees. A hard limit that leaves room for the range above the soft
    /// one was set by this library, in the process that called exec.
    fn seen(&self, kernel: rlimit) -> rlimit {
        if self.raised.load(Acquire) {
            return rlimit { rlim_cur: self.soft.load(Relaxed), rlim_max: self.hard.load(Relaxed) };
        }
        match kernel.rlim_max.checked_sub(RANGE_AND_OWN) {
            Some(hard) if kernel.rlim_max != RLIM_INFINITY && kernel.rlim_cur <= hard => {
                rlimit { rlim_max: hard, ..kernel }
            }
            _ => kernel,
        }
    }

    fn remember(&self, given: rlimit) {
        self.soft.store(given.rlim_cur, Relaxed);
        self.hard.store(given.rlim_max, Relaxed);
        self.raised.store(true, Release);
    }

    /// Makes room for the range where the soft limit leaves none and the hard one permits it.
    fn begin(&self) {
        let Ok(kernel) = self.exchange(None) else { return };
        if kernel.rlim_cur == RLIM_INFINITY || self.raised.load(Acquire) {
            return;
        }
        let new = rlimit { rlim_max: kernel.rlim_max, ..raised(kernel, kernel) };
        if new.rlim_cur.saturating_sub(kernel.rlim_cur) == RANGE_AND_OWN
            && self.exchange(Some(new)).is_ok()
        {
            self.remember(self.seen(kernel));
        }
    }

    /// Makes the kernel's soft limit the program's; returns what to exchange for it.
    fn lower(&self) -> Option<rlimit> {
        if !self.raised.load(Acquire) {
            return None;
        }
        let kernel = self.exchange(None).ok()?;
        let soft = self.soft.load(Relaxed).min(kernel.rlim_max);
        self.exchange(Some(rlimit { rlim_cur: soft, ..kernel })).ok()
    }

    /// Sets the program's limits; returns what they were.
    fn set(&self, new: rlimit) -> Result<rlimit, c_int> {
        if new.rlim_cur > new.rlim_max {
            return Err(libc::EINVAL);
        }
        let kernel = self.exchange(None)?;
        let before = self.seen(kernel);
        self.exchange(Some(raised(new, kernel)))?;
        self.remember(new);
        Ok(before)
    }
}

/// The limits of the kernel for those of the program. A hard limit that is set cannot be raised.
fn raised(given: rlimit, kernel: rlimit) -> rlimit {
    let extended = |limit: u64| match limit {
        RLIM_INFINITY => RLIM_INFINITY,
        limit => limit.saturating_add(RANGE_AND_OWN).min(RLIM_INFINITY - 1),
    };
    let hard = extended(given.rlim_max).min(kernel.rlim_max.max(given.rlim_max));
    rlimit { rlim_cur: extended(given.rlim_cur).min(hard), rlim_max: hard }
}

/// Whether a limit counts the range.
pub(crate) fn counts_range(resource: c_int) -> bool {
    of(resource).is_some()
}

/// The process is about to be served: makes room for the range.
pub(crate) fn begin() {
    LIMITS.iter().for_each(Limit::begin);
}

/// How many pages of the range the program may use.
pub(crate) fn pages_max() -> u64 {
    let none = rlimit { rlim_cur: RLIM_INFINITY, rlim_max: RLIM_INFINITY };
    let most = LIMITS.iter().map(|limit| limit.seen(none).rlim_cur).min();
    most.unwrap_or(RLIM_INFINITY) / highwater_units::PAGE_SIZE as u64
}

/// Calls `exec`, which returns only if it fails, with the program's soft limits.
pub(crate) fn with_own(exec: impl FnOnce() -> c_int) -> c_int {
    let lowered = LIMITS.each_ref().map(Limit::lower);
    let result = exec();
    let error = errno();
    for (limit, kernel) in LIMITS.iter().zip(lowered) {
        if kernel.is_some() {
            let _ = limit.exchange(kernel);
        }
    }
    set_errno(error);
    result
}

/// prlimit(2) of this process for a limit that counts the range.
///
/// # Safety
/// The structures are the program's, or null.
pub(crate) unsafe fn change(resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
    let limit = of(resource).expect("a limit that counts the range");
    // SAFETY: as the caller says.
    let made = match unsafe { new.as_ref() } {
        None => limit.exchange(None).map(|kernel| limit.seen(kernel)),
        Some(new) => limit.set(*new),
    };
    // SAFETY: as the caller says.
    if let (Ok(before), Some(old)) = (made, unsafe { old.as_mut() }) {
        *old = before;
    }
    returned(made.map_or_else(|error| -(error as isize), |_| 0)) as c_int
}
