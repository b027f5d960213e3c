//! One suite that every platform passes: what the manager counts on, tried one by one.
//!
//! ```text
//! check -- locks    mutual exclusion, events without lost wake-ups
//!       |- words    shared words, alone and between threads
//!       |- profile  phases, what lock statistics show
//!       |- time     clocks, CPUs, threads
//!       |- frames   ranges, contents
//!       |- pages    map, unmap, what a program changed meanwhile
//!       \- slots    what was written is read
//! ```
//! Blocks by the platform's own means only, so that it runs in virtual time too. The caller sets a
//! [`Watchdog`](crate::Watchdog): a lost wake-up shows as a test that does not end.

mod frames;
mod locks;
mod pages;
mod profile;
mod slots;
mod time;
mod words;
mod world;

pub use world::{Mapped, World};

/// Checks everything. `make` makes a new world for each part.
pub fn check<W: World>(make: impl Fn() -> W) {
    locks::check(&make().platform());
    words::check(&make().platform());
    profile::check(&make().platform());
    time::check(&make().platform());
    frames::check(&*make().platform());
    pages::check(&make());
    slots::check(&*make().platform());
}
