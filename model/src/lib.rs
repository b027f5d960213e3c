//! Words, locks and threads of loom, for code of this repository that takes them from a type
//! parameter. Loom runs a test again and again, until it has tried each order of the threads'
//! steps, and each value that the memory orderings let a load return. Products do not link this
//! crate.
//!
//! ```text
//! check(preemptions, test)    runs a test in all interleavings
//! spawn, may_die              threads, on CPUs of their choice; processes that may be killed
//! Contents                    memory that the words protect: accesses must be ordered
//! Model: Platform             TestPlatform over Loom, for core/mm
//! Loom: Atomics, Locks        for other code                    word.rs lock.rs
//! ```
//! A test states an invariant and has two or three threads of a few steps each, because the number
//! of interleavings grows exponentially with both. Loom's threads are coroutines of one thread of
//! the system. So code in a model must not wait by other means than those above, and a word that
//! is made inside a `OnceLock` must be accessed before the threads begin ([`Word`]).
#![forbid(unsafe_code)]

mod contents;
mod lock;
mod threads;
mod word;

pub use contents::Contents;
pub use lock::{ModelEvent, ModelGuard, ModelLock};
pub use threads::{Ended, Victim, check, may_die, spawn};
pub use word::Word;

/// For locks that code takes from its type parameters.
pub use loom::sync::{Condvar, Mutex, MutexGuard};
pub use loom::thread::JoinHandle;

use highwater_platform::testing::{Sharing, TestPlatform};

/// A platform without memory or devices, for tests of core/mm.
pub type Model = TestPlatform<Loom>;

/// Words, locks, events and threads of loom.
#[derive(Default)]
pub struct Loom;

impl Sharing for Loom {
    fn cpu(&self) -> u16 {
        threads::cpu()
    }

    fn relax(&self) {
        loom::thread::yield_now();
    }
}
