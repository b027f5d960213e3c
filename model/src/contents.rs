//! Memory that words or locks protect.

use loom::cell::UnsafeCell;

/// Memory without contents. Loom reports two accesses, one of them a write, that no ordering
/// separates.
#[derive(Debug)]
pub struct Contents(UnsafeCell<()>);

impl Contents {
    /// Memory that no other thread has.
    #[expect(clippy::new_without_default, reason = "it can only be made inside a model")]
    pub fn new() -> Contents {
        Contents(UnsafeCell::new(()))
    }

    /// Reads it.
    pub fn read(&self) {
        self.0.with(|_| ());
    }

    /// Writes it.
    pub fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
