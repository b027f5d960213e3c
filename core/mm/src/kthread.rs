//! Threads of a manager that run until it ends (kthread_run, kthread_stop).
//!
//! ```text
//! Kthreads -- run: one more thread; its body is told of the word that ends it
//!          \- dropped: the word is set, whoever sleeps is woken, all are joined
//! ```
//! Those of one kind are started together, and if one cannot be, the others end again.
//! Locking: none; the word is set before the threads are woken, and read after they took a ticket.

use crate::machine::Machine;
use highwater_platform::{Atomic, Platform, Thread};
use highwater_units::NodeId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// Threads of one kind, as long as they are to run.
pub struct Kthreads<P: Platform> {
    machine: Arc<Machine<P>>,
    stopped: Arc<P::Atomic<u8>>,
    wake: fn(&Machine<P>),
    threads: Vec<P::Thread>,
}

impl<P: Platform> Kthreads<P> {
    /// None yet; `wake` ends whatever they sleep for.
    pub fn new(machine: &Arc<Machine<P>>, wake: fn(&Machine<P>)) -> Kthreads<P> {
        let stopped = Arc::new(Atomic::new(0));
        Kthreads { machine: machine.clone(), stopped, wake, threads: Vec::new() }
    }

    /// Starts one. Its body returns when the word it is given is not 0 any more.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn run(
        &mut self,
        name: &str,
        node: NodeId,
        body: impl FnOnce(&Machine<P>, &P::Atomic<u8>) + Send + 'static,
    ) -> io::Result<()> {
        let (machine, stopped) = (self.machine.clone(), self.stopped.clone());
        let body = Box::new(move || body(&machine, &stopped));
        self.threads.push(self.machine.platform.spawn(name, node, body)?);
        Ok(())
    }
}

impl<P: Platform> Drop for Kthreads<P> {
    fn drop(&mut self) {
        self.stopped.store(1, Release);
        (self.wake)(&self.machine);
        self.threads.drain(..).for_each(Thread::join);
    }
}
