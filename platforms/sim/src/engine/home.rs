//! What belongs to an engine, and is reached from its tasks only.
//!
//! The contract wants everything to be `Send` and `Sync`; an engine and all that it moves live on
//! one thread of the host. `Home` is how they meet: each use checks that a task of that engine is
//! what calls, hence that thread. Elsewhere it panics.

use super::Engine;
use std::cell::RefCell;
use std::sync::Arc;

/// The engine something belongs to.
#[derive(Clone)]
pub(crate) struct Home(Arc<Engine>);

// SAFETY: the engine is reached through `engine` alone, which lets only its own tasks through; they
// run on the thread that runs the engine. The count of the Arc is atomic.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    pub(crate) fn new(engine: &Arc<Engine>) -> Home {
        Home(engine.clone())
    }

    /// The engine, for a task of it.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        assert!(self.0.is_current(), "what is simulated is used inside its simulation only");
        &self.0
    }
}

/// State of an engine's world, for its tasks only. Nobody suspends while it is borrowed.
pub(crate) struct Confined<T> {
    home: Home,
    value: RefCell<T>,
}

// SAFETY: `value` is borrowed only behind `Home::engine`, so on one thread.
unsafe impl<T: Send> Sync for Confined<T> {}

impl<T> Confined<T> {
    pub(crate) fn new(home: &Home, value: T) -> Confined<T> {
        Confined { home: home.clone(), value: RefCell::new(value) }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.home.engine()
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.home.engine();
        act(&mut self.value.borrow_mut())
    }
}
