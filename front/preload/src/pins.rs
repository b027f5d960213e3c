//! Notifies the manager once devices may write to the program's pages directly.
//!
//! ```text
//! pinning.rs: a call that makes it possible --\
//! descriptors inherited over exec -------------> EXPECTED --> Uffd::expect_pins
//! a forked child: the flag of its parent -----/
//! ```
//! Pages are evicted by copying them, and the copy lacks anything that a device writes to the page
//! afterwards. Once the program may pin pages, pages are moved instead of copied, which the kernel
//! refuses for pinned ones (`platforms/uffd/src/take_out.rs`). The kernel also refuses to move
//! pages that a fork has shared: these are made the process's own first, and later forks share
//! none. Moving is slower, so it begins with the first reason to expect pins, and does not end.
//! Before the manager runs, only the flag is set.

use crate::gate;
use crate::process::{Process, SPACE, running};
use crate::signals::Blocked;
use highwater_os::helper;
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{Dir, Mode, OFlags, fcntl_getfl, open, readlink};
use std::sync::atomic::{AtomicBool, Ordering::*, fence};

/// Whether the program may have pinned pages, or is about to.
static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Whether the manager was notified.
static NOTIFIED: AtomicBool = AtomicBool::new(false);

/// The program may pin pages when this returns.
#[cold]
pub(crate) fn expect() {
    // The manager's own devices use O_DIRECT and io_uring, but not on the program's pages.
    // With the gate, the kernel gets copies: it has no page of the program to pin.
    if NOTIFIED.load(Acquire) || helper::is_inside() || gate::is_on() {
        return;
    }
    EXPECTED.store(true, Relaxed);
    // Either the thread that starts the manager sees the flag, or this one sees the manager.
    fence(SeqCst);
    if let Some(process) = running() {
        notify(process);
    }
}

/// Notifies a manager that begins to serve, if pins are expected. It has been made the running one
/// before.
pub(crate) fn carry_over(process: &Process) {
    fence(SeqCst);
    if EXPECTED.load(Relaxed) {
        notify(process);
    }
}

fn notify(process: &Process) {
    // A signal handler must not fault while this thread has the lock that copies need.
    let _blocked = Blocked::now();
    // A fork that shares pages ends before, or begins after this.
    let _no_fork = process.changes.begin();
    if process.shares.load(Acquire) {
        process.in_helper(|| process.manager.unshare(SPACE));
    }
    process.manager.platform().expect_pins();
    NOTIFIED.store(true, Release);
}

/// Whether the manager was notified that the program may have pinned pages.
pub(crate) fn are_expected() -> bool {
    NOTIFIED.load(Acquire)
}

/// Checks the descriptors that the program has inherited.
pub(crate) fn look_at_inherited() {
    if !EXPECTED.load(Relaxed) && may_pin_by_any() {
        EXPECTED.store(true, Relaxed);
    }
}

/// Without /proc, or a descriptor to read it with, the likely numbers are checked.
fn may_pin_by_any() -> bool {
    const LIKELY: RawFd = 1024;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    match open("/proc/self/fd", flags, Mode::empty()).and_then(Dir::new) {
        Ok(entries) => entries.flatten().any(|entry| {
            let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            number.is_some_and(may_pin)
        }),
        Err(_) => (0..LIKELY).any(may_pin),
    }
}

/// Whether pages may be pinned through a descriptor. A ring counts: this library did not see how it
/// was made.
fn may_pin(number: RawFd) -> bool {
    // SAFETY: only queried; the kernel refuses a number that is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfl(descriptor);
    let file = || readlink(format!("/proc/self/fd/{number}"), Vec::new());
    flags.is_ok_and(|flags| flags.contains(OFlags::DIRECT))
        || file().is_ok_and(|file| file.as_bytes() == b"anon_inode:[io_uring]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn descriptors_with_o_direct_and_rings_may_pin_pages() {
        let plain = std::fs::File::open("/proc/self/exe").expect("this program");
        assert!(!may_pin(plain.as_raw_fd()));
        assert!(!may_pin(RawFd::MAX));
        let direct = open("/proc/self/exe", OFlags::DIRECT, Mode::empty());
        // Some file systems have no O_DIRECT.
        assert!(direct.is_ok_and(|file| may_pin(file.as_raw_fd()) && may_pin_by_any()));
        let mut parameters = [0u64; 15];
        // SAFETY: makes a ring of one entry; the parameters are of 120 bytes.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        if ring >= 0 {
            assert!(may_pin(ring as RawFd));
            // SAFETY: the descriptor made above.
            unsafe { rustix::io::close(ring as RawFd) };
        }
    }
}
