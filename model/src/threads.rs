//! The threads of a model, and processes that are killed.

use loom::sync::atomic::AtomicBool;
use loom::thread::JoinHandle;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

loom::thread_local! {
    static CPU: Cell<u16> = Cell::new(0);
    static KILLED: RefCell<Option<Arc<AtomicBool>>> = RefCell::new(None);
}

/// Runs a test in all interleavings with at most this many preemptions: switches to another thread
/// that no wait makes necessary. Most errors need one or two. `HIGHWATER_MODEL_PREEMPTIONS` has
/// another number, or `all`.
pub fn check(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = match std::env::var("HIGHWATER_MODEL_PREEMPTIONS").as_deref() {
        Ok("all") => None,
        Ok(more) => Some(more.parse().expect("a number, or all")),
        Err(_) => Some(preemptions),
    };
    builder.check(test);
}

/// Starts a thread on a CPU below 4.
pub fn spawn<T: 'static>(cpu: u16, body: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    loom::thread::spawn(move || {
        CPU.with(|own| own.set(cpu));
        body()
    })
}

pub(crate) fn cpu() -> u16 {
    CPU.with(Cell::get)
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended<T> {
    /// With a result.
    Whole(T),
    /// It was killed before an access to a word: all, some or none of its steps were done.
    Killed,
}

/// A process that may be killed.
pub struct Victim<T>(JoinHandle<Ended<T>>);

struct Killed;

/// Starts a process that is killed before any of its accesses to words, or not at all.
pub fn may_die<T: 'static>(cpu: u16, body: impl FnOnce() -> T + 'static) -> Victim<T> {
    let killed = Arc::new(AtomicBool::new(false));
    let own = killed.clone();
    let thread = spawn(cpu, move || {
        KILLED.with(|killed| killed.replace(Some(own)));
        let ended = catch_unwind(AssertUnwindSafe(body));
        KILLED.with(|killed| killed.replace(None));
        match ended {
            Ok(result) => Ended::Whole(result),
            Err(payload) if payload.is::<Killed>() => Ended::Killed,
            Err(payload) => resume_unwind(payload),
        }
    });
    // Each load of the thread may see this store, or not yet.
    killed.store(true, Relaxed);
    Victim(thread)
}

impl<T> Victim<T> {
    /// Waits for its end.
    pub fn join(self) -> Ended<T> {
        self.0.join().expect("it ends by itself, or is killed")
    }
}

/// Ends this thread if its process was killed.
pub(crate) fn die_if_killed() {
    let killed = KILLED.with(|killed| killed.borrow().clone());
    if killed.is_some_and(|killed| killed.load(Relaxed)) {
        resume_unwind(Box::new(Killed));
    }
}
