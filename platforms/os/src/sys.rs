//! System calls for memory and futexes that bypass the C library: the preload library replaces its
//! functions, and the manager's own memory must not come from the memory that it manages.

use highwater_devices::map_own;
use highwater_units::Nanos;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub use rustix::mm::Advice;

/// Maps private anonymous memory: readable, writable, not reserved.
///
/// # Errors
/// The system's refusal.
pub fn map_anonymous(len: usize) -> io::Result<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping replaces nothing.
    Ok(map_own(len, |at, flags| unsafe { map(at, len, access, flags) })?.cast())
}

/// Maps private anonymous memory without access rights, in place of the range's mappings.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// Nothing else may use the range.
pub unsafe fn map_closed(at: *mut u8, len: usize) -> io::Result<*mut u8> {
    // SAFETY: the caller gives the range up.
    Ok(unsafe { map(at.cast(), len, ProtFlags::empty(), MapFlags::FIXED) }?.cast())
}

/// # Safety
/// With `MapFlags::FIXED`, nothing else may use the range.
unsafe fn map(
    at: *mut c_void,
    len: usize,
    access: ProtFlags,
    flags: MapFlags,
) -> rustix::io::Result<*mut c_void> {
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, or one that replaces a range the caller vouches for.
    unsafe { rustix::mm::mmap_anonymous(at, len, access, flags) }
}

/// Unmaps a range.
///
/// # Safety
/// Nothing uses the range any more.
pub unsafe fn unmap(address: *mut u8, len: usize) {
    // SAFETY: the caller gives the range up.
    let _ = unsafe { rustix::mm::munmap(address.cast(), len) };
}

/// The advice of madvise(2) that drops locked pages, too (Linux 5.18).
pub const MADV_DONTNEED_LOCKED: i32 = 24;

/// Advises the kernel on a range.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// The advice may drop contents; the caller owns the range.
pub unsafe fn advise(address: *mut u8, len: usize, advice: Advice) -> io::Result<()> {
    // SAFETY: by contract of this function.
    Ok(unsafe { rustix::mm::madvise(address.cast(), len, advice) }?)
}

/// Changes the protection of a range to PROT_ bits.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn protect(address: *mut u8, len: usize, bits: i32) -> io::Result<()> {
    let access = MprotectFlags::from_bits_retain(bits as u32);
    // SAFETY: by contract of this function.
    Ok(unsafe { rustix::mm::mprotect(address.cast(), len, access) }?)
}

/// Sleeps while `word` is `value`, until a wake, a signal, or the timeout.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Nanos>) {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: (t.0 / 1_000_000_000) as i64,
        tv_nsec: (t.0 % 1_000_000_000) as i64,
    });
    // An error means that the word has another value already, or that the wait is over.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, timeout.as_ref());
}

/// Sleeps less than a second. Does not use the C library's function, which is a cancellation point.
pub fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: a time that lives for the call.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null_mut::<u8>()) };
}

/// Reads from a file at an offset; returns the number of bytes, 0 on error. Does not use the C
/// library's function, which is a cancellation point.
pub fn read_at(file: BorrowedFd<'_>, to: &mut [u8], offset: u64) -> usize {
    let number = libc::SYS_pread64;
    // SAFETY: writes `to`.
    let got = unsafe { libc::syscall(number, file.as_raw_fd(), to.as_mut_ptr(), to.len(), offset) };
    usize::try_from(got).unwrap_or(0)
}

/// Wakes the threads that sleep on the word at an address, which may be gone.
pub fn futex_wake_at(address: usize) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address is compared.
    unsafe { libc::syscall(libc::SYS_futex, address, operation, i32::MAX) };
}

/// Wakes all threads that sleep on `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Sets the floating-point modes that every program begins with: no exception traps. A new thread
/// inherits the modes of its creator, and some programs let exceptions trap (feenableexcept, Free
/// Pascal).
pub(crate) fn reset_float_modes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Rust assumes the initial values of both registers; no x87 value is live in a call.
    unsafe {
        let initial = 0x1f80_u32;
        std::arch::asm!("fninit", "ldmxcsr [{}]", in(reg) &raw const initial, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: Rust assumes the initial value, 0.
    unsafe {
        std::arch::asm!("msr fpcr, xzr", options(nomem, nostack));
    }
}
