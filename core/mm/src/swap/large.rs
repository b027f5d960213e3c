//! Aligned runs of slots for pages of more than one frame.
//!
//! ```text
//! order 9: a free cluster, whole
//! below:   the cluster of the order's last run, a free cluster, up to 64 other clusters
//! ```
//! Runs of an order share clusters, and stay apart from single slots while there are free clusters.
//! On a fragmented device there may be no run, however many slots are free.

use super::Swap;
use super::cluster::{CLUSTER_SLOTS, ClusterMap};
use super::device::Device;
use super::lists::Home;
use super::standing::Turn;
use highwater_platform::{Atomic, Guard, Lock, Platform};
use highwater_units::{CpuId, IoFrames, LARGE_PAGES, Order, Pfn, Slot};
use std::sync::atomic::Ordering::Relaxed;

const _: () = assert!(LARGE_PAGES == CLUSTER_SLOTS as usize, "a large page fills a cluster");

/// Clusters searched for a run when none is free.
const LOOKS_MAX: u32 = 64;

impl<P: Platform> Swap<P> {
    /// Takes 2^order adjacent slots, 512 at most, for as many frames from `first` on: count 1,
    /// frames in the swap cache. Returns the first slot; `None` if no such run is free.
    pub fn alloc_block(&self, cpu: CpuId, first: Pfn, order: Order) -> Option<Slot> {
        let asked = self.order();
        let mut devices = asked.of(cpu).map(|index| self.at(index));
        let slot = devices.find_map(|device| device.alloc_block(cpu, first, order))?;
        asked.took(cpu, order.frames() as usize);
        self.note_evicted(slot, order.frames() as usize);
        Some(slot)
    }
}

impl<P: Platform> Device<P> {
    /// Takes an aligned run of slots, if the device has one.
    pub(super) fn alloc_block(&self, cpu: CpuId, first: Pfn, order: Order) -> Option<Slot> {
        if !self.takes_run(order) {
            return None;
        }
        let frames = IoFrames::Block(first, order);
        self.search_run(cpu, order, &frames).map(|slot| self.slot(slot))
    }

    /// Whether the device accepts a run of this length.
    pub(super) fn takes_run(&self, order: Order) -> bool {
        let pages = order.frames() as usize;
        self.info().gives_slots() && self.standing.allows(pages, Turn::First) == pages
    }

    /// The order of search (see the head of this file).
    pub(super) fn search_run(&self, cpu: CpuId, order: Order, frames: &IoFrames) -> Option<u32> {
        let near = self.last_of(order).and_then(|at| self.take_run(cpu, at, frames));
        near.or_else(|| self.take_of_free(cpu, order, frames))
            .or_else(|| self.take_of_others(cpu, order, frames))
    }

    /// The cluster of the last run of an order.
    fn last_of(&self, order: Order) -> Option<u32> {
        self.last_run.get(usize::from(order.0))?.load(Relaxed).checked_sub(1)
    }

    fn note_last(&self, order: Order, cluster: u32) {
        if let Some(last) = self.last_run.get(usize::from(order.0)) {
            last.store(cluster + 1, Relaxed);
        }
    }

    /// From a free cluster, which later runs of the order use next.
    fn take_of_free(&self, cpu: CpuId, order: Order, frames: &IoFrames) -> Option<u32> {
        let cluster = self.with_lists(|lists| lists.next_free())?;
        let slot = self.take_run(cpu, cluster, frames);
        self.note_last(order, cluster);
        slot
    }

    /// From one of the next clusters.
    fn take_of_others(&self, cpu: CpuId, order: Order, frames: &IoFrames) -> Option<u32> {
        if order == Order::LARGE {
            return None;
        }
        let (count, last) = (self.clusters.len(), self.last_of(order).unwrap_or(0));
        let next = |step: u32| (last + step) % count;
        let at = (1..=LOOKS_MAX.min(count))
            .map(next)
            .find_map(|cluster| self.take_run(cpu, cluster, frames).map(|slot| (cluster, slot)));
        // The next search continues where this one ended.
        let (cluster, slot) = match at {
            Some((cluster, slot)) => (cluster, Some(slot)),
            None => (next(LOOKS_MAX.min(count)), None),
        };
        self.note_last(order, cluster);
        slot
    }

    /// From a cluster, which moves to the list that it belongs on then.
    fn take_run(&self, cpu: CpuId, cluster: u32, frames: &IoFrames) -> Option<u32> {
        let mut map = self.clusters[cluster].lock();
        map.visits(1);
        let slot = self.fill_run(cpu, cluster, &mut map, frames)?;
        map.visits(frames.len());
        self.with_lists(|lists| {
            if lists.home(cluster) != Home::Owned {
                lists.put(cluster, self.list_of(cluster, &map));
            }
        });
        Some(slot)
    }

    /// Takes an aligned run of a cluster for frames, under its lock.
    fn fill_run(
        &self,
        cpu: CpuId,
        cluster: u32,
        map: &mut ClusterMap,
        frames: &IoFrames,
    ) -> Option<u32> {
        // As for single slots: swapoff may have seen this cluster empty.
        if self.standing.is_closed() {
            return None;
        }
        let at = map.take_aligned(self.slots_of(cluster), frames.len() as u16)?;
        let slot = cluster * CLUSTER_SLOTS + u32::from(at);
        self.count_taken(cpu, cluster, map, frames.len() as u16);
        for (at, frames) in frames.lists() {
            self.cache.fill(slot + at as u32, &frames);
        }
        Some(slot)
    }
}
