//! The swap cache of a device: the table of today, or trees.

use super::super::cache::Table;
use super::tree::Trees;
use highwater_platform::Platform;
use highwater_units::Pfn;

/// Stands for a frame where a slot is taken for a CPU's slot cache: the swap cache gets none.
pub(super) const PARKED: Pfn = Pfn(u32::MAX);

/// The swap cache of a device.
pub(in crate::swap) enum SwapCache<P: Platform> {
    Table(Table<P>),
    Trees(Trees<P>),
}

impl<P: Platform> SwapCache<P> {
    /// An empty table for `slots` slots.
    pub(in crate::swap) fn new(slots: u32) -> SwapCache<P> {
        SwapCache::Table(Table::new(slots))
    }

    /// The frame of a slot, without a lock.
    pub(in crate::swap) fn get(&self, slot: u32) -> Option<Pfn> {
        match self {
            SwapCache::Table(table) => table.get(slot),
            SwapCache::Trees(trees) => trees.get(slot),
        }
    }

    /// Adds frames to a table, under the cluster's lock. Trees get them later, under their own.
    pub(in crate::swap) fn fill(&self, first: u32, frames: &[Pfn]) {
        match self {
            SwapCache::Table(table) if frames.first() != Some(&PARKED) => table.fill(first, frames),
            SwapCache::Table(_) | SwapCache::Trees(_) => {}
        }
    }

    /// Removes a slot's frame from a table, under the cluster's lock.
    pub(in crate::swap) fn clear(&self, slot: u32) {
        match self {
            SwapCache::Table(table) => table.clear(slot),
            SwapCache::Trees(_) => unreachable!("frames leave a tree under its own lock"),
        }
    }

    pub(super) fn trees(&self) -> Option<&Trees<P>> {
        match self {
            SwapCache::Table(_) => None,
            SwapCache::Trees(trees) => Some(trees),
        }
    }
}
