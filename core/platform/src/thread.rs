//! Background threads: those of the manager, and those that a front end adds.

use highwater_units::NodeId;

/// A started thread.
pub trait Thread: Send + Sync {
    /// Waits until the thread's body has returned. The caller then sees all that the body wrote.
    fn join(self);
}

/// Starts threads.
///
/// Obligations: a thread may begin before [`Threads::spawn`] returns, and may call every method of
/// the platform and of the manager. The platform never delivers signals that are meant for the
/// program to such a thread. The thread must not depend on memory that the manager pages: kswapd
/// would then wait for itself.
///
/// Cost: threads are started when a manager starts, and when the number of kswapd threads changes;
/// never in a fault.
///
/// Used by `core/mm/src/kthread.rs` (kcompactd, khugepaged, flusher, readahead) and
/// `core/mm/src/reclaim/kswapd_pool.rs` (kswapd).
pub trait Threads {
    /// A handle to a started thread.
    type Thread: Thread + 'static;

    /// Starts a thread that runs `body`, preferably on the CPUs of `node`; a platform may leave the
    /// choice to the system's scheduler. `name` has at most 15 bytes.
    ///
    /// # Errors
    /// The system's reason for refusing a thread. `body` is then dropped without having run.
    fn spawn(
        &self,
        name: &str,
        node: NodeId,
        body: Box<dyn FnOnce() + Send>,
    ) -> Result<Self::Thread, std::io::Error>;
}
