//! A swap device: its clusters, which of them have free slots, and each CPU's current one.
//!
//! ```text
//!                  Free    <--- used falls to 0
//!   take(CPU)  /   Sparse  <--- used falls to half
//!   Owned <---+       give back: by how full it is
//!              \   Nonfull <--- a slot of a full one is freed
//!                  Full
//! ```
//! A CPU allocates from a cluster of its own, so that runs stay adjacent and CPUs apart. It takes
//! free clusters first where a device gains from long runs; where slots are memory, sparse ones,
//! so that a device holds about twice its pages at most. Order of search: own cluster onwards, free
//! and sparse clusters, own cluster from its start, a non-full one, what other CPUs own. An `Owned`
//! cluster is on no list.

use super::cluster::{CLUSTER_SLOTS, ClusterMap};
use highwater_platform::{Atomic, DeviceInfo, Guard, Latency, Lock, LockClass, Platform};
use highwater_units::{CpuId, IndexLists, Pfn, Slot};
use std::sync::atomic::Ordering::Relaxed;

const FREE: usize = 0;
const SPARSE: usize = 1;
const NONFULL: usize = 2;
const FULL: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Listed(usize),
    Owned,
}

/// Which list every cluster is on.
struct ClusterLists {
    lists: IndexLists,
    home: Vec<Home>,
}

impl ClusterLists {
    fn take(&mut self, list: usize) -> Option<u32> {
        let cluster = self.lists.pop_front(list)?;
        self.home[cluster as usize] = Home::Owned;
        Some(cluster)
    }

    fn put(&mut self, cluster: u32, list: usize) {
        if let Home::Listed(old) = self.home[cluster as usize] {
            self.lists.remove(old, cluster);
        }
        self.home[cluster as usize] = Home::Listed(list);
        match list {
            // A free cluster is used again before one that never was: what lies behind the device
            // (memory, a sparse file) stays as small as it can.
            FREE => self.lists.push_front(list, cluster),
            _ => self.lists.push_back(list, cluster),
        }
    }
}

/// A CPU's cluster and where in it to look next.
#[derive(Clone, Copy)]
struct Current {
    cluster: u32,
    next: u16,
}

/// One swap device.
pub struct Device<P: Platform> {
    index: u8,
    info: DeviceInfo,
    used: P::Atomic<u32>,
    clusters: Vec<P::Lock<ClusterMap>>,
    lists: P::Lock<ClusterLists>,
    cpus: Vec<P::Lock<Option<Current>>>,
}

