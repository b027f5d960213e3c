//! Keeps threads out of the heap's slabs during a fork.
//!
//! ```text
//! thread -- its CPU's part: RwLock   read, while it is at the slabs
//! fork ---- all parts                written, from before the fork to after it, in both processes
//! ```
//! A signal handler that interrupted its thread inside cannot wait for that thread, nor for others,
//! which may wait for that thread's locks: if it forks, the child gives the heap up
//! (heap::abandon).
//!
//! Locking: before every lock of the heap. The manager's threads never enter.

use highwater_platform::Cpu;
use highwater_uffd::Uffd;
use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A lock with one cache line per CPU.
pub(super) struct Gate(Box<[Part]>);

#[repr(align(128))]
#[derive(Default)]
struct Part(RwLock<()>);

/// A thread that uses the slabs.
pub(super) struct Inside<'a>(Option<RwLockReadGuard<'a, ()>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0 = None;
        compiler_fence(SeqCst);
        INSIDE.set(false);
    }
}

/// Whether this thread is inside, so that this is a signal handler.
pub(super) fn is_interrupted() -> bool {
    INSIDE.get()
}

/// No thread uses the slabs.
pub(crate) struct Closed(
    #[expect(dead_code, reason = "held, not read")] Vec<RwLockWriteGuard<'static, ()>>,
);

impl Gate {
    pub(super) fn new(platform: &Uffd) -> Gate {
        Gate((0..platform.cpus()).map(|_| Part::default()).collect())
    }

    /// Enters, as a thread of the program. Not recursive.
    pub(super) fn enter(&self, platform: &Uffd) -> Inside<'_> {
        INSIDE.set(true);
        // Set first, so that a signal handler sees it whenever the part is locked.
        compiler_fence(SeqCst);
        let part = &self.0[usize::from(platform.cpu().0)];
        Inside(Some(part.0.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits until no thread is inside, and keeps all out. This thread is not inside.
    pub(super) fn close(&'static self) -> Closed {
        let close = |part: &'static Part| part.0.write().unwrap_or_else(PoisonError::into_inner);
        Closed(self.0.iter().map(close).collect())
    }
}
