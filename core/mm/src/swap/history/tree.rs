//! The swap cache as trees, each with a lock: one for a device (to Linux 4.10), one for 64 MiB
//! (Linux 4.11), or one for each leaf of 64 slots below inner nodes that never change.
//!
//! The thread that takes a frame out of a tree owns it: a fault, or the end of the write. The
//! record of the slot follows under the cluster's lock. A table beside the trees serves look-ups
//! without a lock, as RCU does in the kernel.

use super::super::cache::{Cached, Table};
use crate::config::history::{CacheSplit, SwapHistory};
use crate::lock_class;
use highwater_platform::{Guard, Lock, Platform};
use highwater_units::Pfn;
use std::collections::BTreeMap;

/// log2 of the slots in a trunk: 64 MiB.
pub(super) const TRUNK_SHIFT: u32 = 14;

/// log2 of the slots in a leaf: those of a node of the kernel's tree.
const LEAF_SHIFT: u32 = 6;

/// Frames by slot.
type Tree = BTreeMap<u32, Node>;

struct Node {
    pfn: Pfn,
    /// The writeback tag.
    is_written: bool,
}

/// Trees of equal parts of a device.
pub(in crate::swap) struct Trees<P: Platform> {
    trees: Vec<P::Lock<Tree>>,
    /// The frames that look-ups without a lock find.
    seen: Table<P>,
    /// log2 of the slots in a tree.
    shift: u32,
    /// A run of pages takes a tree's lock once, not once for each page.
    batch: bool,
}

impl<P: Platform> Trees<P> {
    /// Empty trees for `slots` slots; `None` where the cache is a table.
    pub(super) fn new(platform: &P, slots: u32, settings: &SwapHistory) -> Option<Trees<P>> {
        let shift = match settings.cache {
            CacheSplit::Cluster => return None,
            CacheSplit::Trunk => TRUNK_SHIFT,
            CacheSplit::Leaf => LEAF_SHIFT,
            CacheSplit::Whole => 32,
        };
        let count = u64::from(slots).div_ceil(1 << shift).max(1);
        let tree = |_| platform.new_lock(lock_class::SWAP_CACHE, Tree::new());
        let trees = (0..count).map(tree).collect();
        Some(Trees { trees, seen: Table::new(slots), shift, batch: settings.cache_batch })
    }

    /// The frame of a slot, without a lock.
    pub(super) fn get(&self, slot: u32) -> Option<Pfn> {
        self.seen.get(slot)
    }

    /// Calls `act` for each slot, under its tree's lock.
    fn each(&self, first: u32, slots: usize, mut act: impl FnMut(&mut Tree, u32)) {
        let (mut at, end) = (first, first + slots as u32);
        while at < end {
            let tree = u64::from(at) >> self.shift;
            let limit = ((tree + 1) << self.shift).min(u64::from(end)) as u32;
            let stop = if self.batch { limit } else { at + 1 };
            let mut locked = self.trees[tree as usize].lock();
            locked.visits((stop - at) as usize);
            (at..stop).for_each(|slot| act(&mut locked, slot));
            at = stop;
        }
    }

    /// Adds frames that are going to be written.
    pub(super) fn insert(&self, first: u32, frames: &[Pfn]) {
        self.each(first, frames.len(), |tree, slot| {
            let pfn = frames[(slot - first) as usize];
            add_node(tree, slot, pfn);
            self.seen.set(slot, Some(pfn));
        });
    }

    /// Adds frames that are being read: look-ups do not find them.
    pub(super) fn insert_unseen(&self, first: u32, frames: &[Pfn]) {
        self.each(first, frames.len(), |tree, slot| {
            add_node(tree, slot, frames[(slot - first) as usize]);
        });
    }

    /// Removes frames that were read.
    pub(super) fn remove_unseen(&self, first: u32, slots: usize) {
        self.each(first, slots, |tree, slot| {
            let node = tree.remove(&slot);
            debug_assert!(node.is_some(), "slot {slot} left the swap cache while it was read");
        });
    }

    /// Removes the frame of a slot, if it has one.
    pub(super) fn remove(&self, slot: u32) -> Option<Pfn> {
        self.seen.get(slot)?;
        let mut removed = None;
        self.each(slot, 1, |tree, slot| removed = self.drop_node(tree, slot));
        removed.map(|node| node.pfn)
    }

    /// Removes those of `frames` that the trees still have.
    pub(super) fn remove_run(
        &self,
        first: u32,
        frames: &[Pfn],
        mut outcome: impl FnMut(usize, Cached),
    ) {
        self.each(first, frames.len(), |tree, slot| {
            let index = (slot - first) as usize;
            if tree.get(&slot).is_none_or(|node| node.pfn != frames[index]) {
                return outcome(index, Cached::Claimed);
            }
            let node = self.drop_node(tree, slot);
            let over = node.is_some_and(|node| !node.is_written);
            debug_assert!(over, "slot {slot} leaves the cache while it is written");
            outcome(index, Cached::Removed);
        });
    }

    fn drop_node(&self, tree: &mut Tree, slot: u32) -> Option<Node> {
        let node = tree.remove(&slot)?;
        self.seen.set(slot, None);
        Some(node)
    }

    /// Sets or clears the writeback tags of slots, one at a time: the kernel did so with the state
    /// of each page. A tag descends to the node of its slot, as an insertion does: one visit.
    pub(super) fn tag(&self, first: u32, slots: usize, is_written: bool) {
        for slot in (first..).take(slots) {
            let mut tree = self.trees[(u64::from(slot) >> self.shift) as usize].lock();
            tree.visits(1);
            if let Some(node) = tree.get_mut(&slot) {
                node.is_written = is_written;
            }
        }
    }

    /// Frames in all trees, those being read included.
    pub(super) fn len(&self) -> usize {
        self.trees.iter().map(|tree| tree.lock().len()).sum()
    }
}

fn add_node(tree: &mut Tree, slot: u32, pfn: Pfn) {
    let before = tree.insert(slot, Node { pfn, is_written: false });
    debug_assert!(before.is_none(), "slot {slot} was in the swap cache");
}
