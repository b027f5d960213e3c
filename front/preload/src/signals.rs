//! Blocks signals while a thread of the program is inside the manager.
//!
//! A signal handler may touch paged memory. If its thread had locked the regions, or the entry of
//! that page, the fault would wait for the thread that faults. For the same reason the stack that
//! is needed is touched before any lock is taken: a coroutine's stack may be in paged memory. With
//! the gate SIGBUS and SIGSYS are never blocked (gate/mask.rs); a fault meanwhile is served by the
//! helper (gate/bus.rs).

use crate::gate;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

thread_local! {
    /// How many [`Blocked`] this thread has.
    static BLOCKED: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread has blocked signals because it is inside the manager.
pub(crate) fn are_blocked() -> bool {
    BLOCKED.get() > 0
}

/// All signals are blocked while this lives.
pub(crate) struct Blocked(Before);

/// The mask before. The gate sets masks past the C library, which would not block its own signals.
enum Before {
    OfGate(u64),
    Ordinary(libc::sigset_t),
}

impl Blocked {
    /// Blocks all signals of this thread. Costs two system calls, one of them in drop.
    pub(crate) fn now() -> Blocked {
        BLOCKED.set(BLOCKED.get() + 1);
        let blocked = Blocked::all();
        // Only the first one: a later one may come with the regions' lock held.
        if BLOCKED.get() == 1
            && let Some((stacks, here)) = paged_stack()
        {
            (stacks.touch_below)(here);
        }
        blocked
    }

    fn all() -> Blocked {
        if gate::is_on() {
            return Blocked(Before::OfGate(gate::exchange_mask(u64::MAX)));
        }
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the calls fill both sets before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Blocked(Before::Ordinary(before.assume_init()))
        }
    }
}

/// Makes the stack present that the library needs while it holds a lock, if it is paged.
#[inline]
pub(crate) fn touch_stack() {
    if paged_stack().is_some() {
        drop(Blocked::now());
    }
}

/// How stacks in paged memory are recognised, and made present.
pub(crate) struct Stacks {
    /// Whether an address is in paged memory.
    pub(crate) hold: fn(usize) -> bool,
    /// Touches what the library needs below an address. Signals are blocked.
    pub(crate) touch_below: fn(usize),
}

static STACKS: OnceLock<Stacks> = OnceLock::new();

/// From now on stacks are touched before a lock is taken.
pub(crate) fn touch(stacks: Stacks) {
    let _ = STACKS.set(stacks);
}

/// An address on this stack, if it is paged.
#[inline(always)]
fn paged_stack() -> Option<(&'static Stacks, usize)> {
    let here = 0_u8;
    let here = (&raw const here).addr();
    STACKS.get().filter(|stacks| (stacks.hold)(here)).map(|stacks| (stacks, here))
}

impl Drop for Blocked {
    fn drop(&mut self) {
        BLOCKED.set(BLOCKED.get() - 1);
        match &self.0 {
            Before::OfGate(mask) => _ = gate::exchange_mask(*mask),
            // SAFETY: the mask that `now` saved.
            Before::Ordinary(set) => unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, set, ptr::null_mut());
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the call fills the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn signals_are_blocked_until_the_last_of_nested_guards_is_gone() {
        assert!(!is_blocked(libc::SIGUSR1));
        let outer = Blocked::now();
        let inner = Blocked::now();
        assert!(is_blocked(libc::SIGUSR1) && is_blocked(libc::SIGTERM));
        drop(inner);
        assert!(is_blocked(libc::SIGUSR1));
        drop(outer);
        assert!(!is_blocked(libc::SIGUSR1));
    }
}