impl<P: Platform> Device<P> {
    /// A device whose slots are free; one that is read-only has all clusters full, for good.
    pub(super) fn new(platform: &P, index: u8, info: DeviceInfo) -> Device<P> {
        let count = info.pages.div_ceil(CLUSTER_SLOTS) as usize;
        let mut lists = IndexLists::new(4, count);
        let all = if info.read_only { FULL } else { FREE };
        (0..count as u32).for_each(|cluster| lists.push_back(all, cluster));
        let map = |_| platform.new_lock(LockClass::SwapCluster, ClusterMap::default());
        let lists = ClusterLists { lists, home: vec![Home::Listed(all); count] };
        let current = |_| platform.new_lock(LockClass::SwapCpu, None);
        Device {
            index,
            used: Atomic::new(0),
            clusters: (0..count).map(map).collect(),
            lists: platform.new_lock(LockClass::SwapDevice, lists),
            cpus: (0..platform.cpus()).map(current).collect(),
            info,
        }
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    pub(super) fn alloc(&self, cpu: CpuId, frames: &[Pfn]) -> Option<(Slot, usize)> {
        if self.info.read_only || self.used() == self.info.pages {
            return None;
        }
        let mine = usize::from(cpu.0);
        let found = self.with_current(mine, |current| self.alloc_own(current, frames));
        let of_other = |cpu| self.with_current(cpu, |current| self.alloc_at(current, frames));
        found.or_else(|| (0..self.cpus.len()).find_map(of_other))
    }

    /// Acts on the cluster that a CPU has, under its lock.
    fn with_current<R>(&self, cpu: usize, act: impl FnOnce(&mut Option<Current>) -> R) -> R {
        let mut current = self.cpus[cpu].lock();
        current.visits(1);
        act(&mut current)
    }

    /// From this CPU's cluster, or another made this CPU's.
    fn alloc_own(&self, current: &mut Option<Current>, frames: &[Pfn]) -> Option<(Slot, usize)> {
        if let Some(found) = current.as_mut().and_then(|at| self.take(at, frames)) {
            return Some(found);
        }
        let first = match self.info.latency {
            Latency::Asynchronous => [FREE, SPARSE],
            Latency::Synchronous => [SPARSE, FREE],
        };
        let fresh = first.into_iter().find_map(|list| self.alloc_from(current, list, frames));
        fresh
            .or_else(|| self.alloc_at(current, frames))
            .or_else(|| self.alloc_from(current, NONFULL, frames))
    }

    /// From a cluster of a list, made this CPU's.
    fn alloc_from(
        &self,
        current: &mut Option<Current>,
        list: usize,
        frames: &[Pfn],
    ) -> Option<(Slot, usize)> {
        while let Some(cluster) = self.adopt(current, list) {
            let at = current.insert(Current { cluster, next: 0 });
            if let Some(found) = self.take(at, frames) {
                return Some(found);
            }
        }
        None
    }

    /// From the start of the cluster a CPU has.
    fn alloc_at(&self, current: &mut Option<Current>, frames: &[Pfn]) -> Option<(Slot, usize)> {
        let at = current.as_mut()?;
        at.next = 0;
        self.take(at, frames)
    }

    /// Gives the current cluster back and takes one from a list; keeps it if the list is empty.
    fn adopt(&self, current: &mut Option<Current>, list: usize) -> Option<u32> {
        let taken = self.with_lists(|lists| lists.take(list))?;
        if let Some(old) = current.take() {
            let map = self.clusters[old.cluster as usize].lock();
            map.visits(1);
            self.with_lists(|lists| lists.put(old.cluster, self.list_of(old.cluster, &map)));
        }
        Some(taken)
    }

    /// Moves a cluster from or to a list, under their lock.
    fn with_lists<R>(&self, act: impl FnOnce(&mut ClusterLists) -> R) -> R {
        let mut lists = self.lists.lock();
        lists.visits(1);
        act(&mut lists)
    }

    fn take(&self, at: &mut Current, frames: &[Pfn]) -> Option<(Slot, usize)> {
        let len = self.slots_of(at.cluster);
        let mut map = self.clusters[at.cluster as usize].lock();
        let found = map.take(at.next, len, frames);
        map.visits(ClusterMap::visited(at.next, len, found));
        let (first, taken) = found?;
        at.next = first + taken;
        self.used.fetch_add(u32::from(taken), Relaxed);
        let index = at.cluster * CLUSTER_SLOTS + u32::from(first);
        Some((Slot { device: self.index, index }, usize::from(taken)))
    }

    /// Acts on a slot under its cluster's lock; moves the cluster if that freed the slot.
    pub(super) fn with<R>(&self, slot: Slot, act: impl FnOnce(&mut ClusterMap, u16) -> R) -> R {
        let cluster = slot.index / CLUSTER_SLOTS;
        let mut map = self.clusters[cluster as usize].lock();
        map.visits(1);
        let before = map.used();
        let result = act(&mut map, (slot.index % CLUSTER_SLOTS) as u16);
        if map.used() < before {
            self.used.fetch_sub(1, Relaxed);
            self.relist(cluster, &map, before);
        }
        result
    }

    /// After a slot was freed: moves a cluster that is less full now than its list says.
    fn relist(&self, cluster: u32, map: &ClusterMap, before: u16) {
        if self.list_for(cluster, before) == self.list_of(cluster, map) {
            return;
        }
        self.with_lists(|lists| {
            if lists.home[cluster as usize] != Home::Owned {
                lists.put(cluster, self.list_of(cluster, map));
            }
        });
    }

    fn list_of(&self, cluster: u32, map: &ClusterMap) -> usize {
        self.list_for(cluster, map.used())
    }

    fn list_for(&self, cluster: u32, used: u16) -> usize {
        let slots = self.slots_of(cluster);
        match used {
            0 => FREE,
            used if used == slots => FULL,
            used if used <= slots / 2 => SPARSE,
            _ => NONFULL,
        }
    }

    /// Slots of a cluster: the last one may be short.
    fn slots_of(&self, cluster: u32) -> u16 {
        (self.info.pages - cluster * CLUSTER_SLOTS).min(CLUSTER_SLOTS) as u16
    }

    /// Calls `found` with (slot, count, cached frame) of every slot in use; checks the lists.
    pub(crate) fn each_used(&self, mut found: impl FnMut(Slot, u8, Option<Pfn>)) {
        let mut used = 0;
        for cluster in 0..self.clusters.len() as u32 {
            let map = self.clusters[cluster as usize].lock();
            let home = self.lists.lock().home[cluster as usize];
            let right = home == Home::Owned || home == Home::Listed(self.list_of(cluster, &map));
            assert!(right || self.info.read_only, "cluster {cluster} is on the wrong list");
            used += u32::from(map.used());
            map.each_used(|at, count, cached| {
                let index = cluster * CLUSTER_SLOTS + u32::from(at);
                found(Slot { device: self.index, index }, count, cached);
            });
        }
        assert_eq!(used, self.used(), "slots in use are counted");
    }
}
