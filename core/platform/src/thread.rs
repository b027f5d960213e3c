//! Threads of the manager: kswapd, and whatever a front end adds.

use highwater_units::NodeId;

/// A thread that was started.
pub trait Thread: Send + Sync {
    /// Waits until its body has returned.
    fn join(self);
}

/// Where threads come from.
pub trait Threads {
    /// A handle on a started thread.
    type Thread: Thread + 'static;

    /// Starts `body` on the CPUs of `node`. The name is at most 15 bytes. Signals meant for the
    /// program are never delivered to it.
    ///
    /// # Errors
    /// The system's reason, when it has no thread to give.
    fn spawn(
        &self,
        name: &str,
        node: NodeId,
        body: Box<dyn FnOnce() + Send>,
    ) -> Result<Self::Thread, std::io::Error>;
}
