//! A whole cluster for a large page: 512 adjacent slots, taken and written at once.

use super::Swap;
use super::cache::SwapCache;
use super::cluster::{CLUSTER_SLOTS, Purpose};
use super::device::Device;
use super::lists::List;
use highwater_platform::{Guard, Lock, Platform};
use highwater_units::{CpuId, IoFrames, LARGE_PAGES, Pfn, Slot};

const _: () = assert!(LARGE_PAGES == CLUSTER_SLOTS as usize, "a large page fills a cluster");

impl<P: Platform> Swap<P> {
    /// Takes the slots of a free cluster for a large page whose first frame is `first`: count 1,
    /// frames in the swap cache. The first slot; `None` if no cluster is free, whatever else is.
    pub fn alloc_block(&self, cpu: CpuId, first: Pfn) -> Option<Slot> {
        let mut devices = self.order.of(cpu).map(|index| &self.devices()[index]);
        let slot = devices.find_map(|device| device.alloc_block(cpu, first))?;
        self.order.took(cpu, LARGE_PAGES);
        Some(slot)
    }
}

impl<P: Platform> Device<P> {
    fn alloc_block(&self, cpu: CpuId, first: Pfn) -> Option<Slot> {
        if self.info().read_only {
            return None;
        }
        let slot = {
            let _whole = self.lock_slots();
            let cluster = self.with_lists(|lists| lists.take(List::Free))?;
            self.fill_cluster(cpu, cluster, first)?
        };
        if let SwapCache::Trees(trees) = self.cache() {
            for (at, frames) in IoFrames::Block(first).lists() {
                trees.insert(slot + at as u32, &frames);
            }
        }
        Some(self.slot(slot))
    }

    /// Takes all slots of a cluster that was free, and lists it as what it is then.
    fn fill_cluster(&self, cpu: CpuId, cluster: u32, first: Pfn) -> Option<u32> {
        let (slot, len) = (cluster * CLUSTER_SLOTS, self.slots_of(cluster));
        let mut map = self.clusters[cluster as usize].lock();
        let whole = u32::from(len) == CLUSTER_SLOTS && map.used() == 0;
        if whole {
            let taken = map.take(0, len, LARGE_PAGES, Purpose::Pages);
            debug_assert_eq!(taken, Some((0, len)), "the cluster was free");
            map.visits(LARGE_PAGES);
            self.usage.add(cpu, i64::from(len));
            for (at, frames) in IoFrames::Block(first).lists() {
                self.fill_table(slot + at as u32, &frames);
            }
        }
        self.with_lists(|lists| lists.put(cluster, self.list_of(cluster, &map)));
        whole.then_some(slot)
    }
}
