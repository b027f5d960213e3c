//! Lets a parent wait until its forked child's pages are registered.

use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// A word shared by parent and child, set when the child's pages are registered.
pub(crate) struct Registered(*const AtomicU32);

// SAFETY: an address of shared memory.
unsafe impl Send for Registered {}

/// How long a parent waits for its child to register, which may be stopped, for instance by a
/// debugger.
const REGISTERED_MAX: Duration = Duration::from_secs(1);

impl Registered {
    pub(crate) fn new() -> Result<Registered, String> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let word = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_SIZE, access, MapFlags::SHARED) };
        Ok(Registered(word.map_err(|error| error.to_string())?.cast()))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page of zeros, mapped as long as this lives.
        unsafe { &*self.0 }
    }

    pub(crate) fn set(&self) {
        self.word().store(1, Release);
        // SAFETY: an aligned live word. Waiters are in another process.
        unsafe { libc::syscall(libc::SYS_futex, self.0, libc::FUTEX_WAKE, i32::MAX) };
    }

    pub(crate) fn wait(&self) {
        let until = Instant::now() + REGISTERED_MAX;
        while self.word().load(Acquire) == 0 && Instant::now() < until {
            let period = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            // SAFETY: an aligned live word, and a time.
            unsafe {
                libc::syscall(libc::SYS_futex, self.0, libc::FUTEX_WAIT, 0, &raw const period)
            };
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { sys::unmap(self.0.cast_mut().cast(), PAGE_SIZE) };
    }
}
