//! Blocks signals while a thread of the program is inside the manager.
//!
//! A signal handler may touch paged memory. If its thread had locked the regions, or the entry of
//! that page, the fault would wait for the thread that faults. For the same reason the stack is
//! touched first: a coroutine's stack may be in paged memory. With the gate SIGBUS and SIGSYS are
//! never blocked (gate/mask.rs); a fault meanwhile is served by the helper (gate/bus.rs).

use crate::gate;
use highwater_units::PAGE_SIZE;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

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
        touch_stack();
        BLOCKED.set(BLOCKED.get() + 1);
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

/// Maximum stack of the library while it holds a lock.
const STACK_BYTES: usize = 8 << 10;

/// Touches the stack that the library needs while it holds a lock.
#[inline(never)]
pub(crate) fn touch_stack() {
    let mut stack = MaybeUninit::<[u8; STACK_BYTES]>::uninit();
    for at in (0..STACK_BYTES).step_by(PAGE_SIZE) {
        // SAFETY: a byte of the array, which is not read.
        unsafe { stack.as_mut_ptr().cast::<u8>().add(at).write_volatile(0) };
    }
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
