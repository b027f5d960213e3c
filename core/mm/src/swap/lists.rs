//! Which clusters of a device have free slots.
//!
//! ```text
//!                  Free    <--- used falls to 0
//!   take(CPU)  /   Sparse  <--- used falls to half
//!   Owned <---+       put back: by the number of used slots
//!              \   Nonfull <--- a slot of a full cluster is freed
//!                  Full
//! ```
//! An `Owned` cluster is on no list: a CPU allocates from it. A device that is scanned
//! ([`super::position::Fallback`]) has only `Free` clusters and, as `Full`, all others.

use highwater_units::IndexLists;

/// A list of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Free = 0,
    /// At most half of the slots are used.
    Sparse = 1,
    Nonfull = 2,
    Full = 3,
}

/// The place of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Listed(List),
    Owned,
}

/// The lists of a device.
pub(super) struct ClusterLists {
    lists: IndexLists,
    home: Vec<Home>,
    /// Whether a CPU ever took slots of a cluster.
    opened: Vec<bool>,
    /// How many clusters are opened.
    opened_count: u32,
}

impl ClusterLists {
    /// `count` clusters, all on one list in the given order.
    pub(super) fn new(
        count: usize,
        list: List,
        order: impl Iterator<Item = usize>,
    ) -> ClusterLists {
        let mut lists = IndexLists::new(4, count);
        order.for_each(|cluster| lists.push_back(list as usize, cluster as u32));
        let (home, opened) = (vec![Home::Listed(list); count], vec![false; count]);
        ClusterLists { lists, home, opened, opened_count: 0 }
    }

    pub(super) fn home(&self, cluster: u32) -> Home {
        self.home[cluster as usize]
    }

    /// Takes the first cluster of a list, for a CPU.
    pub(super) fn take(&mut self, list: List) -> Option<u32> {
        let cluster = self.lists.pop_front(list as usize)?;
        self.own(cluster);
        Some(cluster)
    }

    /// Takes the first cluster of a list at or after `from`, wrapping around the device.
    pub(super) fn take_from(&mut self, list: List, from: u32) -> Option<u32> {
        if self.lists.is_empty(list as usize) {
            return None;
        }
        let count = self.home.len() as u32;
        let listed = |cluster: &u32| self.home[*cluster as usize] == Home::Listed(list);
        let next = (from..count).chain(0..from.min(count)).find(listed)?;
        self.lists.remove(list as usize, next);
        self.own(next);
        Some(next)
    }

    /// The first free cluster, for a run of slots. It moves to the end of its list, so that another
    /// thread's run gets another one. It stays on the list until slots of it are taken: searches
    /// would miss a cluster that is on no list and that no CPU owns.
    pub(super) fn next_free(&mut self) -> Option<u32> {
        let cluster = self.lists.pop_front(List::Free as usize)?;
        self.lists.push_back(List::Free as usize, cluster);
        self.open(cluster);
        Some(cluster)
    }

    fn own(&mut self, cluster: u32) {
        self.home[cluster as usize] = Home::Owned;
        self.open(cluster);
    }

    fn open(&mut self, cluster: u32) {
        let opened = std::mem::replace(&mut self.opened[cluster as usize], true);
        self.opened_count += u32::from(!opened);
    }

    /// The number of clusters with slots that were ever taken, if the next free cluster would add
    /// to it.
    pub(super) fn would_spread(&self) -> Option<u32> {
        let next = self.lists.iter(List::Free as usize).next()?;
        (!self.opened[next as usize]).then_some(self.opened_count)
    }

    /// Moves a cluster to a list.
    pub(super) fn put(&mut self, cluster: u32, list: List) {
        self.set_home(cluster, list);
        match list {
            // A freed cluster is used before one that never was, so that the memory or the sparse
            // file behind the device stays small.
            List::Free => self.lists.push_front(list as usize, cluster),
            _ => self.lists.push_back(list as usize, cluster),
        }
    }

    /// Moves a cluster to the end of a list.
    pub(super) fn put_last(&mut self, cluster: u32, list: List) {
        self.set_home(cluster, list);
        self.lists.push_back(list as usize, cluster);
    }

    fn set_home(&mut self, cluster: u32, list: List) {
        if let Home::Listed(old) = self.home[cluster as usize] {
            self.lists.remove(old as usize, cluster);
        }
        self.home[cluster as usize] = Home::Listed(list);
    }
}
