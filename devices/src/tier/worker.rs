//! The thread that writes pages back: when it works, rests and ends.
//!
//! ```text
//! wake -> rounds of batches until the fast level has room -> wait
//!            \- before each batch: paused? to end?
//! ```
//! Locks: `state`, around the few words that it and its callers share.
//!
//! In a forked child the thread does not exist; the child drops what it has of it, no more.

use super::Shared;
use super::writeback::{Batch, Round, Writeback};
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Its deepest path is a device's batch.
const STACK_BYTES: usize = 256 << 10;

/// How long it rests where nothing can be written back: the slow level is full, or fails. What
/// changes that comes from elsewhere.
const REST: Duration = Duration::from_millis(100);

/// The thread, and the way to it.
pub(super) struct Worker {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
    /// The process that has it.
    owner: u32,
}

#[derive(Default)]
struct Control {
    /// Whether to wake it is needless: a look that takes no lock.
    awake: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    /// Callers that want nothing to move.
    pauses: u32,
    /// Whether a batch is under way.
    moving: bool,
    ended: bool,
}

/// Whether there is more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Work,
    End,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread or memory to give.
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Worker> {
        let writeback = Writeback::new(shared.clone()).map_err(io::Error::from_raw_os_error)?;
        let control = Arc::new(Control::default());
        let (own, body) = (control.clone(), shared.clone());
        let thread = Builder::new().name("hw-writeback".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || own.run(&body, writeback))?;
        Ok(Worker { control, thread: Some(thread), owner: std::process::id() })
    }

    /// The fast level is filling up.
    pub(super) fn wake(&self) {
        if !self.control.awake.swap(true, Relaxed) {
            self.control.lock().wanted = true;
            self.control.changed.notify_all();
        }
    }

    /// Lets nothing move from when this returns until as many calls of [`Worker::resume`].
    pub(super) fn pause(&self) {
        let mut state = self.control.lock();
        state.pauses += 1;
        while state.moving {
            state = self.control.wait(state);
        }
    }

    /// Takes one [`Worker::pause`] back.
    pub(super) fn resume(&self) {
        self.control.lock().pauses -= 1;
        self.control.changed.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // Neither the thread nor who held the lock at the fork is in this process.
            mem::forget(self.thread.take());
            return;
        }
        self.control.lock().ended = true;
        self.control.changed.notify_all();
        // A panic there has been told already.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
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
            let (mut slot, mut left) = (0, plan.pages);
            while left > 0 && slot < shared.table.slots() && self.begin() == Next::Work {
                let batch = writeback.batch(slot, plan.age, left);
                self.finish();
                let Batch::Moved(pages, next) = batch else {
                    round = Round::Stuck;
                    break;
                };
                round = if pages > 0 { Round::Moved } else { round };
                (slot, left) = (next, left - pages);
            }
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

    /// Begins a batch, as soon as nobody wants a pause.
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

    /// Waits for a while, or the end.
    fn rest(&self) {
        let state = self.lock();
        let rested = self.changed.wait_timeout_while(state, REST, |state| !state.ended);
        drop(rested);
    }
}
