//! Background threads of a manager (kthread_run, kthread_stop).
//!
//! ```text
//! Kthreads -- run:  starts a thread, whose body watches the word `stopped`
//!          \- drop: sets the word, wakes the threads, joins them
//! ```
//! Locking: none. The word is set before the threads are woken; they take a ticket before they read
//! it.

use crate::machine::Machine;
use highwater_platform::{Atomic, Platform, Thread};
use highwater_units::NodeId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// Threads of one kind; dropping it stops them.
pub struct Kthreads<P: Platform> {
    machine: Arc<Machine<P>>,
    stopped: Arc<P::Atomic<u8>>,
    wake: fn(&Machine<P>),
    threads: Vec<P::Thread>,
}

impl<P: Platform> Kthreads<P> {
    /// No threads yet; `wake` wakes them from any sleep.
    pub fn new(machine: &Arc<Machine<P>>, wake: fn(&Machine<P>)) -> Kthreads<P> {
        let stopped = Arc::new(Atomic::new(0));
        Kthreads { machine: machine.clone(), stopped, wake, threads: Vec::new() }
    }

    /// Starts a thread. Its body returns once the given word is not 0.
    ///
    /// # Errors
    /// The system refuses a thread.
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
