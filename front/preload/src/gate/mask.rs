//! Signal masks without SIGSYS and SIGBUS: a trapped call, or a fault, in a thread that blocks them
//! would end the process.

use super::{access, page};

/// A mask, as the kernel has it.
pub(super) type Mask = u64;

const RESERVED_BITS: Mask = 1 << (libc::SIGSYS - 1) | 1 << (libc::SIGBUS - 1);

/// A mask without the signals of the gate.
pub(super) fn without(mask: Mask) -> Mask {
    mask & !RESERVED_BITS
}

/// Sets this thread's mask.
pub(super) fn set(mask: Mask) {
    let mask = without(mask);
    let arguments = [libc::SIG_SETMASK as usize, (&raw const mask) as usize, 0, 8, 0, 0];
    // SAFETY: a mask that lives for the call.
    unsafe { page::call(libc::SYS_rt_sigprocmask as usize, arguments) };
}

/// Reads the mask of a call that waits with it, such as ppoll.
pub(super) fn read(address: usize) -> Option<Mask> {
    access::read::<Mask>(address).map(without)
}

/// Takes them out of this thread's mask.
pub(super) fn unblock() {
    let only = RESERVED_BITS;
    let arguments = [libc::SIG_UNBLOCK as usize, (&raw const only) as usize, 0, 8, 0, 0];
    // SAFETY: a mask that lives for the call.
    unsafe { page::call(libc::SYS_rt_sigprocmask as usize, arguments) };
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
}
