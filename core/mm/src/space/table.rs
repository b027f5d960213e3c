//! Two levels: a fixed array of leaves of 4096 entries (16 MiB of space, 32 KiB of table), made at
//! first use. An untouched terabyte costs one pointer per 16 MiB.

use highwater_platform::{Atomic, Atomics, Platform};
use highwater_units::Vpn;
use std::sync::OnceLock;

/// Entries in a leaf.
const LEAF: u64 = 4096;

type Leaf<P> = Box<[<P as Atomics>::Atomic<u64>]>;

/// The entries of a space.
pub(super) struct Table<P: Platform> {
    leaves: Vec<OnceLock<Leaf<P>>>,
}

impl<P: Platform> Table<P> {
    pub(super) fn new(pages: u64) -> Table<P> {
        Table { leaves: (0..pages.div_ceil(LEAF)).map(|_| OnceLock::new()).collect() }
    }

    /// The entry of a page inside the space, making its leaf.
    pub(super) fn entry(&self, vpn: Vpn) -> &P::Atomic<u64> {
        let leaf = || (0..LEAF).map(|_| Atomic::new(0)).collect();
        &self.leaves[(vpn.0 / LEAF) as usize].get_or_init(leaf)[(vpn.0 % LEAF) as usize]
    }

    /// The first page at or after `vpn` that may have an entry: skips leaves never made.
    pub(super) fn next_made(&self, vpn: Vpn) -> Option<Vpn> {
        let first = (vpn.0 / LEAF) as usize;
        let leaf =
            first + self.leaves.get(first..)?.iter().position(|leaf| leaf.get().is_some())?;
        Some(Vpn((leaf as u64 * LEAF).max(vpn.0)))
    }
}
