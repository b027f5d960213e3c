//! How a slot is chosen: [`Device::search`].
//!
//! A CPU allocates from a cluster of its own, so that its pages get adjacent slots and CPUs do not
//! share clusters. When that cluster has no free slot after the last one taken, the CPU looks
//! 1. on two lists for a cluster that becomes its own. On a device with a queue: free clusters,
//!    then sparse ones, because long runs pay off; but sparse ones first once the clusters ever
//!    used have twice as many slots as are in use, because each such cluster takes room in a sparse
//!    file, and memory: its tables, and tags if it is sealed. On a device that is memory: sparse
//!    clusters, then free ones, so that the device takes at most about twice the memory of its
//!    pages;
//! 2. in its cluster from the start, for slots that were freed;
//! 3. on the list of non-full clusters;
//! 4. in the clusters that CPUs own.
//!
//! If slots are free although these steps find none, the CPU takes them once more: a cluster that
//! moves meanwhile, from one list to another for example, may be missed.
//!
//! A rotational device has one cluster for all CPUs, so that pages written at the same time lie
//! together: after it the next free cluster upwards, then slot by slot from the last one on.
//!
//! A cluster to which writes fail, or whose pages are turned away, is set aside:
//! [`Device::set_aside`].
//!
//! `order.rs` decides which device comes first; `large.rs` allocates aligned runs of slots.

use super::cluster::{CLUSTER_SLOTS, ClusterMap};
use super::device::Device;
use super::lists::{ClusterLists, Home, List};
use super::position::{Fallback, Position};
use super::standing::Turn;
use highwater_platform::{Atomic, Guard, Latency, Lock, Medium, Platform};
use highwater_units::{CpuId, Pfn, Slot};
use std::sync::atomic::Ordering::Relaxed;

/// The frames that need slots, and the CPU that allocates.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) cpu: CpuId,
    pub(super) frames: &'a [Pfn],
}

/// Clusters ever used have at most this many slots for each slot in use. Without the limit, pages
/// that are rewritten at random would spread over six to seven.
const SPREAD_MAX: u64 = 2;
/// The limit applies from this many clusters on.
const SPREAD_MIN: u32 = 8;

/// Whether no more clusters than the `opened` ones should be used.
fn is_spread(opened: u32, used: impl FnOnce() -> u32) -> bool {
    let slots = u64::from(opened) * u64::from(CLUSTER_SLOTS);
    opened >= SPREAD_MIN && slots > SPREAD_MAX * u64::from(used())
}

/// Clusters with used slots come first.
const REUSING: [List; 3] = [List::Sparse, List::Nonfull, List::Free];

/// The first slot, and how many adjacent ones were taken.
type Found = (u32, usize);

impl<P: Platform> Device<P> {
    /// Takes slots for the first of `frames`: adjacent, count 1, in the swap cache. Returns the
    /// first slot and how many.
    pub(super) fn alloc(&self, cpu: CpuId, frames: &[Pfn], turn: Turn) -> Option<(Slot, usize)> {
        let most = self.standing.allows(frames.len(), turn);
        if most == 0 || !self.info().gives_slots() {
            return None;
        }
        let (first, taken) = self.search(Wanted { cpu, frames: &frames[..most] })?;
        if turn == Turn::Last {
            self.standing.tries();
        }
        Some((self.slot(first), taken))
    }

    /// The allocation order (see the head of this file). `None` if no slot is found.
    pub(super) fn search(&self, wanted: Wanted<'_>) -> Option<Found> {
        let mine = usize::from(wanted.cpu.0) % self.cpus.len();
        let near = self.with_cpu(mine, |own| self.take_from_rest(own, wanted));
        if near.is_some() || self.usage.is_full() {
            return near;
        }
        let anywhere = || match &self.fallback {
            Fallback::Lists => {
                self.take_from_lists(mine, wanted).or_else(|| self.take_from_others(wanted))
            }
            Fallback::Scan(start) => self.with_cpu(mine, |own| {
                self.take_from_list(own, List::Free, wanted).or_else(|| self.scan(start, wanted))
            }),
            #[cfg(feature = "history")]
            Fallback::ScanPerCpu(starts) => self.with_cpu(mine, |own| {
                let free = self.take_from_list(own, List::Free, wanted);
                free.or_else(|| starts.scan(mine, |start| self.scan_from(start, wanted)))
            }),
        };
        let found = anywhere();
        if found.is_some() || self.usage.is_full() {
            return found;
        }
        // A cluster with free slots moved to another place meanwhile.
        anywhere()
    }

    /// Steps 1 to 3: a cluster that becomes the CPU's own, or the own one from its start.
    fn take_from_lists(&self, mine: usize, wanted: Wanted<'_>) -> Option<Found> {
        let [first, second, last] = match self.info().latency {
            _ if self.standing.is_partial() => self.next_lists(),
            // A file that may not grow has room in the slots that were written before.
            Latency::Asynchronous if !self.standing.is_open() => REUSING,
            Latency::Asynchronous if !self.is_spread() => [List::Free, List::Sparse, List::Nonfull],
            Latency::Asynchronous | Latency::Synchronous => {
                [List::Sparse, List::Free, List::Nonfull]
            }
        };
        self.with_cpu(mine, |own| {
            self.take_from_list(own, first, wanted)
                .or_else(|| self.take_from_list(own, second, wanted))
                .or_else(|| self.take_from_start(own, wanted))
                .or_else(|| self.take_from_list(own, last, wanted))
        })
    }

    /// Each cluster that is set aside lets the next list come first: writes to all clusters of one
    /// list may fail.
    fn next_lists(&self) -> [List; 3] {
        let mut lists = REUSING;
        lists.rotate_left(self.standing.clusters_set_aside() as usize % REUSING.len());
        lists
    }

