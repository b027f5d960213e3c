//! The swap cache: frames of slots that are being written, or were just claimed back.
//!
//! ```text
//! Tables   a word for each slot, made by cluster: changed under the cluster's lock, read without
//! Trees    a locked tree for the device, or for each 64 MiB of it, or a lock for each leaf of 64
//!          slots; words beside, to be looked at
//! ```
//! Beside the frame, a slot's record says that it is cached ([`super::cluster`]): a slot is free
//! only when it is not. Locking: a tree's lock is taken alone, before or after the cluster's.

use super::Cached;
use super::cluster::CLUSTER_SLOTS;
use super::settings::{CacheSplit, SwapConfig, Switch};
use crate::lock_class;
use highwater_platform::{Atomic, Guard, Lock, Platform};
use highwater_units::Pfn;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};

/// log2 of the slots in a trunk: 64 MiB.
pub(super) const TRUNK_SHIFT: u32 = 14;

/// log2 of the slots in a leaf: what a node of the kernel's tree holds.
const LEAF_SHIFT: u32 = 6;

/// The swap cache of a device.
pub(super) enum SwapCache<P: Platform> {
    Tables(Tables<P>),
    Trees(Trees<P>),
}

impl<P: Platform> SwapCache<P> {
    /// An empty one, for `slots` slots.
    pub(super) fn new(platform: &P, slots: u32, config: &SwapConfig) -> SwapCache<P> {
        let shift = match config.cache {
            CacheSplit::Cluster => return SwapCache::Tables(Tables::new(slots)),
            CacheSplit::Trunk => TRUNK_SHIFT,
            CacheSplit::Leaf => LEAF_SHIFT,
            CacheSplit::Whole => 32,
        };
        let count = u64::from(slots).div_ceil(1 << shift).max(1);
        let tree = |_| platform.new_lock(lock_class::SWAP_CACHE, Tree::new());
        SwapCache::Trees(Trees {
            trees: (0..count).map(tree).collect(),
            seen: Tables::new(slots),
            shift,
            batch: config.cache_batch,
        })
    }
}

type Words<P> = Box<[<P as highwater_platform::Atomics>::Atomic<u32>]>;

/// A word for each slot: 0, or the frame and 1.
pub(super) struct Tables<P: Platform>(Vec<OnceLock<Words<P>>>);

impl<P: Platform> Tables<P> {
    fn new(slots: u32) -> Tables<P> {
        Tables((0..slots.div_ceil(CLUSTER_SLOTS)).map(|_| OnceLock::new()).collect())
    }

    /// The frame of a slot, without a lock: a claim has to look again under it.
    pub(super) fn get(&self, slot: u32) -> Option<Pfn> {
        let words = self.0[(slot / CLUSTER_SLOTS) as usize].get()?;
        words[(slot % CLUSTER_SLOTS) as usize].load(Acquire).checked_sub(1).map(Pfn)
    }

    /// Under the cluster's lock, or the tree's.
    pub(super) fn set(&self, slot: u32, pfn: Option<Pfn>) {
        let empty = || (0..CLUSTER_SLOTS).map(|_| Atomic::new(0)).collect();
        let words = self.0[(slot / CLUSTER_SLOTS) as usize].get_or_init(empty);
        let word = pfn.map_or(0, |pfn| pfn.0 + 1);
        words[(slot % CLUSTER_SLOTS) as usize].store(word, Release);
    }
}

/// Frames by slot.
type Tree = BTreeMap<u32, Node>;

struct Node {
    pfn: Pfn,
    /// The tag: the frame is being written.
    writeback: Switch,
}

/// Locked trees of equal stretches of a device.
pub(super) struct Trees<P: Platform> {
    trees: Vec<P::Lock<Tree>>,
    /// What they hold, for who looks without a lock (as the kernel does under RCU).
    seen: Tables<P>,
    shift: u32,
    batch: Switch,
}

impl<P: Platform> Trees<P> {
    /// Acts on a stretch of slots, a tree at a time, and under one lock or one for each slot.
    fn each(&self, first: u32, slots: usize, mut act: impl FnMut(&mut Tree, u32)) {
        let (mut at, end) = (first, first + slots as u32);
        while at < end {
            let tree = u64::from(at) >> self.shift;
            let limit = ((tree + 1) << self.shift).min(u64::from(end)) as u32;
            let stop = match self.batch {
                Switch::On => limit,
                Switch::Off => at + 1,
            };
            let mut locked = self.trees[tree as usize].lock();
            locked.visits((stop - at) as usize);
            (at..stop).for_each(|slot| act(&mut locked, slot));
            at = stop;
        }
    }

    pub(super) fn insert(&self, first: u32, frames: &[Pfn]) {
        self.each(first, frames.len(), |tree, slot| {
            let pfn = frames[(slot - first) as usize];
            add_node(tree, slot, pfn);
            self.seen.set(slot, Some(pfn));
        });
    }

    /// Puts frames in that nobody may have yet.
    pub(super) fn insert_unseen(&self, first: u32, frames: &[Pfn]) {
        self.each(first, frames.len(), |tree, slot| {
            add_node(tree, slot, frames[(slot - first) as usize]);
        });
    }

    /// Takes these out.
    pub(super) fn remove_unseen(&self, first: u32, slots: usize) {
        self.each(first, slots, |tree, slot| {
            let node = tree.remove(&slot);
            debug_assert!(node.is_some(), "slot {slot} left the swap cache while it was read");
        });
    }

    /// Takes a slot's frame out, whichever it is.
    pub(super) fn remove(&self, slot: u32) -> Option<Pfn> {
        self.seen.get(slot)?;
        let mut removed = None;
        self.each(slot, 1, |tree, slot| removed = self.drop_node(tree, slot));
        removed.map(|node| node.pfn)
    }

    /// Takes the given frames out, as far as they are still there.
    pub(super) fn remove_run(
        &self,
        first: u32,
        frames: &[Pfn],
        mut outcome: impl FnMut(usize, Cached),
    ) {
        self.each(first, frames.len(), |tree, slot| {
            let index = (slot - first) as usize;
            let there = tree.get(&slot).is_some_and(|node| node.pfn == frames[index]);
            match there {
                true => {
                    let node = self.drop_node(tree, slot);
                    let over = node.is_some_and(|node| node.writeback == Switch::Off);
                    debug_assert!(over, "slot {slot} leaves the cache while it is written");
                    outcome(index, Cached::Removed);
                }
                false => outcome(index, Cached::Claimed),
            }
        });
    }

    fn drop_node(&self, tree: &mut Tree, slot: u32) -> Option<Node> {
        let node = tree.remove(&slot)?;
        self.seen.set(slot, None);
        Some(node)
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.seen.get(slot).is_some()
    }

    /// Tags slots as being written, or as no longer.
    pub(super) fn tag(&self, first: u32, slots: usize, writeback: Switch) {
        // Page by page, as they were: the tags were set and cleared with each page's own state. No
        // page enters or leaves, so none is visited.
        for slot in (first..).take(slots) {
            let tree = &self.trees[(u64::from(slot) >> self.shift) as usize];
            if let Some(node) = tree.lock().get_mut(&slot) {
                node.writeback = writeback;
            }
        }
    }

    /// Frames in all of them, when nobody reads, for [`crate::verify`].
    pub(super) fn len(&self) -> usize {
        self.trees.iter().map(|tree| tree.lock().len()).sum()
    }
}

fn add_node(tree: &mut Tree, slot: u32, pfn: Pfn) {
    let before = tree.insert(slot, Node { pfn, writeback: Switch::Off });
    debug_assert!(before.is_none(), "slot {slot} was in the swap cache");
}
