//! The interface that a platform implements for the suite: the platform and a program on it.

use highwater_platform::Platform;
use highwater_units::{Pfn, SpaceId, Vpn};
use std::sync::Arc;

/// A mapped page.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// Its space.
    pub space: SpaceId,
    /// Its page number in the space.
    pub vpn: Vpn,
    /// The frame behind it.
    pub pfn: Pfn,
}

/// A platform with at least 64 frames and one device, and a program that runs on it.
pub trait World {
    /// The platform to check.
    type Platform: Platform;

    /// The platform.
    fn platform(&self) -> Arc<Self::Platform>;

    /// The program loads an 8-byte word from a mapped page.
    fn load(&self, page: Mapped, word: usize) -> u64;

    /// The program stores to a page that is mapped writable.
    fn store(&self, page: Mapped, word: usize, value: u64);

    /// The program drops a mapped page without notifying the manager. Returns `false` if this is
    /// impossible on the platform.
    fn drop_page(&self, page: Mapped) -> bool;
}
