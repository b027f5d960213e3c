//! A forked child has none of its parent's paged memory.
//!
//! ```text
//! fork -- in_child: FORKS + 1        calls on the parent's memory return Error::Forked
//!                |- forgets the parent's services of SIGBUS
//!                \- on_segv          an access to the parent's ranges: one line, then the signal
//! ```
//! The kernel does not copy the ranges to a child (MADV_DONTFORK), and the manager's threads stay
//! in the parent. Locking: none; all words are atomic, since the child of a process with threads
//! may safely use little else.

use highwater_serve::Service;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// The largest number of ranges for which an access in a child is explained. An access to any
/// further range is a bare SIGSEGV.
const RANGES_MAX: usize = 64;

/// First address (0: unused) and length of the ranges of this process.
static RANGES: [(AtomicUsize, AtomicUsize); RANGES_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES_MAX];
/// First address and length of the ranges of this process's ancestors, as they were at the last
/// fork.
static GONE: [(AtomicUsize, AtomicUsize); RANGES_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES_MAX];
/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

const LINE: &[u8] =
    b"highwater: a forked child has none of its parent's paged memory; start it by spawn instead\n";

/// Identifies the process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth(u32);

impl Birth {
    /// This process.
    pub(crate) fn now() -> Birth {
        Birth(FORKS.load(Relaxed))
    }

    /// Whether the current process is another one: a forked child of the process that made the
    /// object.
    pub(crate) fn is_of_ancestor(self) -> bool {
        self != Birth::now()
    }
}

/// A paged range of this process, known until this is dropped.
pub(crate) struct Known(Option<usize>);

impl Known {
    pub(crate) fn new(address: usize, len: usize) -> Known {
        static HOOK: Once = Once::new();
        // SAFETY: the hook makes async-signal-safe calls only. If there is no memory to register
        // it, an access in a child is a bare SIGSEGV.
        HOOK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        let claim = |range: &(AtomicUsize, AtomicUsize)| {
            range.0.compare_exchange(0, address, AcqRel, Relaxed).is_ok()
        };
        let place = RANGES.iter().position(claim);
        if let Some(place) = place {
            RANGES[place].1.store(len, Release);
        }
        Known(place)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            RANGES[place].1.store(0, Release);
            RANGES[place].0.store(0, Release);
        }
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
    Service::forget_inherited();
    let mut any = false;
    for (range, gone) in RANGES.iter().zip(&GONE) {
        let first = range.0.swap(0, Relaxed);
        if first != 0 {
            gone.1.store(range.1.swap(0, Relaxed), Relaxed);
            gone.0.store(first, Relaxed);
            any = true;
        }
    }
    if any {
        install();
    }
}

/// The action for SIGSEGV before [`install`]: written in the child's only thread.
static mut BEFORE: Option<libc::sigaction> = None;

fn install() {
    // SAFETY: zeros are valid sigaction structures; the handler takes the arguments of SA_SIGINFO;
    // nothing else runs in the child.
    unsafe {
        if (&raw const BEFORE).read().is_some() {
            return;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_segv as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGSEGV, &action, &mut before) == 0 {
            (&raw mut BEFORE).write(Some(before));
        }
    }
}

/// Explains an access to the parent's memory, and restores the previous action for SIGSEGV. The
/// access is then repeated, and raises the signal again.
extern "C" fn on_segv(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo.
    let address = unsafe { (*info).si_addr() } as usize;
    let has = |(first, len): &(AtomicUsize, AtomicUsize)| {
        address.wrapping_sub(first.load(Relaxed)) < len.load(Relaxed)
    };
    // SAFETY: plain system calls; BEFORE was written before this handler was reached.
    unsafe {
        if GONE.iter().any(has) {
            libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), LINE.len());
        }
        if let Some(before) = (&raw const BEFORE).read() {
            libc::sigaction(libc::SIGSEGV, &before, ptr::null_mut());
        }
    }
}
