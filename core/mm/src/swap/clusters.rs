//! The clusters of a device, each under its lock, made by groups at first use.
//!
//! ```text
//! Clusters -- group of 64 clusters -- cluster, under its lock
//! ```
//! Most clusters of a large device are never used: the clusters of 32 GiB would take 800 KiB of
//! every process.
//!
//! Locking: none; the first of several threads makes a group.

use super::by_slot::GROUP;
use super::cluster::ClusterMap;
use highwater_platform::Lock;
use std::ops::Index;
use std::sync::OnceLock;

/// The clusters of a device, by number.
pub(super) struct Clusters<L> {
    groups: Vec<OnceLock<Box<[L]>>>,
    /// The pattern of the clusters' locks; no thread takes it.
    pattern: L,
    count: u32,
}

impl<L: Lock<ClusterMap>> Clusters<L> {
    /// `count` unused clusters, under locks like `pattern`.
    pub(super) fn new(count: usize, pattern: L) -> Clusters<L> {
        let groups = (0..count.div_ceil(GROUP)).map(|_| OnceLock::new()).collect();
        Clusters { groups, pattern, count: count as u32 }
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// All clusters. Makes them all: a CPU may be about to take slots of one that is not made.
    pub(super) fn iter(&self) -> impl Iterator<Item = &L> {
        (0..self.count).map(|cluster| &self[cluster])
    }
}

impl<L: Lock<ClusterMap>> Index<u32> for Clusters<L> {
    type Output = L;

    fn index(&self, cluster: u32) -> &L {
        let (group, at) = (cluster as usize / GROUP, cluster as usize % GROUP);
        let len = GROUP.min(self.count as usize - group * GROUP);
        let make = || (0..len).map(|_| self.pattern.alike(ClusterMap::default())).collect();
        &self.groups[group].get_or_init(make)[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_class;
    use highwater_platform::Locks;
    use highwater_platform::testing::TestPlatform;

    #[test]
    fn clusters_are_made_once_in_groups_and_the_last_group_is_short() {
        let platform = TestPlatform::new(1, Vec::new());
        let pattern = platform.new_lock(lock_class::SWAP_CLUSTER, ClusterMap::default());
        let clusters = Clusters::new(2 * GROUP + 3, pattern);
        let len = |group: &OnceLock<Box<[_]>>| group.get().map(|made| made.len());
        let made = || clusters.groups.iter().map(len).collect::<Vec<_>>();
        assert_eq!(made(), vec![None; 3]);
        clusters[2 * GROUP as u32 + 2].lock().take(0, 512, 16).expect("free slots");
        assert_eq!(made(), vec![None, None, Some(3)]);
        assert_eq!(clusters.iter().map(|map| map.lock().used()).sum::<u16>(), 16);
        assert_eq!(made(), vec![Some(GROUP), Some(GROUP), Some(3)]);
    }
}
