//! Where the next slots come from.
//!
//! ```text
//! ScanBase::None     own cluster onwards, free and sparse clusters, own from its start, a non-full
//!                    one, what other CPUs own
//! Shared, PerCpu     own cluster onwards, free clusters, then slot by slot from a base
//! ```
//! A CPU allocates from a cluster of its own, so that runs stay adjacent and CPUs apart. Without a
//! base it takes free clusters first where a device gains from long runs; where slots are memory,
//! sparse ones, so that a device holds about twice its pages at most.
//!
//! With a base, a device in whose every cluster something is used is scanned from there on. A
//! shared base leads all CPUs to the same 64 MiB, and so to the same tree of the swap cache (what
//! S0 measured); with a base each, they go to others, at random, at the end of every 64 MiB.
//!
//! A rotational device has one cluster for all CPUs, then the next free one up, then the base.

use super::cache::TRUNK_SHIFT;
use super::cluster::{CLUSTER_SLOTS, ClusterMap, Purpose};
use super::device::Device;
use super::lists::List;
use super::settings::ScanBase;
use highwater_platform::{Atomic, Guard, Latency, Lock, Medium, Platform};
use highwater_units::{CpuId, Pfn, Prng};
use std::sync::atomic::Ordering::Relaxed;

/// A CPU's cluster and where in it to look next.
#[derive(Clone, Copy)]
struct Current {
    cluster: u32,
    next: u16,
}

/// Where a CPU allocates from.
pub(super) struct CpuState {
    current: Option<Current>,
    /// Where it scans on, under [`ScanBase::PerCpu`].
    base: u32,
    random: Prng,
}

impl CpuState {
    /// No cluster yet, and any place to scan from.
    pub(super) fn new(cpu: usize, slots: u32) -> CpuState {
        let mut random = Prng::new(cpu as u64);
        CpuState { current: None, base: random.below(u64::from(slots.max(1))) as u32, random }
    }
}

/// What slots are taken for: the frames, or how many.
#[derive(Clone, Copy)]
pub(super) enum Use<'a> {
    /// For these frames, as many as are adjacent.
    Pages(&'a [Pfn]),
    /// At most so many, to be parked.
    Park(usize),
}

/// Slots to take, by a CPU.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) cpu: CpuId,
    pub(super) for_use: Use<'a>,
}

impl Wanted<'_> {
    fn most(&self) -> usize {
        match self.for_use {
            Use::Pages(frames) => frames.len(),
            Use::Park(slots) => slots,
        }
    }

    fn purpose(&self) -> Purpose {
        match self.for_use {
            Use::Pages(_) => Purpose::Pages,
            Use::Park(_) => Purpose::Park,
        }
    }
}

/// The first slot, and how many.
type Found = (u32, usize);

impl<P: Platform> Device<P> {
    /// Slots for frames, past the slot caches.
    pub(super) fn alloc_direct(&self, cpu: CpuId, frames: &[Pfn]) -> Option<Found> {
        let _whole = self.lock_slots();
        self.search(Wanted { cpu, for_use: Use::Pages(frames) })
    }

    /// Slots from anywhere, under the device's lock if that is its. `None`: all are taken.
    pub(super) fn search(&self, wanted: Wanted<'_>) -> Option<Found> {
        let mine = usize::from(wanted.cpu.0) % self.cpus.len();
        let near = self.with_cpu(mine, |state| self.alloc_onwards(state, wanted));
        if near.is_some() || self.usage.is_full() {
            return near;
        }
        let anywhere = || match self.config.scan_base {
            ScanBase::None => self.alloc_anywhere(wanted),
            ScanBase::Shared | ScanBase::PerCpu => {
                self.with_cpu(mine, |state| self.scan_own(state, wanted))
            }
        };
        // Once more before all are said to be taken: slots freed after this are noticed.
        let found = anywhere().or_else(|| {
            self.usage.search(wanted.cpu);
            anywhere()
        });
        match found {
            Some(_) => self.usage.found_room(),
            None => self.usage.found_none(wanted.cpu),
        }
        found
    }

    /// From a cluster that lists know, or one that a CPU has.
    fn alloc_anywhere(&self, wanted: Wanted<'_>) -> Option<Found> {
        let mine = usize::from(wanted.cpu.0);
        let found = self.with_cpu(mine, |state| self.alloc_own(state, wanted));
        let of_other = |other| self.with_cpu(other, |state| self.alloc_at(state, wanted));
        found.or_else(|| (0..self.cpus.len()).find_map(of_other))
    }

    /// Acts on where a CPU allocates from, under its lock.
    fn with_cpu<R>(&self, cpu: usize, act: impl FnOnce(&mut CpuState) -> R) -> R {
        let mut state = self.cpus[cpu].lock();
        state.visits(1);
        act(&mut state)
    }

