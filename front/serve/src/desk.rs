//! Faults that the faulting thread cannot serve itself, served by threads of the helper.
//!
//! ```text
//! faulting thread: Desk::ask -- Request, on its stack --> list --> desk threads: attempt, answer
//! ```
//! Locking: `list` is held only to add or take a request. No thread touches paged memory meanwhile,
//! or runs signal handlers: requests are made in the SIGBUS handler, on a stack that is not paged.

use crate::owner::{At, Outcome, Owner, answer, attempt};
use highwater_mm::Manager;
use highwater_os::sys::{futex_wait, futex_wake_at};
use highwater_os::{OsThread, spawn};
use highwater_platform::Thread;
use highwater_uffd::Uffd;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of a desk, and so the most of its faults that wait for devices at once.
const THREADS: usize = 4;

/// Serves faults for other threads.
pub(crate) struct Desk {
    shared: Arc<Shared>,
    threads: Vec<OsThread>,
}

struct Shared {
    list: Mutex<List>,
    added: Condvar,
}

/// Requests, in the order in which they are served.
struct List {
    first: Option<NonNull<Request>>,
    last: Option<NonNull<Request>>,
    stopped: bool,
}

// SAFETY: a request on the list lives until it is done.
unsafe impl Send for List {}

/// A fault whose thread waits.
struct Request {
    at: At,
    outcome: Outcome,
    next: Option<NonNull<Request>>,
    done: AtomicU32,
}

impl Desk {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(manager: &Arc<Manager<Uffd>>, owner: &Arc<dyn Owner>) -> io::Result<Desk> {
        let list = Mutex::new(List { first: None, last: None, stopped: false });
        let shared = Arc::new(Shared { list, added: Condvar::new() });
        let mut desk = Desk { shared, threads: Vec::new() };
        for index in 0..THREADS {
            let (shared, manager, owner) = (desk.shared.clone(), manager.clone(), owner.clone());
            let body = move || shared.run(&manager, &*owner);
            desk.threads.push(spawn(&format!("fault{index}"), Box::new(body))?);
        }
        Ok(desk)
    }

    /// Waits until a fault is served, or its owner knows that it cannot be; returns the outcome.
    pub(crate) fn ask(&self, at: At) -> Outcome {
        let (outcome, done) = (Outcome::Retry, AtomicU32::new(0));
        let mut request = Request { at, outcome, next: None, done };
        let pointer = NonNull::from(&mut request);
        self.shared.add(pointer);
        // SAFETY: the request lives until this returns.
        let done = unsafe { &(*pointer.as_ptr()).done };
        while done.load(Acquire) == 0 {
            futex_wait(done, 0, None);
        }
        // SAFETY: as above.
        unsafe { (*pointer.as_ptr()).outcome }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.shared.list().stopped = true;
        self.shared.added.notify_all();
        self.threads.drain(..).for_each(Thread::join);
    }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, request: NonNull<Request>) {
        let mut list = self.list();
        match list.last.replace(request) {
            // SAFETY: on the list, so its thread waits.
            Some(last) => unsafe { (*last.as_ptr()).next = Some(request) },
            None => list.first = Some(request),
        }
        drop(list);
        self.added.notify_one();
    }

    /// The next request; `None`: the desk stops.
    fn take(&self) -> Option<NonNull<Request>> {
        let mut list = self.list();
        loop {
            if let Some(request) = list.first {
                // SAFETY: alive, as its thread waits.
                list.first = unsafe { (*request.as_ptr()).next };
                if list.first.is_none() {
                    list.last = None;
                }
                return Some(request);
            }
            if list.stopped {
                return None;
            }
            list = self.added.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Body of a thread.
    fn run(&self, manager: &Manager<Uffd>, owner: &dyn Owner) {
        while let Some(request) = self.take() {
            // SAFETY: alive until it is done; only this thread has it.
            let at = unsafe { (*request.as_ptr()).at };
            let outcome = attempt(manager, owner, at, |_| ());
            answer(owner, at, outcome);
            // SAFETY: as above.
            unsafe { (*request.as_ptr()).outcome = outcome };
            // SAFETY: as above, up to the store; then only the address is used.
            let done = unsafe { &raw const (*request.as_ptr()).done };
            // SAFETY: as above.
            unsafe { (*done).store(1, Release) };
            futex_wake_at(done);
        }
    }
}
