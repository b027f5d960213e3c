//! What a platform gives to the suite: itself, and the program that runs on it.

use highwater_platform::Platform;
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
