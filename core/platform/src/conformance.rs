//! One suite that every platform passes.

mod harness;

pub use harness::{Watchdog, seeds};
