//! A swap device: its clusters, its part of the swap cache, and the life of a slot.
//!
//! ```text
//! Device -- Clusters -- Lock<ClusterMap>  reference counts, by cluster            cluster.rs
//!        |- Lock<ClusterLists>          clusters with free slots                  lists.rs
//!        |- [Lock<Option<Position>>]    the cluster that a CPU allocates from     position.rs
//!        |- Usage                       the number of used slots                  usage.rs
//!        |- Standing                    whether the device accepts pages          standing.rs
//!        \- Table                       the swap cache                            cache.rs
//! ```
//! Locking: `SwapCpu -> SwapCluster -> SwapDevice` (the lists). `alloc.rs` and `large.rs` choose
//! slots.

use super::cache::Cached;
#[cfg(not(feature = "history"))]
use super::cache::Table as SwapCache;
use super::cluster::{CLUSTER_SLOTS, ClusterMap};
use super::clusters::Clusters;
#[cfg(feature = "history")]
use super::history::cache::SwapCache;
use super::lists::{ClusterLists, Home, List};
use super::position::{Fallback, Position};
use super::readahead::{Ahead, Owners};
use super::reuse::Ages;
use super::standing::Standing;
use super::usage::Usage;
use crate::config::{Config, Readahead};
use crate::lock_class;
use highwater_platform::{
    Atomic, DeviceInfo, DeviceRole, Direction, Guard, Io, Latency, Lock, Medium, Platform, Recency,
};
use highwater_units::{CpuId, Order, Pfn, Slot};

/// A swap device, or one for files, which has no slots.
pub struct Device<P: Platform> {
    index: u8,
    info: DeviceInfo,
    pub(super) usage: Usage<P>,
    pub(super) standing: Standing,
    pub(super) clusters: Clusters<P::Lock<ClusterMap>>,
    pub(super) lists: P::Lock<ClusterLists>,
    /// By CPU; a rotational device has one for all.
    pub(super) cpus: Vec<P::Lock<Option<Position>>>,
    pub(super) fallback: Fallback<P>,
    /// By order: 1 plus the cluster that had the last run, or 0.
    pub(super) last_run: [P::Atomic<u32>; Order::LARGE.0 as usize],
    pub(super) cache: SwapCache<P>,
    ahead: Ahead,
    /// When slots' pages were evicted.
    pub(super) ages: Ages,
    /// The pages of slots, where neighbouring slots are read ahead.
    pub(super) owners: Option<Owners<P>>,
}

fn ahead(readahead: Readahead, medium: Medium) -> Ahead {
    match (readahead, medium) {
        (Readahead::Off, _) => Ahead::Off,
        (Readahead::Virtual, _) | (Readahead::Auto, Medium::SolidState) => Ahead::Virtual,
        (Readahead::Slot, _) | (Readahead::Auto, Medium::Rotational) => Ahead::Slot,
    }
}

impl<P: Platform> Device<P> {
    /// A device with all slots free. The clusters of a read-only device are and stay full.
    pub(super) fn new(platform: &P, index: u8, info: DeviceInfo, config: &Config) -> Device<P> {
        let (fallback, places) = match info.medium {
            Medium::SolidState => (Fallback::Lists, platform.cpus()),
            Medium::Rotational => (Fallback::Scan(Atomic::new(0)), 1),
        };
        let slots = match info.role {
            DeviceRole::Swap => info.pages,
            DeviceRole::File | DeviceRole::Place => 0,
        };
        let count = slots.div_ceil(CLUSTER_SLOTS) as usize;
        let list = if info.read_only { List::Full } else { List::Free };
        let lists = ClusterLists::new(count, list, 0..count);
        let ahead = ahead(config.readahead, info.medium);
        let cluster = platform.new_lock(lock_class::SWAP_CLUSTER, ClusterMap::default());
        let cpu = |_| platform.new_lock(lock_class::SWAP_CPU, None);
        Device {
            index,
            usage: Usage::new(platform.cpus(), info.pages, count as u32),
            standing: Standing::new(info.pages),
            clusters: Clusters::new(count, cluster),
            lists: platform.new_lock(lock_class::SWAP_DEVICE, lists),
            cpus: (0..places).map(cpu).collect(),
            fallback,
            last_run: std::array::from_fn(|_| Atomic::new(0)),
            cache: SwapCache::new(slots),
            ahead,
            ages: Ages::new(slots),
            owners: (ahead == Ahead::Slot).then(|| Owners::new(slots)),
            info,
        }
    }

    /// What the platform reports of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Slots in use. Exact while nothing changes; reads each CPU's part.
    pub fn in_use(&self) -> u32 {
        self.usage.exact().min(self.info.pages)
    }

