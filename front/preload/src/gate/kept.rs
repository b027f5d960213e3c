//! The program's actions for signals whose handlers the kernel does not call: those of the gate's
//! own signals, and those that delivery.rs calls.
//!
//! Locks: none. Two threads that set actions for one signal at once may mix them.

use super::mask::Mask;
use libc::c_int;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An action of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) handler: usize,
    pub(super) flags: u64,
    pub(super) mask: Mask,
}

impl Kept {
    /// From an action of the C library's kind.
    pub(super) fn of(action: &libc::sigaction) -> Kept {
        // SAFETY: the kernel's mask is the first word of the C library's.
        let mask = unsafe { (&raw const action.sa_mask).cast::<Mask>().read() };
        Kept { handler: action.sa_sigaction, flags: action.sa_flags as u64, mask }
    }

    /// Into an action of the C library's kind.
    pub(super) fn put(self, action: &mut libc::sigaction) {
        (action.sa_sigaction, action.sa_flags) = (self.handler, self.flags as c_int);
        // SAFETY: the kernel's mask is the first word of the C library's.
        unsafe { (&raw mut action.sa_mask).cast::<Mask>().write(self.mask) };
    }
}

pub(super) const SIGNALS: c_int = 64;

/// Whether there is a signal of that number.
pub(super) fn is_signal(signal: c_int) -> bool {
    (1..=SIGNALS).contains(&signal)
}

/// The program's actions that the kernel does not have, by signal: handler, flags and mask.
static PROGRAMS: [[AtomicUsize; 3]; SIGNALS as usize + 1] =
    [const { [const { AtomicUsize::new(0) }; 3] }; SIGNALS as usize + 1];

/// The program's action for a signal, if the kernel does not have it.
pub(super) fn kept(signal: c_int) -> Kept {
    let [handler, flags, mask] =
        PROGRAMS[signal as usize].each_ref().map(|word| word.load(Relaxed));
    Kept { handler, flags: flags as u64, mask: mask as Mask }
}

/// Whether the program has a handler for a signal whose action the kernel does not have.
pub(crate) fn has_handler(signal: c_int) -> bool {
    ![libc::SIG_DFL, libc::SIG_IGN].contains(&kept(signal).handler)
}

/// Keeps an action for a signal.
pub(super) fn keep(signal: c_int, Kept { handler, flags, mask }: Kept) {
    let words = [handler, flags as usize, mask as usize];
    PROGRAMS[signal as usize].iter().zip(words).for_each(|(at, word)| at.store(word, Relaxed));
}
