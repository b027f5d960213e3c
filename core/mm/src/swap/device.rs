//! A swap device: its clusters, its part of the swap cache, and the life of a slot.
//!
//! ```text
//! Device -- [Lock<ClusterMap>]    counts, by cluster                  cluster.rs
//!        |- Lock<ClusterLists>    which have free slots               lists.rs
//!        |- [Lock<CpuState>]      where a CPU allocates from          search.rs
//!        |- Usage                 how many slots are used             usage.rs
//!        |- Standing              whether it takes what it has slots for   standing.rs
//!        |- SwapCache             frames of slots                     cache.rs
//!        |- SlotCache             slots that CPUs keep                slot_cache.rs
//!        \- Lock<()>              all of it under DeviceLock::Whole, or taking and giving back
//! ```
//! Locking: `SlotCache -> SwapInfo -> SwapCpu -> SwapCluster -> SwapDevice`.

use super::Cached;
use super::cache::{SwapCache, TRUNK_SHIFT};
use super::cluster::{CLUSTER_SLOTS, ClusterMap, Unused};
use super::lists::{ClusterLists, Home, List};
use super::readahead::{Ahead, Owners};
use super::search::CpuState;
use super::settings::{CacheSplit, DeviceLock, ScanBase, SwapConfig, SwapIn, Switch};
use super::slot_cache::SlotCache;
use super::standing::{Stand, Standing, Turn};
use super::usage::Usage;
use crate::config::Readahead;
use crate::lock_class;
use highwater_platform::{
    Atomic, DeviceInfo, DeviceRole, Guard, Latency, Lock, Locks, Medium, Platform,
};
use highwater_units::{CpuId, Order, Pfn, RUN_PAGES_MAX, Slot};

/// The lock of a whole device, held.
type Whole<'a, P> = <<P as Locks>::Lock<()> as Lock<()>>::Guard<'a>;

/// One swap device.
pub struct Device<P: Platform> {
    index: u8,
    info: DeviceInfo,
    pub(super) config: SwapConfig,
    pub(super) usage: Usage<P>,
    pub(super) standing: Standing,
    pub(super) clusters: Vec<P::Lock<ClusterMap>>,
    lists: P::Lock<ClusterLists>,
    /// One for each CPU; a rotational device has one.
    pub(super) cpus: Vec<P::Lock<CpuState>>,
    /// Where all CPUs scan on, under [`ScanBase::Shared`].
    pub(super) base: P::Atomic<u32>,
    /// By order: 1 and the cluster that gave a run last.
    pub(super) last_run: [P::Atomic<u32>; Order::LARGE.0 as usize],
    cache: SwapCache<P>,
    /// Where neighbours in slots are read along.
    pub(super) owners: Option<Owners<P>>,
    pub(super) slot_cache: SlotCache<P>,
    whole: P::Lock<()>,
}

fn ahead(config: &SwapConfig, info: &DeviceInfo) -> Ahead {
    match (config.readahead, info.medium) {
        (Readahead::Off, _) => Ahead::Off,
        (Readahead::Virtual, _) | (Readahead::Auto, Medium::SolidState) => Ahead::Virtual,
        (Readahead::Slot, _) | (Readahead::Auto, Medium::Rotational) => Ahead::Slot,
    }
}