    /// Whether about half of the slots are used (the kernel's vm_swap_full), or the device accepts
    /// no more pages.
    pub(super) fn is_scarce(&self) -> bool {
        let about = u64::from(self.usage.about());
        about * 2 > u64::from(self.info.pages) || !self.standing.is_open()
    }

    /// Whether no slot is free, or the device accepts no page.
    pub(super) fn is_full(&self) -> bool {
        self.usage.is_full() || self.standing.is_shut()
    }

    /// Free slots that the device is believed to have room for.
    pub(super) fn room(&self) -> u32 {
        self.standing.room(self.info.pages.saturating_sub(self.in_use()))
    }

    /// Whether a clean page should keep its slot, while slots are not scarce: a write to a device
    /// costs more than the slot, and unmapping a page that cannot have changed needs no write
    /// protection, whose flush costs more than a copy.
    pub(super) fn keeps_clean(&self, recency: Recency) -> bool {
        let saves = self.info.latency == Latency::Asynchronous || recency == Recency::Unmapping;
        saves && !self.is_scarce()
    }

    /// Whether a readahead thread can spare faults the wait for the device.
    pub(super) fn reads_ahead(&self) -> bool {
        self.info.latency == Latency::Asynchronous
    }

    /// What a fault reads along with a page of this device.
    pub(super) fn ahead(&self) -> Ahead {
        self.ahead
    }

    pub(super) fn slot(&self, index: u32) -> Slot {
        Slot { device: self.index, index }
    }

    pub(super) fn read(&self, platform: &P, batch: &mut [Io]) {
        platform.read(self.index, batch);
    }

    pub(super) fn write(&self, platform: &P, batch: &mut [Io]) {
        platform.write(self.index, batch);
    }

    pub(super) fn start_write(&self, platform: &P, batch: &mut [Io]) -> P::Transfer {
        platform.start(self.index, Direction::Write, batch)
    }

    pub(super) fn finish_write(&self, platform: &P, transfer: P::Transfer, batch: &mut [Io]) {
        platform.finish(transfer, batch);
    }

    /// Takes a slot's frame out of the swap cache, if it is there.
    pub(super) fn claim(&self, cpu: CpuId, slot: u32) -> Option<Pfn> {
        // Most faults find nothing, and take no lock.
        self.cache.get(slot)?;
        self.with(cpu, slot, |map, at| self.claim_locked(slot, map, at))
    }

    /// [`Device::claim`] under the cluster's lock.
    pub(super) fn claim_locked(&self, slot: u32, map: &mut ClusterMap, at: u16) -> Option<Pfn> {
        let pfn = self.cache.get(slot)?;
        self.cache.clear(slot);
        map.uncache(at);
        Some(pfn)
    }

    pub(super) fn is_cached(&self, slot: u32) -> bool {
        self.cache.get(slot).is_some()
    }

    /// Takes frames out of the swap cache after their write, except those that a fault claimed.
    pub(super) fn uncache(
        &self,
        platform: &P,
        first: u32,
        frames: &[Pfn],
        mut outcome: impl FnMut(usize, Cached),
    ) {
        for (index, pfn) in frames.iter().enumerate() {
            let slot = first + index as u32;
            let uncache =
                |map: &mut ClusterMap, at| self.uncache_locked(platform, slot, *pfn, map, at);
            outcome(index, self.with(platform.cpu(), slot, uncache));
        }
    }

    /// [`Device::uncache`] of a slot, under its cluster's lock.
    pub(super) fn uncache_locked(
        &self,
        platform: &P,
        slot: u32,
        pfn: Pfn,
        map: &mut ClusterMap,
        at: u16,
    ) -> Cached {
        if self.cache.get(slot) != Some(pfn) {
            return Cached::Claimed;
        }
        self.cache.clear(slot);
        self.end_write(platform, slot, map, at);
        Cached::Removed
    }

    /// Notes that the slot is out of the swap cache. If its page was dropped during the write, the
    /// device may drop the written contents.
    pub(super) fn end_write(&self, platform: &P, slot: u32, map: &mut ClusterMap, at: u16) {
        if !map.is_referenced(at) {
            platform.discard_slot(self.index, slot);
        }
        map.uncache(at);
    }

    /// Drops a reference to a slot.
    pub(super) fn release(&self, platform: &P, cpu: CpuId, slot: u32) {
        self.with(cpu, slot, |map, at| {
            self.discard_last(platform, slot, map, at);
            map.release(at);
        });
    }

