//! Signal masks without SIGSYS: a trapped call in a thread that blocks it would end the process.

use super::{access, page};

/// A mask, as the kernel has it.
pub(super) type Mask = u64;

const SIGSYS_BIT: Mask = 1 << (libc::SIGSYS - 1);

/// A mask without SIGSYS.
pub(super) fn without(mask: Mask) -> Mask {
    mask & !SIGSYS_BIT
}

/// Reads the mask of a call that waits with it, such as ppoll.
pub(super) fn read(address: usize) -> Option<Mask> {
    access::read::<Mask>(address).map(without)
}

/// Takes SIGSYS out of this thread's mask.
pub(super) fn unblock() {
    let only = SIGSYS_BIT;
    let arguments = [libc::SIG_UNBLOCK as usize, (&raw const only) as usize, 0, 8, 0, 0];
    // SAFETY: a mask that lives for the call.
    unsafe { page::call(libc::SYS_rt_sigprocmask as usize, arguments) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigsys_is_left_out_of_masks() {
        assert_eq!(without(0b101), 0b101);
        assert_eq!(without(u64::MAX).count_ones(), 63);
        assert_eq!(without(SIGSYS_BIT), 0);
    }
}
