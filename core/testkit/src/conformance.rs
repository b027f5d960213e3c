//! The conformance suite for platforms: tests each guarantee that the manager relies on.
//!
//! ```text
//! check -- locks    mutual exclusion, events without lost wake-ups
//!       |- words    atomic words, within and between threads
//!       |- profile  phases, lock statistics
//!       |- time     clocks, CPUs, threads
//!       |- frames   ranges, contents
//!       |- pages    map, unmap, and concurrent changes by the program
//!       \- slots    reads return what was written
//! ```
//! The suite blocks only through the platform's own primitives, so that it also runs in virtual
//! time. The caller sets a [`Watchdog`](crate::Watchdog), because a lost wake-up hangs the test.

mod frames;
mod locks;
mod pages;
mod profile;
mod slots;
mod time;
mod words;
mod world;

pub use world::{Mapped, World};

/// Runs the whole suite. `make` creates a new world for each part.
pub fn check<W: World>(make: impl Fn() -> W) {
    locks::check(&make().platform());
    words::check(&make().platform());
    profile::check(&make().platform());
    time::check(&make().platform());
    frames::check(&*make().platform());
    pages::check(&make());
    slots::check(&*make().platform());
}
