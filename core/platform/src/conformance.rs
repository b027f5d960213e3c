//! One suite that every platform passes.

/// placeholder
pub fn check() {}