impl<P: Platform> Device<P> {
    /// A device whose slots are free; one that is read-only has all clusters full, for good. One
    /// that is for files has no slots to keep. One that turns has a base for all CPUs, whatever the
    /// setting: what is written at about the same time lies together.
    pub(super) fn new(platform: &P, index: u8, info: DeviceInfo, config: SwapConfig) -> Device<P> {
        let (config, places) = match info.medium {
            Medium::SolidState => (config, platform.cpus()),
            Medium::Rotational => (SwapConfig { scan_base: ScanBase::Shared, ..config }, 1),
        };
        let slots = match info.role {
            DeviceRole::Swap => info.pages,
            DeviceRole::File | DeviceRole::Place => 0,
        };
        let count = slots.div_ceil(CLUSTER_SLOTS) as usize;
        let all = if info.read_only { List::Full } else { List::Free };
        let map = |_| platform.new_lock(lock_class::SWAP_CLUSTER, ClusterMap::default());
        // Clusters that are taken one after the other lie in different trees, where there are some.
        let apart = match config.cache {
            CacheSplit::Trunk => (1 << TRUNK_SHIFT) / CLUSTER_SLOTS as usize,
            CacheSplit::Whole | CacheSplit::Leaf | CacheSplit::Cluster => 1,
        };
        let lists = ClusterLists::new(count, all, apart);
        let lists = platform.new_lock(lock_class::SWAP_DEVICE, lists);
        let cpu = |cpu| platform.new_lock(lock_class::SWAP_CPU, CpuState::new(cpu, slots));
        Device {
            index,
            config,
            usage: Usage::new(platform.cpus(), info.pages),
            standing: Standing::new(info.pages),
            clusters: (0..count).map(map).collect(),
            lists,
            cpus: (0..places).map(cpu).collect(),
            base: Atomic::new(0),
            last_run: std::array::from_fn(|_| Atomic::new(0)),
            cache: SwapCache::new(platform, slots, &config),
            owners: (ahead(&config, &info) == Ahead::Slot).then(|| Owners::new(count)),
            slot_cache: SlotCache::new(platform),
            whole: platform.new_lock(lock_class::SWAP_INFO, ()),
            info,
        }
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Slots that are not free: in use, or parked in CPUs' slot caches. Exact at rest, and as slow
    /// as there are CPUs.
    fn used(&self) -> u32 {
        self.usage.exact().min(self.info.pages)
    }

    /// Whether more than half of the slots are used, or nearly so (the kernel's vm_swap_full), or
    /// there is no room for more pages.
    pub(super) fn is_scarce(&self) -> bool {
        let about = u64::from(self.usage.about());
        about * 2 > u64::from(self.info.pages) || !self.standing.is_open()
    }

    /// Whether the last search found no slot, or what there are is of no use.
    pub(super) fn is_full(&self) -> bool {
        self.usage.is_full() || self.standing.is_shut()
    }

    /// Slots that pages may go to, as far as is known.
    pub(super) fn room(&self) -> u32 {
        let left = self.info.pages.saturating_sub(self.in_use());
        match self.standing.stand() {
            Stand::Open => left,
            Stand::Full(pages) => left.min(pages),
        }
    }

    /// Slots in use.
    pub fn in_use(&self) -> u32 {
        match self.config.slot_cache {
            Switch::Off => self.used(),
            // Between two looks a slot may move from one number to the other.
            Switch::On => self.used().saturating_sub(self.slot_cache.len()),
        }
    }

    /// Its part of the swap cache.
    pub(super) fn cache(&self) -> &SwapCache<P> {
        &self.cache
    }

    /// What is read along with a page of it.
    pub(super) fn ahead(&self) -> Ahead {
        ahead(&self.config, &self.info)
    }

    pub(super) fn slot(&self, index: u32) -> Slot {
        Slot { device: self.index, index }
    }

    /// Takes slots for the first frames of `frames`: adjacent, count 1, in the swap cache.
    pub(super) fn alloc(&self, cpu: CpuId, frames: &[Pfn], turn: Turn) -> Option<(Slot, usize)> {
        let most = self.standing.allows(frames.len(), turn);
        if most == 0 || !self.info.gives_slots() {
            return None;
        }
        let frames = &frames[..most];
        let (first, taken) = match self.config.slot_cache {
            Switch::Off => self.alloc_direct(cpu, frames)?,
            Switch::On => self.alloc_parked(cpu, frames)?,
        };
        if let SwapCache::Trees(trees) = &self.cache {
            trees.insert(first, &frames[..taken]);
        }
        if turn == Turn::Last {
            self.standing.tries();
        }
        Some((self.slot(first), taken))
    }

    /// The frames of slots just taken, where the cluster has them; under its lock.
    pub(super) fn fill_table(&self, first: u32, frames: &[Pfn]) {
        if let SwapCache::Tables(tables) = &self.cache {
            (first..).zip(frames).for_each(|(slot, pfn)| tables.set(slot, Some(*pfn)));
        }
    }

    /// Takes a slot's frame out of the swap cache, if it is there.
    pub(super) fn claim(&self, cpu: CpuId, slot: u32) -> Option<Pfn> {
        match &self.cache {
            SwapCache::Tables(tables) => {
                // Most faults find nothing, and take no lock.
                tables.get(slot)?;
                self.with(cpu, slot, |map, at| {
                    let pfn = tables.get(slot)?;
                    tables.set(slot, None);
                    map.uncached(at);
                    Some(pfn)
                })
            }
            SwapCache::Trees(trees) => {
                let pfn = trees.remove(slot)?;
                self.with(cpu, slot, |map, at| map.uncached(at));
                Some(pfn)
            }
        }
    }

    pub(super) fn is_cached(&self, slot: u32) -> bool {
        match &self.cache {
            SwapCache::Tables(tables) => tables.get(slot).is_some(),
            SwapCache::Trees(trees) => trees.contains(slot),
        }
    }

    /// Takes frames out of the swap cache after their write, as far as no fault did: says for each
    /// which it was.
    pub(super) fn uncache(
        &self,
        platform: &P,
        first: u32,
        frames: &[Pfn],
        mut outcome: impl FnMut(usize, Cached),
    ) {
        let cpu = platform.cpu();
        match &self.cache {
            SwapCache::Tables(tables) => {
                for (index, pfn) in frames.iter().enumerate() {
                    let slot = first + index as u32;
                    outcome(
                        index,
                        self.with(cpu, slot, |map, at| match tables.get(slot) == Some(*pfn) {
                            true => {
                                tables.set(slot, None);
                                self.uncached(platform, slot, map, at);
                                Cached::Removed
                            }
                            false => Cached::Claimed,
                        }),
                    );
                }
            }
            SwapCache::Trees(trees) => {
                let mut results = [Cached::Claimed; RUN_PAGES_MAX];
                trees.remove_run(first, frames, |index, cached| results[index] = cached);
                for (index, cached) in results[..frames.len()].iter().enumerate() {
                    let slot = first + index as u32;
                    if *cached == Cached::Removed {
                        self.with(cpu, slot, |map, at| self.uncached(platform, slot, map, at));
                    }
                    outcome(index, *cached);
                }
            }
        }
    }

    /// After its write; a slot whose page was dropped meanwhile is of no use any more.
    fn uncached(&self, platform: &P, slot: u32, map: &mut ClusterMap, at: u16) {
        if !map.is_referenced(at) {
            platform.discard_slot(self.index, slot);
        }
        map.uncached(at);
    }

    /// Frames are to be read: if reads go through the swap cache, they are in it meanwhile. Who
    /// holds another page of the same slot waits; nobody finds a frame before it is filled.
    pub(super) fn enter(&self, platform: &P, first: u32, frames: &[Pfn]) {
        if !self.caches_reads() {
            return;
        }
        for slot in (first..).take(frames.len()) {
            let mut attempt = 0;
            // Who takes a frame out of a tree tells the record afterwards.
            while !self.with(platform.cpu(), slot, |map, at| map.cache(at)) {
                platform.relax(attempt);
                attempt += 1;
            }
        }
        if let SwapCache::Trees(trees) = &self.cache {
            trees.insert_unseen(first, frames);
        }
    }

    /// They were read, and belong to pages.
    pub(super) fn leave(&self, platform: &P, first: u32, slots: usize) {
        if !self.caches_reads() {
            return;
        }
        if let SwapCache::Trees(trees) = &self.cache {
            trees.remove_unseen(first, slots);
        }
        for slot in (first..).take(slots) {
            self.with(platform.cpu(), slot, |map, at| map.uncached(at));
        }
    }

    /// Whether a readahead thread can save faults time.
    pub(super) fn reads_ahead(&self) -> bool {
        self.info.latency == Latency::Asynchronous && self.config.swap_in == SwapIn::Direct
    }

    /// Slots of a device that is only read are the parent's to count; a file's pages have none.
    fn caches_reads(&self) -> bool {
        self.config.swap_in == SwapIn::Cached && self.info.gives_slots()
    }

    /// A write of slots begins, or has ended.
    pub(super) fn tag(&self, first: u32, slots: usize, writeback: Switch) {
        if let (SwapCache::Trees(trees), Switch::On) = (&self.cache, self.config.writeback_tags) {
            trees.tag(first, slots, writeback);
        }
    }

    /// One reference less. A slot that nobody uses any more is discarded before anybody else can
    /// take it.
    pub(super) fn release(&self, platform: &P, cpu: CpuId, slot: u32) {
        let parks = self.parks(cpu);
        let unused = match self.config.device_lock {
            // To be given back under the device's lock, which is not held for counts.
            DeviceLock::Slots => Unused::Park,
            DeviceLock::Whole | DeviceLock::Cluster if parks => Unused::Park,
            DeviceLock::Whole | DeviceLock::Cluster => Unused::Free,
        };
        let parked = self.with(cpu, slot, |map, at| {
            if map.is_last(at) {
                platform.discard_slot(self.index, slot);
            }
            map.release(at, unused)
        });
        match parked {
            true if parks => self.park(cpu, slot),
            true => self.free_parked(cpu, vec![slot]),
            false => (),
        }
    }

    /// One reference more.
    pub(super) fn duplicate(&self, cpu: CpuId, slot: u32) {
        self.with(cpu, slot, |map, at| map.duplicate(at));
    }

    /// The lock of the whole device, where it is for counts.
    fn lock_counts(&self) -> Option<Whole<'_, P>> {
        match self.config.device_lock {
            DeviceLock::Whole => Some(self.whole.lock()),
            DeviceLock::Slots | DeviceLock::Cluster => None,
        }
    }

