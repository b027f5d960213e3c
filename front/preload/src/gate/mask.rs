//! Signal masks without SIGSYS and SIGBUS: a trapped call, or a fault, in a thread that blocks them
//! would end the process.

use super::page;
use super::state::is_on;

/// A mask, as the kernel has it.
pub(crate) type Mask = u64;

const RESERVED_BITS: Mask = 1 << (libc::SIGSYS - 1) | 1 << (libc::SIGBUS - 1);

/// A mask without the signals of the gate.
pub(super) fn without(mask: Mask) -> Mask {
    mask & !RESERVED_BITS
}

/// Whether a mask has all signals that can be blocked, but the gate's.
pub(super) fn is_full(mask: Mask) -> bool {
    const NEVER: Mask = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    mask | NEVER | RESERVED_BITS == Mask::MAX
}

/// Sets this thread's mask, without the gate's signals.
pub(super) fn set(mask: Mask) {
    exchange(mask);
}

/// Sets this thread's mask, without the gate's signals; returns the one before. Not by the C
/// library, which does not block its own signals: one cancels threads.
pub(crate) fn exchange(mask: Mask) -> Mask {
    change(libc::SIG_SETMASK, without(mask))
}

fn change(how: i32, mask: Mask) -> Mask {
    let mut before: Mask = 0;
    let arguments = [how as usize, (&raw const mask) as usize, (&raw mut before) as usize, 8, 0, 0];
    if !is_on() {
        let [how, new, old, size, ..] = arguments;
        // SAFETY: masks that live for the call. There is no filter of ours.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, size) };
        return before;
    }
    // SAFETY: as above. On a paged stack the masks may be missing, until they are touched.
    while unsafe { page::call(libc::SYS_rt_sigprocmask as usize, arguments) } == MISSING {
        // SAFETY: variables of this function.
        unsafe {
            (&raw const mask).read_volatile();
            (&raw mut before).write_volatile(0);
        }
    }
    before
}

/// The result of a call that could not reach its arguments.
const MISSING: isize = -(libc::EFAULT as isize);

/// Takes the gate's signals out of this thread's mask.
pub(super) fn unblock() {
    change(libc::SIG_UNBLOCK, RESERVED_BITS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signals_of_the_gate_are_left_out_of_masks() {
        assert_eq!(without(0b101), 0b101);
        assert_eq!(without(u64::MAX).count_ones(), 62);
        assert_eq!(without(RESERVED_BITS), 0);
    }

    #[test]
    fn a_full_mask_has_what_can_be_blocked() {
        let kernels = without(Mask::MAX) & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
        assert!(is_full(kernels) && is_full(Mask::MAX));
        assert!(!is_full(0) && !is_full(kernels & !1));
    }
}
