//! Tests for any platform. Products do not link this crate.
//!
//! ```text
//! conformance   the contract of `highwater-platform`, method by method
//! trial         the whole manager under random operations, checked against a model
//! seeds, Watchdog   seeds of random tests; a time limit for tests that hang
//! skip_or_fail      for tests that cannot run on this machine
//! ```
#![forbid(unsafe_code)]

pub mod conformance;
pub mod trial;

pub use highwater_platform::testing::{Watchdog, seeds, seeds_on_all_cpus, skip_or_fail};
