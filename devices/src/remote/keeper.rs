//! The thread of a device on a server: deletes freed pages, tries again to reach a server that did
//! not answer, and tells the server that pages are in use.

use crate::remote::shared::Shared;
use crate::remote::store::Store;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two rounds.
const PERIOD: Duration = Duration::from_secs(1);

/// The body of a thread.
pub(super) type Body = Box<dyn FnOnce() + Send>;

/// The device's handle to the thread.
pub(super) struct Keeper {
    control: Arc<Control>,
    body: Mutex<Option<Body>>,
}

#[derive(Default)]
struct Control {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Keeper {
    pub(super) fn new<S: Store>(shared: &Arc<Shared<S>>) -> Keeper {
        let control = Arc::new(Control::default());
        let (own, shared) = (control.clone(), shared.clone());
        let body: Body = Box::new(move || own.run(&shared));
        Keeper { control, body: Mutex::new(Some(body)) }
    }

    /// The body of the thread, at the first call.
    pub(super) fn take_body(&self) -> Option<Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Wakes the thread: there is something to delete. Takes no lock, because it is called under
    /// locks; a wake that comes too early is made up for within a period.
    pub(super) fn wake(&self) {
        self.control.changed.notify_one();
    }

    pub(super) fn end(&self) {
        *self.control.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.control.changed.notify_all();
    }
}

impl Control {
    fn run<S: Store>(&self, shared: &Shared<S>) {
        let mut refreshed = Instant::now();
        while !self.rest() {
            shared.look_again();
            shared.delete_freed();
            if refreshed.elapsed() >= S::REFRESH {
                shared.refresh();
                refreshed = Instant::now();
            }
        }
    }

    /// Waits for a period, or until it is woken; returns whether it is to end.
    fn rest(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return true;
        }
        let rested = self.changed.wait_timeout(ended, PERIOD);
        *rested.unwrap_or_else(PoisonError::into_inner).0
    }
}
