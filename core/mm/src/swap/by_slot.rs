//! A word for each slot of a device, made for a whole cluster at first use.
//!
//! ```text
//! BySlot -- group of 64 clusters -- cluster of 512 words
//! ```
//! Most clusters of a large device are never used: 64 of them cost three words.
//!
//! Locking: none; the first of several threads makes the words of a cluster.

use super::cluster::{CLUSTER_SLOTS, split};
use std::sync::OnceLock;

/// Clusters of a group.
pub(super) const GROUP: usize = 64;

type Cluster<W> = OnceLock<Box<[W]>>;

/// The words, by slot.
pub(super) struct BySlot<W>(Vec<OnceLock<Box<[Cluster<W>]>>>);

impl<W> BySlot<W> {
    /// No words, for `slots` slots.
    pub(super) fn new(slots: u32) -> BySlot<W> {
        let groups = slots.div_ceil(CLUSTER_SLOTS).div_ceil(GROUP as u32);
        BySlot((0..groups).map(|_| OnceLock::new()).collect())
    }

    /// The word of a slot; `None` if its cluster has none, or there is no such slot.
    pub(super) fn get(&self, slot: u32) -> Option<&W> {
        let (cluster, at) = split(slot);
        Some(&self.0.get(cluster / GROUP)?.get()?[cluster % GROUP].get()?[at])
    }

    /// The word of a slot. If its cluster has no words yet, `first` makes them.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(super) fn get_or_make(&self, slot: u32, first: impl Fn() -> W) -> &W {
        let (cluster, at) = split(slot);
        let clusters = || (0..GROUP).map(|_| OnceLock::new()).collect();
        let words = || (0..CLUSTER_SLOTS).map(|_| first()).collect();
        let group = self.0[cluster / GROUP].get_or_init(clusters);
        &group[cluster % GROUP].get_or_init(words)[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn words_are_made_once_for_a_cluster_alone() {
        let clusters = 3 * GROUP as u32;
        let words = BySlot::new(clusters * CLUSTER_SLOTS - 1);
        let made = [0, 63, 64, clusters - 1];
        for cluster in made {
            let slot = cluster * CLUSTER_SLOTS + 7;
            assert!(words.get(slot).is_none());
            words.get_or_make(slot, || Cell::new(1)).set(cluster + 2);
            assert_eq!(words.get_or_make(slot, || Cell::new(0)).get(), cluster + 2);
            let found = [6, 7, 8].map(|at| words.get(slot - 7 + at).map(Cell::get));
            assert_eq!(found, [Some(1), Some(cluster + 2), Some(1)]);
        }
        let has = |cluster: &u32| words.get(cluster * CLUSTER_SLOTS).is_some();
        assert_eq!((0..=clusters).filter(has).collect::<Vec<_>>(), made);
    }
}
