//! Pages that are awaited: a thread of the library brings them in, and wakes the task.
//!
//! ```text
//! Mapping -- Gate: where its pages are, until it is freed or resized
//!              ^ read, for a page at a time
//! Fetch --Job--> Fetchers: a queue, threads -- pin, unpin each page -- done: wake
//! ```
//! A thread that fetches keeps neither the mapping nor its memory alive. It enters the gate for one
//! page at a time; a thread that frees or moves the pages closes the gate first. Locking: a gate,
//! then the locks of a pin; the locks of the queue and of the state of a fetch are taken alone.

use crate::error::Error;
use crate::forked::Birth;
use highwater_units::{SpaceId, Vpn};
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::{io, mem};

/// The number of threads that fetch for a memory, from the first fetch on: as many reads are in
/// flight at the same time.
const THREADS: usize = 4;

/// Brings pages in.
pub(crate) trait Source: Send + Sync {
    /// Reads a page, if it is not in memory.
    ///
    /// # Errors
    /// The reason that the page cannot be brought in.
    fn bring_in(&self, space: SpaceId, vpn: Vpn) -> Result<(), Error>;
}

/// The pages of a mapping; `None`: they have been freed or moved.
#[derive(Default)]
pub(crate) struct Gate(RwLock<Option<Pages>>);

/// Pages of a mapping that exists while the gate is held.
struct Pages {
    source: NonNull<dyn Source>,
    space: SpaceId,
    first: Vpn,
}

// SAFETY: a source is for all threads, and exists while it is used (`Gate::close`).
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Gate {
    /// The gate of pages from `first` on. It is closed before the mapping frees or moves one of
    /// them, and before the mapping, which keeps the source, is dropped.
    pub(crate) fn new(source: &(dyn Source + 'static), space: SpaceId, first: Vpn) -> Gate {
        Gate(RwLock::new(Some(Pages { source: NonNull::from(source), space, first })))
    }

    /// Waits for the page that is being fetched; no more pages are fetched.
    pub(crate) fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Brings a page in; `None`: the pages are gone.
    fn fetch(&self, index: usize) -> Option<Result<(), Error>> {
        let pages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Pages { source, space, first } = pages.as_ref()?;
        // SAFETY: the mapping, which keeps the source, is not dropped before the gate is closed.
        let source = unsafe { source.as_ref() };
        Some(source.bring_in(*space, first.offset(index as u64)))
    }
}

/// Pages that a library thread brings into memory; see [`Mapping::fetch`](crate::Mapping::fetch).
/// The fetch starts when it is made. Dropping it cancels the pages that have not been read.
#[must_use = "futures do nothing unless they are awaited; Mapping::prefetch does not wait"]
#[derive(Debug)]
pub struct Fetch<'a> {
    state: Arc<State>,
    birth: Birth,
    /// Borrows the mapping, which is neither resized nor dropped while a fetch is awaited.
    borrowed: PhantomData<&'a [u8]>,
}

#[derive(Debug, Default)]
struct State(Mutex<Progress>);

#[derive(Debug, Default)]
enum Progress {
    #[default]
    Started,
    Awaited(Waker),
    Over(Result<(), Error>),
    Cancelled,
}

impl State {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cancelled(&self) -> bool {
        matches!(*self.progress(), Progress::Cancelled)
    }

    fn end(&self, result: Result<(), Error>) {
        let mut progress = self.progress();
        if matches!(*progress, Progress::Cancelled) {
            return;
        }
        let before = mem::replace(&mut *progress, Progress::Over(result));
        drop(progress);
        // Outside the lock: a waker may poll.
        if let Progress::Awaited(waker) = before {
            waker.wake();
        }
    }
}

impl Future for Fetch<'_> {
    type Output = Result<(), Error>;

    /// # Panics
    /// If it has returned its result before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.birth.is_of_ancestor() {
            return Poll::Ready(Err(Error::Forked));
        }
        let mut progress = self.state.progress();
        match mem::replace(&mut *progress, Progress::Cancelled) {
            Progress::Over(result) => Poll::Ready(result),
            Progress::Cancelled => panic!("a fetch is polled after its end"),
            Progress::Started | Progress::Awaited(_) => {
                *progress = Progress::Awaited(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        // A thread that stayed in the parent may hold the lock.
        if !self.birth.is_of_ancestor() {
            *self.state.progress() = Progress::Cancelled;
        }
    }
}

/// A fetch in the queue.
struct Job {
    gate: Arc<Gate>,
    pages: Range<usize>,
    state: Arc<State>,
}

impl Job {
    fn run(self) {
        for index in self.pages {
            if self.state.is_cancelled() {
                return;
            }
            match self.gate.fetch(index) {
                Some(Ok(())) => {}
                Some(Err(error)) => return self.state.end(Err(error)),
                None => break,
            }
        }
        self.state.end(Ok(()));
    }
}

/// The threads that fetch, until they are dropped.
pub(crate) struct Fetchers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    stopped: bool,
}

impl Queue {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of a thread.
    fn run(&self) {
        while let Some(job) = self.next() {
            job.run();
        }
    }

    /// The next job; `None`: the end.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        while jobs.waiting.is_empty() && !jobs.stopped {
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        if jobs.stopped { None } else { jobs.waiting.pop_front() }
    }
}

impl Fetchers {
    pub(crate) fn start() -> io::Result<Fetchers> {
        let mut fetchers = Fetchers { queue: Arc::default(), threads: Vec::new() };
        for number in 0..THREADS {
            let queue = fetchers.queue.clone();
            let named = std::thread::Builder::new().name(format!("hw-fetch{number}"));
            fetchers.threads.push(named.spawn(move || queue.run())?);
        }
        Ok(fetchers)
    }

    /// Starts fetching pages behind a gate.
    pub(crate) fn fetch<'a>(&self, gate: Arc<Gate>, pages: Range<usize>) -> Fetch<'a> {
        let state: Arc<State> = Arc::default();
        self.queue.jobs().waiting.push_back(Job { gate, pages, state: state.clone() });
        self.queue.changed.notify_one();
        Fetch { state, birth: Birth::now(), borrowed: PhantomData }
    }
}

impl Drop for Fetchers {
    fn drop(&mut self) {
        self.queue.jobs().stopped = true;
        self.queue.changed.notify_all();
        // A waker may have dropped the last task that had the memory: then the current thread is
        // one of these threads.
        let this = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != this) {
            // Its panic has been reported.
            let _ = thread.join();
        }
    }
}
