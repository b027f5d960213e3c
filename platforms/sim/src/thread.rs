//! Virtual threads.

use crate::Sim;
use crate::event::SimEvent;
use highwater_platform::{Event, Thread, Threads};
use highwater_units::NodeId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A handle to a virtual thread.
pub struct SimThread(Arc<Ending>);

/// Whether a thread has ended, and an event for joiners.
struct Ending {
    ended: AtomicBool,
    event: SimEvent,
}

impl Thread for SimThread {
    fn join(self) {
        loop {
            let ticket = self.0.event.ticket();
            if self.0.ended.load(Relaxed) {
                return;
            }
            self.0.event.wait(ticket, None);
        }
    }
}

impl Sim {
    /// Starts a thread on the CPUs of a node, or on any CPU.
    pub(crate) fn start(
        &self,
        name: &str,
        node: Option<NodeId>,
        body: Box<dyn FnOnce() + Send>,
    ) -> SimThread {
        let ending =
            Arc::new(Ending { ended: AtomicBool::new(false), event: SimEvent::new(self.home()) });
        let done = ending.clone();
        let whole = move || {
            body();
            done.ended.store(true, Relaxed);
            done.event.notify_all();
        };
        self.engine().spawn(name, node, Box::new(whole));
        SimThread(ending)
    }
}

impl Threads for Sim {
    type Thread = SimThread;

    fn spawn(
        &self,
        name: &str,
        node: NodeId,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<SimThread> {
        Ok(self.start(name, Some(node), body))
    }
}
