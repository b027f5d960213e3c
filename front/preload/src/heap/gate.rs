//! Who is at the heap's slabs, so that a fork can wait until nobody is.
//!
//! ```text
//! thread -- its CPU's part: RwLock   read, while it is at the slabs
//! fork ---- all parts                written, from before the fork to after it, in both processes
//! ```
//! Locking: before every lock of the heap. Threads of the manager never enter.

use highwater_platform::Cpu;
use highwater_uffd::Uffd;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lock with a cache line of its own for each CPU.
pub(super) struct Gate(Box<[Part]>);

#[repr(align(128))]
#[derive(Default)]
struct Part(RwLock<()>);

/// Nobody is at the slabs.
pub(crate) struct Closed(
    #[expect(dead_code, reason = "held, not read")] Vec<RwLockWriteGuard<'static, ()>>,
);

impl Gate {
    pub(super) fn new(platform: &Uffd) -> Gate {
        Gate((0..platform.cpus()).map(|_| Part::default()).collect())
    }

    /// Enters, as a thread of the program. Not twice.
    pub(super) fn enter(&self, platform: &Uffd) -> RwLockReadGuard<'_, ()> {
        let part = &self.0[usize::from(platform.cpu().0)];
        part.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody is inside, and keeps it so.
    pub(super) fn close(&'static self) -> Closed {
        let close = |part: &'static Part| part.0.write().unwrap_or_else(PoisonError::into_inner);
        Closed(self.0.iter().map(close).collect())
    }
}
