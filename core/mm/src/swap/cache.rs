//! The swap cache: the frames of slots that are being written.
//!
//! A table of 512 words for each cluster, made at first use. A word changes under the cluster's
//! lock, with the record of its slot ([`super::cluster`]); it is read without a lock, so a fault
//! that finds nothing, as most do, takes none (Linux 6.18).

use super::by_slot::BySlot;
use highwater_platform::{Atomic, Platform};
use highwater_units::Pfn;
use std::sync::atomic::Ordering::{Acquire, Release};

/// What the end of a write found in the swap cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// The frame, which is out of the cache now and belongs to the caller.
    Removed,
    /// Nothing: a fault took the frame first.
    Claimed,
}

/// The swap cache of a device. A slot's word is 0, or its frame's number plus 1.
pub(super) struct Table<P: Platform>(BySlot<P::Atomic<u32>>);

impl<P: Platform> Table<P> {
    /// An empty cache for `slots` slots.
    pub(super) fn new(slots: u32) -> Table<P> {
        Table(BySlot::new(slots))
    }

    /// The frame of a slot. Without the cluster's lock it may change at any time.
    pub(super) fn get(&self, slot: u32) -> Option<Pfn> {
        self.0.get(slot)?.load(Acquire).checked_sub(1).map(Pfn)
    }

    /// Adds the frames of slots that were just taken, adjacent and of one cluster.
    pub(super) fn fill(&self, first: u32, frames: &[Pfn]) {
        (first..).zip(frames).for_each(|(slot, pfn)| self.set(slot, Some(*pfn)));
    }

    /// Removes a slot's frame.
    pub(super) fn clear(&self, slot: u32) {
        self.set(slot, None);
    }

    pub(super) fn set(&self, slot: u32, pfn: Option<Pfn>) {
        let word = self.0.get_or_make(slot, || Atomic::new(0));
        word.store(pfn.map_or(0, |pfn| pfn.0 + 1), Release);
    }
}