    /// The lock of the whole device, where slots are taken and given back under it.
    pub(super) fn lock_slots(&self) -> Option<Whole<'_, P>> {
        match self.config.device_lock {
            DeviceLock::Whole | DeviceLock::Slots => Some(self.whole.lock()),
            DeviceLock::Cluster => None,
        }
    }

    /// Acts on a slot under its cluster's lock; moves the cluster if that freed the slot.
    pub(super) fn with<R>(
        &self,
        cpu: CpuId,
        slot: u32,
        act: impl FnOnce(&mut ClusterMap, u16) -> R,
    ) -> R {
        let _whole = self.lock_counts();
        self.with_locked(cpu, slot, act)
    }

    /// The same, for who has the lock of the whole device.
    pub(super) fn with_locked<R>(
        &self,
        cpu: CpuId,
        slot: u32,
        act: impl FnOnce(&mut ClusterMap, u16) -> R,
    ) -> R {
        let cluster = slot / CLUSTER_SLOTS;
        let mut map = self.clusters[cluster as usize].lock();
        map.visits(1);
        let before = map.used();
        let result = act(&mut map, (slot % CLUSTER_SLOTS) as u16);
        if map.used() < before {
            self.usage.add(cpu, -i64::from(before - map.used()));
            self.standing.freed((before - map.used()).into());
            self.relist(cluster, &map, before);
            if before == self.slots_of(cluster) {
                self.usage.found_room();
            }
        }
        result
    }

    /// After slots were freed: moves a cluster that is less full now than its list says.
    fn relist(&self, cluster: u32, map: &ClusterMap, before: u16) {
        if self.list_for(cluster, before) == self.list_of(cluster, map) {
            return;
        }
        self.with_lists(|lists| {
            if lists.home(cluster) != Home::Owned {
                lists.put(cluster, self.list_of(cluster, map));
            }
        });
    }

    /// Moves a cluster from or to a list, under their lock.
    pub(super) fn with_lists<R>(&self, act: impl FnOnce(&mut ClusterLists) -> R) -> R {
        let mut lists = self.lists.lock();
        lists.visits(1);
        act(&mut lists)
    }

    pub(super) fn list_of(&self, cluster: u32, map: &ClusterMap) -> List {
        self.list_for(cluster, map.used())
    }

    fn list_for(&self, cluster: u32, used: u16) -> List {
        let slots = self.slots_of(cluster);
        match used {
            0 => List::Free,
            _ if self.config.scan_base != ScanBase::None => List::Full,
            used if used == slots => List::Full,
            used if used <= slots / 2 => List::Sparse,
            _ => List::Nonfull,
        }
    }

    /// Slots of a cluster: the last one may be short.
    pub(super) fn slots_of(&self, cluster: u32) -> u16 {
        (self.info.pages - cluster * CLUSTER_SLOTS).min(CLUSTER_SLOTS) as u16
    }

    /// Calls `found` with (slot, count, cached) of every slot in use; checks the lists, and that
    /// what is parked is known to the slot caches.
    pub(crate) fn each_used(&self, mut found: impl FnMut(Slot, u32, bool)) {
        let (mut used, mut parked, mut frames) = (0, 0, 0);
        for cluster in 0..self.clusters.len() as u32 {
            let map = self.clusters[cluster as usize].lock();
            let home = self.lists.lock().home(cluster);
            let right = home == Home::Owned || home == Home::Listed(self.list_of(cluster, &map));
            assert!(right || self.info.read_only, "cluster {cluster} is on the wrong list");
            used += u32::from(map.used());
            let mut slots = Vec::new();
            parked += map.each_used(|at, count| slots.push((at, count)));
            drop(map);
            for (at, count) in slots {
                let slot = cluster * CLUSTER_SLOTS + u32::from(at);
                let cached = self.is_cached(slot);
                frames += usize::from(cached);
                found(self.slot(slot), count, cached);
            }
        }
        assert_eq!(used, self.used(), "slots in use are counted");
        assert_eq!(parked, self.slot_cache.len(), "parked slots are in a slot cache");
        if let SwapCache::Trees(trees) = &self.cache {
            assert_eq!(frames, trees.len(), "frames of the cache belong to slots in use");
        }
    }
}
