//! System calls made raw, past the C library's functions: the preload library replaces those, and
//! the manager's own memory must not come from what it manages.

use highwater_units::Nanos;
use std::io;
use std::sync::atomic::AtomicU32;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Maps private anonymous memory: readable, writable, not reserved. `fixed` replaces what is there.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// With `fixed`, nothing else may use the range.
pub unsafe fn map_anonymous(fixed: Option<*mut u8>, len: usize) -> io::Result<*mut u8> {
    // SAFETY: as the caller says.
    unsafe { map(fixed, len, libc::PROT_READ | libc::PROT_WRITE) }
}

/// Maps private anonymous memory that nobody may touch yet, in place of what is there.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// Nothing else may use the range.
pub unsafe fn map_closed(at: *mut u8, len: usize) -> io::Result<*mut u8> {
    // SAFETY: as the caller says.
    unsafe { map(Some(at), len, libc::PROT_NONE) }
}

/// # Safety
/// As for the functions above.
unsafe fn map(fixed: Option<*mut u8>, len: usize, access: libc::c_int) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = flags | if fixed.is_some() { libc::MAP_FIXED } else { 0 };
    let at = fixed.unwrap_or(std::ptr::null_mut());
    // SAFETY: a new mapping, or one that replaces a range the caller vouches for.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, len, access, flags, -1, 0usize) };
    check(mapped).map(|address| address as *mut u8)
}

/// Unmaps a range.
///
/// # Safety
/// Nobody uses the range any more.
pub unsafe fn unmap(address: *mut u8, len: usize) {
    // SAFETY: the caller gives the range up.
    unsafe { libc::syscall(libc::SYS_munmap, address, len) };
}

/// Advises the kernel on a range.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// The advice may drop contents; the caller owns the range.
pub unsafe fn advise(address: *mut u8, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: as the caller says.
    check(unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) }).map(drop)
}

/// Changes the protection of a range.
///
/// # Errors
/// The system's refusal.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn protect(address: *mut u8, len: usize, access: libc::c_int) -> io::Result<()> {
    // SAFETY: as the caller says.
    check(unsafe { libc::syscall(libc::SYS_mprotect, address, len, access) }).map(drop)
}

/// Sleeps while `word` is `value`, until a wake-up, a signal, or the timeout.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Nanos>) {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: (t.0 / 1_000_000_000) as libc::time_t,
        tv_nsec: (t.0 % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is an aligned live u32, `timeout` null or a live timespec.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout) };
}

/// Wakes everyone who sleeps on `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is an aligned live u32.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
}
