//! Instructions of seccomp filters.

use libc::sock_filter;

/// Loads a word of `seccomp_data`.
pub(crate) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(crate) const EQUALS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(crate) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// This machine, as the kernel's audit names it.
#[cfg(target_arch = "x86_64")]
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const AUDIT_ARCH: u32 = 0xc000_00b7;

pub(crate) fn op(code: u16, value: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k: value }
}

/// Skips `jt` instructions if the comparison holds, else `jf`.
pub(crate) fn branch(code: u16, value: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k: value }
}
