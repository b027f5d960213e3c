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
//! [`Watchdog`]: a lost wake-up shows as a test that does not end.

mod frames;
mod harness;
mod locks;
mod pages;
mod profile;
mod slots;
mod time;
mod words;

pub use harness::{Watchdog, seeds};

use crate::Platform;
use highwater_units::{Pfn, SpaceId, Vpn};
use std::sync::Arc;

/// A mapped page.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// Its space.
    pub space: SpaceId,
    /// Which page of it.
    pub vpn: Vpn,
    /// The frame behind it.
    pub pfn: Pfn,
}

/// A platform of at least 64 frames and one device, with the program that runs on it.
pub trait World {
    /// The platform to check.
    type Platform: Platform;

    /// It.
    fn platform(&self) -> Arc<Self::Platform>;

    /// The program's load of an 8-byte word from a mapped page.
    fn load(&self, page: Mapped, word: usize) -> u64;

    /// The program's store to a page that is mapped and may be written.
    fn store(&self, page: Mapped, word: usize, value: u64);

    /// The program drops a mapped page by a call that the manager does not see. `false`: on this
    /// platform no program can.
    fn drop_page(&self, page: Mapped) -> bool;
}

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
