//! A value for each cluster of a device, made at first use.
//!
//! ```text
//! ByCluster -- group of 64 clusters -- value
//! ```
//! Most clusters of a large device are never used: 64 of them cost three words.
//!
//! Locking: none; the first of several threads makes a value.

use super::cluster::CLUSTER_SLOTS;
use std::sync::OnceLock;

/// Clusters of a group.
const GROUP: usize = 64;

type Group<T> = Box<[OnceLock<T>]>;

/// The values, by cluster.
pub(super) struct ByCluster<T>(Vec<OnceLock<Group<T>>>);

impl<T> ByCluster<T> {
    /// No values, for the clusters of `slots` slots.
    pub(super) fn new(slots: u32) -> ByCluster<T> {
        let groups = slots.div_ceil(CLUSTER_SLOTS).div_ceil(GROUP as u32);
        ByCluster((0..groups).map(|_| OnceLock::new()).collect())
    }

    /// The value of a cluster; `None` if it has none, or there is no such cluster.
    pub(super) fn get(&self, cluster: usize) -> Option<&T> {
        self.0.get(cluster / GROUP)?.get()?[cluster % GROUP].get()
    }

    /// The value of a cluster, which `make` makes if there is none.
    ///
    /// # Panics
    /// If there is no such cluster.
    pub(super) fn get_or_make(&self, cluster: usize, make: impl FnOnce() -> T) -> &T {
        let empty = || (0..GROUP).map(|_| OnceLock::new()).collect();
        self.0[cluster / GROUP].get_or_init(empty)[cluster % GROUP].get_or_init(make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_for_its_cluster_alone() {
        let clusters = 3 * GROUP;
        let values = ByCluster::new(clusters as u32 * CLUSTER_SLOTS - 1);
        for cluster in [0, 63, 64, clusters - 1] {
            assert_eq!(values.get(cluster), None);
            assert_eq!(*values.get_or_make(cluster, || cluster), cluster);
            assert_eq!(*values.get_or_make(cluster, || 0), cluster);
            assert_eq!(values.get(cluster), Some(&cluster));
        }
        let made = (0..=clusters).filter(|cluster| values.get(*cluster).is_some());
        assert_eq!(made.collect::<Vec<_>>(), [0, 63, 64, clusters - 1]);
    }
}
