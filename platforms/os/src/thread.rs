//! Threads of the manager: all signals blocked, so that the program's go to the program's threads.

use crate::Os;
use highwater_platform::{Thread, Threads};
use highwater_units::NodeId;
use std::io::Write;
use std::mem::MaybeUninit;
use std::{io, ptr, thread};

/// Stack of a manager thread: its deepest path, a fault with direct reclaim, uses under 32 KiB.
const STACK_BYTES: usize = 256 << 10;

/// A started thread.
pub struct OsThread(thread::JoinHandle<()>);

impl Thread for OsThread {
    fn join(self) {
        // A panic in a thread of the manager has aborted the process already.
        let _ = self.0.join();
    }
}

/// Dropped by a panic, where panics unwind. Nobody may go on then: locks would be let go with
/// their contents half changed.
struct EndOfProcess;

impl Drop for EndOfProcess {
    fn drop(&mut self) {
        // Not by a macro, whose output a test harness would keep to itself.
        let thread = thread::current();
        let name = thread.name().unwrap_or_default();
        let _ = writeln!(io::stderr(), "thread {name} of the manager panicked");
        std::process::abort();
    }
}

/// Starts a thread that receives no signals.
///
/// # Errors
/// The system has no thread to give.
pub fn spawn(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<OsThread> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills `all`; pthread_sigmask reads it and fills `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let body = move || {
        let ending = EndOfProcess;
        body();
        std::mem::forget(ending);
    };
    let started = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(body);
    // SAFETY: `before` was filled above; this thread gets its own mask back.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started.map(OsThread)
}

impl Threads for Os {
    type Thread = OsThread;

    fn spawn(&self, name: &str, _: NodeId, body: Box<dyn FnOnce() + Send>) -> io::Result<OsThread> {
        spawn(name, body)
    }
}