    /// From this CPU's cluster, or another made this CPU's.
    fn alloc_own(&self, state: &mut CpuState, wanted: Wanted<'_>) -> Option<Found> {
        let first = match self.info().latency {
            // What was written before has its room in the file.
            Latency::Asynchronous if !self.standing.is_open() => [List::Sparse, List::Nonfull],
            Latency::Asynchronous => [List::Free, List::Sparse],
            Latency::Synchronous => [List::Sparse, List::Free],
        };
        let fresh = first.into_iter().find_map(|list| self.alloc_from(state, list, wanted));
        let last = [List::Nonfull, List::Free];
        fresh
            .or_else(|| self.alloc_at(state, wanted))
            .or_else(|| last.into_iter().find_map(|list| self.alloc_from(state, list, wanted)))
    }

    /// From a free cluster, or else from a base on.
    fn scan_own(&self, state: &mut CpuState, wanted: Wanted<'_>) -> Option<Found> {
        let found = self.alloc_from(state, List::Free, wanted);
        found.or_else(|| match self.config.scan_base {
            ScanBase::PerCpu => {
                let (slot, taken) = self.scan(state.base, wanted)?;
                state.base = self.base_after(slot, taken, Some(&mut state.random));
                Some((slot, taken))
            }
            ScanBase::Shared | ScanBase::None => {
                let (slot, taken) = self.scan(self.base.load(Relaxed), wanted)?;
                self.base.store(self.base_after(slot, taken, None), Relaxed);
                Some((slot, taken))
            }
        })
    }

    /// Where to scan next. At the end of a trunk, with `random`: at the start of another.
    fn base_after(&self, slot: u32, taken: usize, random: Option<&mut Prng>) -> u32 {
        let next = slot + taken as u32;
        let crosses = slot >> TRUNK_SHIFT != next >> TRUNK_SHIFT;
        let pages = self.info().pages;
        match random.filter(|_| crosses || next >= pages) {
            Some(random) => random.below(u64::from(pages)) as u32 >> TRUNK_SHIFT << TRUNK_SHIFT,
            None if next >= pages => 0,
            None => next,
        }
    }

    /// The first free slots from `base` on, around the whole device.
    fn scan(&self, base: u32, wanted: Wanted<'_>) -> Option<Found> {
        let count = self.clusters.len() as u32;
        let first = base / CLUSTER_SLOTS;
        // The first cluster twice: from the base on, and at last from its start.
        (0..=count).find_map(|step| {
            let cluster = (first + step) % count;
            let next = if step == 0 { (base % CLUSTER_SLOTS) as u16 } else { 0 };
            self.take(&mut Current { cluster, next }, wanted)
        })
    }

    /// From the cluster a CPU has, after where it was.
    fn alloc_onwards(&self, state: &mut CpuState, wanted: Wanted<'_>) -> Option<Found> {
        let unfinished = |at: &&mut Current| at.next < self.slots_of(at.cluster);
        state.current.as_mut().filter(unfinished).and_then(|at| self.take(at, wanted))
    }

    /// From the start of the cluster a CPU has.
    fn alloc_at(&self, state: &mut CpuState, wanted: Wanted<'_>) -> Option<Found> {
        let at = state.current.as_mut()?;
        at.next = 0;
        self.take(at, wanted)
    }

    /// From a cluster of a list, made this CPU's.
    fn alloc_from(&self, state: &mut CpuState, list: List, wanted: Wanted<'_>) -> Option<Found> {
        while let Some(cluster) = self.adopt(state, list) {
            let at = state.current.insert(Current { cluster, next: 0 });
            if let Some(found) = self.take(at, wanted) {
                return Some(found);
            }
        }
        None
    }

    /// Gives the current cluster back and takes one from a list; keeps it if the list is empty.
    fn adopt(&self, state: &mut CpuState, list: List) -> Option<u32> {
        let next = state.current.map_or(0, |current| current.cluster + 1);
        let taken = self.with_lists(|lists| match self.info().medium {
            Medium::SolidState => lists.take(list),
            Medium::Rotational => lists.take_from(list, next),
        })?;
        if let Some(old) = state.current.take() {
            let map = self.clusters[old.cluster as usize].lock();
            map.visits(1);
            self.with_lists(|lists| lists.put(old.cluster, self.list_of(old.cluster, &map)));
        }
        Some(taken)
    }

    /// Free slots of a cluster, and their frames into the swap cache where it is the cluster's.
    fn take(&self, at: &mut Current, wanted: Wanted<'_>) -> Option<Found> {
        let len = self.slots_of(at.cluster);
        let mut map = self.clusters[at.cluster as usize].lock();
        let found = map.take(at.next, len, wanted.most(), wanted.purpose());
        map.visits(ClusterMap::visited(at.next, len, found));
        let (first, taken) = found?;
        at.next = first + taken;
        self.usage.add(wanted.cpu, i64::from(taken));
        let slot = at.cluster * CLUSTER_SLOTS + u32::from(first);
        if let Use::Pages(frames) = wanted.for_use {
            self.fill_table(slot, &frames[..usize::from(taken)]);
        }
        Some((slot, usize::from(taken)))
    }
}