    /// Whether one more cluster would be too many for the pages of the device.
    fn is_spread(&self) -> bool {
        let opened = self.with_lists(|lists| lists.would_spread());
        opened.is_some_and(|opened| is_spread(opened, || self.usage.exact()))
    }

    /// Step 4: from the clusters that CPUs own.
    fn take_from_others(&self, wanted: Wanted<'_>) -> Option<Found> {
        let of = |cpu| self.with_cpu(cpu, |other| self.take_from_start(other, wanted));
        (0..self.cpus.len()).find_map(of)
    }

    /// From the first free slots at or after `start`, wrapping around the device; moves `start`
    /// behind them.
    fn scan(&self, start: &P::Atomic<u32>, wanted: Wanted<'_>) -> Option<Found> {
        let (slot, taken) = self.scan_from(start.load(Relaxed), wanted)?;
        let next = slot + taken as u32;
        start.store(if next < self.info().pages { next } else { 0 }, Relaxed);
        Some((slot, taken))
    }

    fn scan_from(&self, start: u32, wanted: Wanted<'_>) -> Option<Found> {
        let count = self.clusters.len();
        let first = start / CLUSTER_SLOTS;
        // The first cluster comes twice: from `start` on, and last from its first slot on.
        (0..=count).find_map(|step| {
            let cluster = (first + step) % count;
            let next = if step == 0 { (start % CLUSTER_SLOTS) as u16 } else { 0 };
            self.take(&mut Position { cluster, next }, wanted)
        })
    }

    /// Calls `act` with the cluster that a CPU owns, under that CPU's lock.
    fn with_cpu<R>(&self, cpu: usize, act: impl FnOnce(&mut Option<Position>) -> R) -> R {
        let mut own = self.cpus[cpu].lock();
        own.visits(1);
        act(&mut own)
    }

    /// From the CPU's cluster, after the slots that it took last.
    fn take_from_rest(&self, own: &mut Option<Position>, wanted: Wanted<'_>) -> Option<Found> {
        let unfinished = |at: &&mut Position| at.next < self.slots_of(at.cluster);
        own.as_mut().filter(unfinished).and_then(|at| self.take(at, wanted))
    }

    /// From a CPU's cluster, from its first slot on.
    fn take_from_start(&self, own: &mut Option<Position>, wanted: Wanted<'_>) -> Option<Found> {
        let at = own.as_mut()?;
        at.next = 0;
        self.take(at, wanted)
    }

    /// From a cluster of a list, which becomes the CPU's own.
    fn take_from_list(
        &self,
        own: &mut Option<Position>,
        list: List,
        wanted: Wanted<'_>,
    ) -> Option<Found> {
        // A leaving device gives no slots of any cluster: without this check the loop would not
        // end.
        while !self.standing.is_closed()
            && let Some(cluster) = self.adopt(own, list)
        {
            let at = own.insert(Position { cluster, next: 0 });
            if let Some(found) = self.take(at, wanted) {
                return Some(found);
            }
        }
        None
    }

    /// Takes a cluster from a list and puts the CPU's own back; keeps it if the list is empty.
    fn adopt(&self, own: &mut Option<Position>, list: List) -> Option<u32> {
        let next = own.map_or(0, |own| own.cluster + 1);
        let taken = self.with_lists(|lists| match self.info().medium {
            Medium::SolidState => lists.take(list),
            Medium::Rotational => lists.take_from(list, next),
        })?;
        if let Some(old) = own.take() {
            self.put_back(old.cluster, ClusterLists::put);
        }
        Some(taken)
    }

    /// Puts a cluster that no CPU owns any more on its list.
    fn put_back(&self, cluster: u32, put: fn(&mut ClusterLists, u32, List)) {
        let map = self.clusters[cluster].lock();
        map.visits(1);
        self.with_lists(|lists| put(lists, cluster, self.list_of(cluster, &map)));
    }

    /// Called when the write to a slot failed, or was turned away: the CPU that owns the slot's
    /// cluster gives the cluster up, and the cluster goes to the end of its list. A cluster that is
    /// on a list stays where it is: once a CPU owns it, the next write fails, too.
    pub(super) fn set_aside(&self, slot: u32) {
        let cluster = slot / CLUSTER_SLOTS;
        if self.with_lists(|lists| lists.home(cluster)) != Home::Owned {
            return;
        }
        for cpu in 0..self.cpus.len() {
            self.with_cpu(cpu, |own| {
                if own.take_if(|own| own.cluster == cluster).is_some() {
                    self.standing.count_set_aside();
                    self.put_back(cluster, ClusterLists::put_last);
                }
            });
        }
    }

    /// Takes free slots of a cluster and adds their frames to the swap cache.
    fn take(&self, at: &mut Position, wanted: Wanted<'_>) -> Option<Found> {
        let len = self.slots_of(at.cluster);
        let mut map = self.clusters[at.cluster].lock();
        // Checked under the lock: either swapoff has not seen this cluster empty yet, or this check
        // sees that the device is leaving.
        if self.standing.is_closed() {
            return None;
        }
        let found = map.take(at.next, len, wanted.frames.len());
        map.visits(ClusterMap::visited(at.next, len, found));
        let (first, taken) = found?;
        at.next = first + taken;
        self.count_taken(wanted.cpu, at.cluster, &map, taken);
        let slot = at.cluster * CLUSTER_SLOTS + u32::from(first);
        self.cache.fill(slot, &wanted.frames[..usize::from(taken)]);
        Some((slot, usize::from(taken)))
    }
}
