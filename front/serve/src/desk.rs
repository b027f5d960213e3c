//! Faults that the faulting thread cannot serve itself, served by threads of the helper.
//!
//! ```text
//! faulting thread: Desk::ask -- Request, on its stack --> list --> desk threads: attempt, answer
//! ```
//! Locking: `list` is held only to add or take a request, or to start a thread. A thread that holds
//! it neither touches paged memory nor runs signal handlers: requests are made in the SIGBUS
//! handler, on a stack that is not paged.

use crate::owner::{At, Outcome, Owner, answer, attempt};
use highwater_mm::Manager;
use highwater_os::sys::{futex_wait, futex_wake_at};
use highwater_os::{OsThread, spawn};
use highwater_platform::Thread;
use highwater_uffd::Uffd;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The most threads of a desk, and so the most of its faults that can wait for devices at once. One
/// thread is started with the desk, others when all are busy.
const THREADS_MAX: usize = 4;

/// Serves faults for other threads.
pub(crate) struct Desk(Arc<Shared>);

struct Shared {
    list: Mutex<List>,
    added: Condvar,
    manager: Arc<Manager<Uffd>>,
    owner: Arc<dyn Owner>,
}

/// Requests, in the order in which they are served.
struct List {
    first: Option<NonNull<Request>>,
    last: Option<NonNull<Request>>,
    stopped: bool,
    /// Threads that wait for requests.
    idle: usize,
    threads: Vec<OsThread>,
}

// SAFETY: a request on the list lives until it is done.
unsafe impl Send for List {}

/// A fault whose thread waits until it is served.
struct Request {
    at: At,
    outcome: Outcome,
    next: Option<NonNull<Request>>,
    done: AtomicU32,
}

impl Desk {
    /// Starts a desk with its first thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(manager: &Arc<Manager<Uffd>>, owner: &Arc<dyn Owner>) -> io::Result<Desk> {
        let list = List { first: None, last: None, stopped: false, idle: 0, threads: Vec::new() };
        let (list, added) = (Mutex::new(list), Condvar::new());
        let shared = Shared { list, added, manager: manager.clone(), owner: owner.clone() };
        let desk = Desk(Arc::new(shared));
        desk.0.add_thread(&mut desk.0.list())?;
        Ok(desk)
    }

    /// Waits until a fault is served, or the owner has been notified that it cannot be; returns the
    /// outcome.
    pub(crate) fn ask(&self, at: At) -> Outcome {
        let (outcome, done) = (Outcome::Retry, AtomicU32::new(0));
        let mut request = Request { at, outcome, next: None, done };
        let pointer = NonNull::from(&mut request);
        self.0.add(pointer);
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
        self.0.list().stopped = true;
        self.0.added.notify_all();
        let threads = mem::take(&mut self.0.list().threads);
        threads.into_iter().for_each(Thread::join);
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

    fn add_thread(self: &Arc<Shared>, list: &mut List) -> io::Result<()> {
        let shared = self.clone();
        let name = format!("fault{}", list.threads.len());
        list.threads.push(spawn(&name, Box::new(move || shared.run()))?);
        Ok(())
    }

    /// The next request; `None`: the desk stops.
    fn take(self: &Arc<Shared>) -> Option<NonNull<Request>> {
        let mut list = self.list();
        loop {
            if let Some(request) = list.first {
                // SAFETY: alive, as its thread waits.
                list.first = unsafe { (*request.as_ptr()).next };
                if list.first.is_none() {
                    list.last = None;
                }
                // This request may take long: the next one needs another thread.
                if list.idle == 0 && list.threads.len() < THREADS_MAX && !list.stopped {
                    // If the system refuses a thread, requests are served one after the other.
                    let _ = self.add_thread(&mut list);
                }
                return Some(request);
            }
            if list.stopped {
                return None;
            }
            list.idle += 1;
            list = self.added.wait(list).unwrap_or_else(PoisonError::into_inner);
            list.idle -= 1;
        }
    }

    /// Body of a thread.
    fn run(self: Arc<Shared>) {
        let (manager, owner) = (&self.manager, &*self.owner);
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
            futex_wake_at(done.addr());
        }
    }
}
