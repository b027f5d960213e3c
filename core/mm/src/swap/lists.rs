//! Which clusters of a device have free slots.
//!
//! ```text
//!                  Free    <--- used falls to 0
//!   take(CPU)  /   Sparse  <--- used falls to half
//!   Owned <---+       give back: by how full it is
//!              \   Nonfull <--- a slot of a full one is freed
//!                  Full
//! ```
//! An `Owned` cluster is on no list: a CPU allocates from it. Where slots are scanned for
//! ([`crate::config::ScanBase`]) there are only free clusters and others, in `Full`.

use highwater_units::IndexLists;

/// A list of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Free = 0,
    Sparse = 1,
    Nonfull = 2,
    Full = 3,
}

/// Where a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Listed(List),
    Owned,
}

/// Which list every cluster is on.
pub(super) struct ClusterLists {
    lists: IndexLists,
    home: Vec<Home>,
}

impl ClusterLists {
    /// All of `count` clusters on one list: each followed by the one `apart` clusters on.
    pub(super) fn new(count: usize, all: List, apart: usize) -> ClusterLists {
        let mut lists = IndexLists::new(4, count);
        let order = (0..apart).flat_map(|column| (column..count).step_by(apart));
        order.for_each(|cluster| lists.push_back(all as usize, cluster as u32));
        ClusterLists { lists, home: vec![Home::Listed(all); count] }
    }

    /// Where a cluster is.
    pub(super) fn home(&self, cluster: u32) -> Home {
        self.home[cluster as usize]
    }

    /// The first cluster of a list, for a CPU.
    pub(super) fn take(&mut self, list: List) -> Option<u32> {
        let cluster = self.lists.pop_front(list as usize)?;
        self.home[cluster as usize] = Home::Owned;
        Some(cluster)
    }

    /// The cluster of a list that comes next from a place on, around the device.
    pub(super) fn take_from(&mut self, list: List, from: u32) -> Option<u32> {
        if self.lists.is_empty(list as usize) {
            return None;
        }
        let count = self.home.len() as u32;
        let listed = |cluster: &u32| self.home[*cluster as usize] == Home::Listed(list);
        let next = (from..count).chain(0..from.min(count)).find(listed)?;
        self.lists.remove(list as usize, next);
        self.home[next as usize] = Home::Owned;
        Some(next)
    }

    /// Moves a cluster to a list.
    pub(super) fn put(&mut self, cluster: u32, list: List) {
        if let Home::Listed(old) = self.home[cluster as usize] {
            self.lists.remove(old as usize, cluster);
        }
        self.home[cluster as usize] = Home::Listed(list);
        match list {
            // A free cluster is used again before one that never was: what lies behind the device
            // (memory, a sparse file) stays as small as it can.
            List::Free => self.lists.push_front(list as usize, cluster),
            _ => self.lists.push_back(list as usize, cluster),
        }
    }
}
