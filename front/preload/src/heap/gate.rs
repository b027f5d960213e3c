//! Keeps threads out of the slabs, and out of the C library's malloc and free, during a fork.
//!
//! ```text
//! thread -- CpuLock   read, while it is at the slabs or in the C library's malloc
//! fork -----/         written, from before the fork to after it, in both processes
//! ```
//! The C library's fork waits for the locks of its malloc after all fork handlers, when pages are
//! frozen already. Their holder would wait for such a page if a signal handler interrupted it. That
//! can still happen where the C library takes these locks by itself: in malloc_trim and mallinfo,
//! and when a thread ends.
//!
//! A signal handler that interrupted its own thread inside the gate cannot wait for that thread,
//! nor for others, which may wait for that thread's locks: if it forks, the child gives up the heap
//! and the gate (heap::abandon). A handler that leaves from there by longjmp leaves its part of the
//! gate locked, as it would leave the locks of malloc.
//!
//! Locking: before every lock of the heap. The manager's threads and the forking one pass freely.

use crate::cpu_lock::CpuLock;
use crate::errno::{errno, set_errno};
use highwater_os::helper;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*, compiler_fence};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Null until the process is served: threads enter freely then.
static GATE: AtomicPtr<CpuLock> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A thread inside. `None`: it passed freely, or a signal handler of a thread inside entered again.
pub(crate) struct Inside(Option<RwLockReadGuard<'static, ()>>);

impl Drop for Inside {
    fn drop(&mut self) {
        if self.0.take().is_some() {
            compiler_fence(SeqCst);
            INSIDE.set(false);
        }
    }
}

/// No other thread is inside.
pub(crate) struct Closed(
    #[expect(dead_code, reason = "held, not read")] Vec<RwLockWriteGuard<'static, ()>>,
);

impl Drop for Closed {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Makes the gate of a process that is served from now on.
pub(crate) fn make(cpus: usize) {
    GATE.store(Box::leak(Box::new(CpuLock::new(cpus))), Release);
}

/// In a forked child: makes another gate in place of the parent's, inside which there may be
/// threads that do not exist here.
pub(super) fn abandon() {
    if let Some(gate) = gate() {
        make(gate.cpus());
    }
}

#[inline]
fn gate() -> Option<&'static CpuLock> {
    // SAFETY: null, or a lock that was leaked.
    unsafe { GATE.load(Acquire).as_ref() }
}

/// Whether this thread is inside; the caller then runs in a signal handler.
pub(super) fn is_interrupted() -> bool {
    INSIDE.get()
}

/// Enters, as a thread of the program. Keeps errno, which free must not change.
#[inline]
pub(crate) fn enter() -> Inside {
    match gate().filter(|_| !INSIDE.get() && !helper::is_inside()) {
        None => Inside(None),
        Some(gate) => {
            INSIDE.set(true);
            // Set first, so that a signal handler sees it whenever the part is locked.
            compiler_fence(SeqCst);
            let part = gate.part();
            Inside(Some(part.try_read().unwrap_or_else(|_| wait(part))))
        }
    }
}

/// Enters once the fork has ended.
#[cold]
fn wait(part: &'static RwLock<()>) -> RwLockReadGuard<'static, ()> {
    let before = errno();
    let guard = part.read().unwrap_or_else(PoisonError::into_inner);
    set_errno(before);
    guard
}

/// Waits until no thread is inside, and keeps all others out. This thread is not inside. `None`:
/// there is no gate.
pub(super) fn close() -> Option<Closed> {
    let closed = gate().map(|gate| Closed(gate.write()));
    INSIDE.set(closed.is_some());
    closed
}
