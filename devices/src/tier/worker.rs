//! The thread that writes cold pages back, and when it works, rests and ends.
//!
//! ```text
//! wake -> rounds of batches until the fast level has room -> wait
//!            \- before each batch: is it paused, or to end?
//! ```
//! Locks: `state`, around the few words that the thread shares with its callers.
//!
//! The platform that owns the device starts the thread ([`crate::Device::thread`]). A forked child
//! has no such thread and only drops the worker.

use crate::tier::shared::Shared;
use crate::tier::writeback::{Batch, Round, Writeback};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The pause after a round that could write nothing back: the slow level is full or fails.
const REST: Duration = Duration::from_millis(100);

/// The callers' handle to the thread.
pub(super) struct Worker {
    control: Arc<Control>,
    /// The body of the thread, until it is started.
    body: Mutex<Option<Body>>,
    /// The process of the thread.
    owner: u32,
}

#[derive(Default)]
struct Control {
    /// Set while the thread is awake and needs no wake. Read without the lock.
    awake: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    /// Callers that paused the thread.
    pauses: u32,
    /// Whether a batch is being moved.
    moving: bool,
    ended: bool,
}

/// The thread's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Work,
    End,
}

/// The body of a thread.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

impl Worker {
    /// Prepares the thread.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(super) fn new(shared: &Arc<Shared>) -> io::Result<Worker> {
        let writeback = Writeback::new(shared.clone()).map_err(io::Error::from_raw_os_error)?;
        let control = Arc::new(Control::default());
        let (own, shared) = (control.clone(), shared.clone());
        let body: Body = Box::new(move || own.run(&shared, writeback));
        Ok(Worker { control, body: Mutex::new(Some(body)), owner: std::process::id() })
    }

    /// The body of the thread, at the first call.
    pub(super) fn take_body(&self) -> Option<Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Wakes the thread because the fast level is filling up.
    pub(super) fn wake(&self) {
        if !self.control.awake.swap(true, Relaxed) {
            self.control.lock().wanted = true;
            self.control.changed.notify_all();
        }
    }

    /// Pauses the thread: when this returns, no page moves until [`Worker::resume`] was called as
    /// often.
    pub(super) fn pause(&self) {
        let mut state = self.control.lock();
        state.pauses += 1;
        while state.moving {
            state = self.control.wait(state);
        }
    }

    /// Undoes one [`Worker::pause`].
    pub(super) fn resume(&self) {
        self.control.lock().pauses -= 1;
        self.control.changed.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // In a forked child a thread of the parent may hold the lock, which is never released.
        if self.owner == std::process::id() {
            self.control.lock().ended = true;
            self.control.changed.notify_all();
        }
    }
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, shared: &Shared, mut writeback: Writeback) {
        while self.wait_until_wanted() == Next::Work {
            let Some(plan) = shared.plan() else { continue };
            let mut round = Round::Stuck;
            let (mut slot, mut left, end) = (0, plan.pages, shared.table.ever_fast().end);
            while left > 0 && slot < end && self.begin() == Next::Work {
                let batch = writeback.batch(slot, plan.age, left);
                self.finish();
                let Batch::Moved(pages, next) = batch else {
                    round = Round::Stuck;
                    break;
                };
                round = if pages > 0 { Round::Moved } else { round };
                (slot, left) = (next, left - pages);
            }
            writeback.rest();
            match round {
                Round::Moved => {}
                Round::Stuck => self.rest(),
            }
        }
    }

    fn wait_until_wanted(&self) -> Next {
        let mut state = self.lock();
        while !state.ended && !state.wanted {
            self.awake.store(false, Relaxed);
            state = self.wait(state);
        }
        state.wanted = false;
        self.next(&state)
    }

    fn next(&self, state: &State) -> Next {
        if state.ended { Next::End } else { Next::Work }
    }

    /// Begins a batch as soon as no caller pauses the thread.
    fn begin(&self) -> Next {
        let mut state = self.lock();
        while !state.ended && state.pauses > 0 {
            state = self.wait(state);
        }
        state.moving = !state.ended;
        self.next(&state)
    }

    fn finish(&self) {
        self.lock().moving = false;
        self.changed.notify_all();
    }

    /// Waits for [`REST`], or until the thread is to end.
    fn rest(&self) {
        let state = self.lock();
        let rested = self.changed.wait_timeout_while(state, REST, |state| !state.ended);
        drop(rested);
    }
}