    /// Discards the contents of a slot that is about to be free, before another CPU can take it.
    pub(super) fn discard_last(&self, platform: &P, slot: u32, map: &mut ClusterMap, at: u16) {
        if map.is_last(at) {
            platform.discard_slot(self.index, slot);
        }
    }

    /// Adds a reference to a slot.
    pub(super) fn duplicate(&self, cpu: CpuId, slot: u32) {
        self.with(cpu, slot, |map, at| map.duplicate(at));
    }

    /// Calls `act` under the lock of a slot's cluster, and moves the cluster if that freed slots.
    pub(super) fn with<R>(
        &self,
        cpu: CpuId,
        slot: u32,
        act: impl FnOnce(&mut ClusterMap, u16) -> R,
    ) -> R {
        let cluster = slot / CLUSTER_SLOTS;
        let mut map = self.clusters[cluster].lock();
        map.visits(1);
        let before = map.used();
        let result = act(&mut map, (slot % CLUSTER_SLOTS) as u16);
        if map.used() < before {
            self.usage.add(cpu, -i64::from(before - map.used()));
            self.standing.freed((before - map.used()).into());
            self.relist(cluster, &map, before);
            if before == self.slots_of(cluster) {
                self.usage.freed_of_full();
            }
        }
        result
    }

    /// Counts slots of a cluster that were just taken, under the cluster's lock.
    pub(super) fn count_taken(&self, cpu: CpuId, cluster: u32, map: &ClusterMap, slots: u16) {
        self.usage.add(cpu, slots.into());
        if map.used() == self.slots_of(cluster) {
            self.usage.filled_cluster();
        }
    }

    /// Moves a cluster of which slots were freed to the list that it belongs on now.
    fn relist(&self, cluster: u32, map: &ClusterMap, before: u16) {
        if self.list_for(cluster, before) == self.list_of(cluster, map) {
            return;
        }
        self.with_lists(|lists| {
            let list = self.list_of(cluster, map);
            match lists.home(cluster) {
                Home::Owned => {}
                // Writes to the cluster may have failed.
                Home::Listed(_) if self.standing.is_partial() => lists.put_last(cluster, list),
                Home::Listed(_) => lists.put(cluster, list),
            }
        });
    }

    /// Calls `act` under the lock of the lists.
    pub(super) fn with_lists<R>(&self, act: impl FnOnce(&mut ClusterLists) -> R) -> R {
        let mut lists = self.lists.lock();
        lists.visits(1);
        act(&mut lists)
    }

    /// The list that a cluster belongs on.
    pub(super) fn list_of(&self, cluster: u32, map: &ClusterMap) -> List {
        self.list_for(cluster, map.used())
    }

    fn list_for(&self, cluster: u32, used: u16) -> List {
        let slots = self.slots_of(cluster);
        match (used, &self.fallback) {
            (0, _) => List::Free,
            (used, Fallback::Lists) if used <= slots / 2 && used < slots => List::Sparse,
            (used, Fallback::Lists) if used < slots => List::Nonfull,
            _ => List::Full,
        }
    }

    /// Slots of a cluster: the last one may be short.
    pub(super) fn slots_of(&self, cluster: u32) -> u16 {
        (self.info.pages - cluster * CLUSTER_SLOTS).min(CLUSTER_SLOTS) as u16
    }

    /// Whether no slot is in use. On a leaving device, true stays true: each cluster is checked
    /// under its lock.
    pub(super) fn is_empty(&self) -> bool {
        self.clusters.iter().all(|map| map.lock().used() == 0)
    }

    /// Calls `found` with (slot, count, cached) of every slot in use; checks the lists and the
    /// counts of used slots and of clusters with free ones.
    pub(crate) fn each_used(&self, mut found: impl FnMut(Slot, u32, bool)) {
        let (mut used, mut nonfull) = (0, 0);
        for cluster in 0..self.clusters.len() {
            let map = self.clusters[cluster].lock();
            let home = self.lists.lock().home(cluster);
            let right = home == Home::Owned || home == Home::Listed(self.list_of(cluster, &map));
            assert!(right || self.info.read_only, "cluster {cluster} is on the wrong list");
            used += u32::from(map.used());
            nonfull += u32::from(map.used() < self.slots_of(cluster));
            let mut slots = Vec::new();
            map.each_used(|at, count| slots.push((at, count)));
            drop(map);
            for (at, count) in slots {
                let slot = cluster * CLUSTER_SLOTS + u32::from(at);
                found(self.slot(slot), count, self.is_cached(slot));
            }
        }
        assert_eq!(used, self.usage.exact().min(self.info.pages), "slots in use are counted");
        assert_eq!(nonfull, self.usage.nonfull(), "clusters with free slots are counted");
    }
}
