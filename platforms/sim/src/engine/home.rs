//! State that belongs to an engine, accessible only from its tasks.
//!
//! The platform contract requires `Send` and `Sync`, but an engine and its state live on one host
//! thread. `Home` reconciles the two: each access checks that the caller is a task of that engine,
//! and therefore on its thread, and panics otherwise.

use super::Engine;
use std::cell::RefCell;
use std::sync::Arc;

/// A reference to the owning engine.
#[derive(Clone)]
pub(crate) struct Home(Arc<Engine>);

// SAFETY: `engine` is the only access to the engine, and admits only its own tasks, which run on
// the engine's thread. The reference count of the Arc is atomic.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    pub(crate) fn new(engine: &Arc<Engine>) -> Home {
        Home(engine.clone())
    }

    /// The engine. Panics unless the caller is one of its tasks.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        assert!(self.0.is_current(), "what is simulated is used inside its simulation only");
        &self.0
    }
}

/// A value that only tasks of one engine access. No task suspends while it borrows the value.
pub(crate) struct Confined<T> {
    home: Home,
    value: RefCell<T>,
}

// SAFETY: `value` is borrowed only after the check in `Home::engine`, hence on one thread.
unsafe impl<T: Send> Sync for Confined<T> {}

impl<T> Confined<T> {
    pub(crate) fn new(home: &Home, value: T) -> Confined<T> {
        Confined { home: home.clone(), value: RefCell::new(value) }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.home.engine()
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.home.engine();
        act(&mut self.value.borrow_mut())
    }
}
