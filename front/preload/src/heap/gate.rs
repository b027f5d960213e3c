//! Who is at the heap's slabs, so that a fork can wait until nobody is.
//!
//! ```text
//! thread -- its CPU's part: RwLock   read, while it is at the slabs
//! fork ---- all parts                written, from before the fork to after it, in both processes
//! ```
//! A signal's handler that interrupted its thread inside cannot wait for that thread, nor for
//! others, which may wait for locks that it has: who forks there does without (heap::abandon).
//!
//! Locking: before every lock of the heap. Threads of the manager never enter.

use highwater_platform::Cpu;
use highwater_uffd::Uffd;
use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A lock with a cache line of its own for each CPU.
pub(super) struct Gate(Box<[Part]>);

#[repr(align(128))]
#[derive(Default)]
struct Part(RwLock<()>);

/// A thread is at the slabs.
pub(super) struct Inside<'a>(Option<RwLockReadGuard<'a, ()>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0 = None;
        compiler_fence(SeqCst);
        INSIDE.set(false);
    }
}

/// Whether this thread is inside, so that this is a signal's handler.
pub(super) fn is_interrupted() -> bool {
    INSIDE.get()
}

/// Nobody is at the slabs.
pub(crate) struct Closed(
    #[expect(dead_code, reason = "held, not read")] Vec<RwLockWriteGuard<'static, ()>>,
);

impl Gate {
    pub(super) fn new(platform: &Uffd) -> Gate {
        Gate((0..platform.cpus()).map(|_| Part::default()).collect())
    }

    /// Enters, as a thread of the program. Not twice.
    pub(super) fn enter(&self, platform: &Uffd) -> Inside<'_> {
        INSIDE.set(true);
        // A handler sees it set whenever the part is locked.
        compiler_fence(SeqCst);
        let part = &self.0[usize::from(platform.cpu().0)];
        Inside(Some(part.0.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits until nobody is inside, and keeps it so. This thread is not.
    pub(super) fn close(&'static self) -> Closed {
        let close = |part: &'static Part| part.0.write().unwrap_or_else(PoisonError::into_inner);
        Closed(self.0.iter().map(close).collect())
    }
}
