//! The C library's lock of its list of streams, which its fork takes.
//!
//! The C library takes this lock after all fork handlers, when the entries of shared pages are
//! locked and the heap is closed. A thread that flushes all streams holds it, and waits for a
//! stream whose user may be waiting for a shared page; a stream's own functions may allocate under
//! it. So fork takes the lock before all of these ([`crate::fork`]), which the C library's
//! recursive lock allows.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Functions and a variable of the C library. Some older ones do not have all.
struct Found {
    lock: extern "C" fn(),
    unlock: extern "C" fn(),
    /// Whether the process has one thread.
    alone: &'static AtomicU8,
}

static FOUND: OnceLock<Option<Found>> = OnceLock::new();

/// Looks the lock up.
pub(crate) fn learn() {
    FOUND.get_or_init(find);
}

fn find() -> Option<Found> {
    let look = |name: &CStr| {
        // SAFETY: looks a name up.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let lock = look(c"_IO_list_lock")?;
    let unlock = look(c"_IO_list_unlock")?;
    let alone = look(c"__libc_single_threaded")?;
    // SAFETY: the types that the C library gives them.
    unsafe {
        Some(Found {
            lock: std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(lock),
            unlock: std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(unlock),
            alone: AtomicU8::from_ptr(alone.cast()),
        })
    }
}

/// The list is locked. In the parent of a fork it has to be unlocked; in the child the C library
/// resets the lock.
#[must_use]
pub(crate) struct Locked(&'static Found);

impl Locked {
    pub(crate) fn unlock(self) {
        (self.0.unlock)();
    }
}

/// Waits for the lock. `None` in a process with one thread, where no other can hold it, and where
/// the C library's fork leaves the lock alone.
pub(crate) fn lock() -> Option<Locked> {
    let found = FOUND.get()?.as_ref()?;
    if found.alone.load(Relaxed) != 0 {
        return None;
    }
    (found.lock)();
    Some(Locked(found))
}
