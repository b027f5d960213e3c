//! A swap device with the locks, the caches and the tags of earlier kernels around today's.
//!
//! A method of this type hides the one of today's device ([`Deref`]) and calls it where no setting
//! of the past is in use.

use super::super::alloc::Wanted;
use super::super::cache::Cached;
use super::super::cluster::{CLUSTER_SLOTS, ClusterMap};
use super::super::device;
use super::super::lists::{ClusterLists, List};
use super::super::position::Fallback;
use super::super::standing::Turn;
use super::cache::{PARKED, SwapCache};
use super::scan::ScanPositions;
use super::slot_cache::{BATCH, Parking, SlotCache};
use super::tree::{TRUNK_SHIFT, Trees};
use crate::config::Config;
use crate::config::history::{CacheSplit, DeviceLock, ScanBase, SwapHistory, SwapIn};
use crate::lock_class;
use highwater_platform::{
    Atomic, DeviceInfo, DeviceRole, Guard, Io, Lock, Locks, Medium, Platform, Recency,
};
use highwater_units::{CpuId, IoFrames, Order, Pfn, RUN_PAGES_MAX, Slot};
use std::ops::Deref;

/// The lock of a whole device, held.
type Whole<'a, P> = <<P as Locks>::Lock<()> as Lock<()>>::Guard<'a>;

/// A swap device.
pub struct Device<P: Platform> {
    today: device::Device<P>,
    past: Option<Past<P>>,
    /// Empty unless `past` says otherwise.
    slot_cache: SlotCache<P>,
}

/// The additional state of a device of an earlier kernel.
struct Past<P: Platform> {
    settings: SwapHistory,
    /// The kernel's swap_info lock.
    whole: P::Lock<()>,
}

impl<P: Platform> Deref for Device<P> {
    type Target = device::Device<P>;

    fn deref(&self) -> &device::Device<P> {
        &self.today
    }
}

impl<P: Platform> Past<P> {
    /// The device's lock, where it guards counts.
    fn lock_counts(&self) -> Option<Whole<'_, P>> {
        (self.settings.device_lock == DeviceLock::Whole).then(|| self.whole.lock())
    }

    /// The device's lock, where slots are taken and freed under it.
    fn lock_slots(&self) -> Option<Whole<'_, P>> {
        (self.settings.device_lock != DeviceLock::Cluster).then(|| self.whole.lock())
    }
}

impl<P: Platform> Device<P> {
    /// A device with all slots free.
    pub(in crate::swap) fn new(
        platform: &P,
        index: u8,
        info: DeviceInfo,
        config: &Config,
    ) -> Device<P> {
        let settings = config.history.swap;
        let mut today = device::Device::new(platform, index, info, config);
        let slot_cache = SlotCache::new(platform);
        if settings == SwapHistory::default() {
            return Device { today, past: None, slot_cache };
        }
        let has_slots = today.info().role == DeviceRole::Swap;
        let slots = if has_slots { today.info().pages } else { 0 };
        if let Some(trees) = Trees::new(platform, slots, &settings) {
            today.cache = SwapCache::Trees(trees);
        }
        match settings.scan_base {
            _ if today.info().medium == Medium::Rotational => {}
            ScanBase::None => {}
            ScanBase::Shared => today.fallback = Fallback::Scan(Atomic::new(0)),
            ScanBase::PerCpu => {
                let positions = ScanPositions::new(platform.cpus(), today.info().pages);
                today.fallback = Fallback::ScanPerCpu(positions);
            }
        }
        if settings.cache == CacheSplit::Trunk {
            // CPUs take their first clusters one after the other: from different trees.
            let (count, apart) =
                (today.clusters.len() as usize, (1 << TRUNK_SHIFT) / CLUSTER_SLOTS);
            let apart = apart as usize;
            let list = if today.info().read_only { List::Full } else { List::Free };
            let order = (0..apart).flat_map(|column| (column..count).step_by(apart));
            let lists = ClusterLists::new(count, list, order);
            today.lists = platform.new_lock(lock_class::SWAP_DEVICE, lists);
        }
        let whole = platform.new_lock(lock_class::SWAP_INFO, ());
        Device { today, past: Some(Past { settings, whole }), slot_cache }
    }

    /// Slots in use, without those that CPUs keep.
    pub fn in_use(&self) -> u32 {
        match &self.past {
            // A slot may move from one number to the other between the two reads.
            Some(past) if past.settings.slot_cache => {
                self.today.in_use().saturating_sub(self.slot_cache.len())
            }
            _ => self.today.in_use(),
        }
    }

    /// Free slots that the device is believed to have room for.
    pub(in crate::swap) fn room(&self) -> u32 {
        match &self.past {
            None => self.today.room(),
            Some(_) => self.standing.room(self.info().pages.saturating_sub(self.in_use())),
        }
    }

    /// Whether a clean page should keep its slot: with reads through the swap cache, on any device.
    pub(in crate::swap) fn keeps_clean(&self, recency: Recency) -> bool {
        if self.reads_cached() { !self.is_scarce() } else { self.today.keeps_clean(recency) }
    }

    /// Whether readahead threads help: they read past the swap cache.
    pub(in crate::swap) fn reads_ahead(&self) -> bool {
        !self.reads_cached() && self.today.reads_ahead()
    }

    fn reads_cached(&self) -> bool {
        let cached = |past: &Past<P>| past.settings.swap_in == SwapIn::Cached;
        self.past.as_ref().is_some_and(cached)
    }

    /// Takes slots for the first of `frames`, from a slot cache where CPUs have any.
    pub(in crate::swap) fn alloc(
        &self,
        cpu: CpuId,
        frames: &[Pfn],
        turn: Turn,
    ) -> Option<(Slot, usize)> {
        let Some(past) = &self.past else { return self.today.alloc(cpu, frames, turn) };
        let most = self.standing.allows(frames.len(), turn);
        if most == 0 || !self.info().gives_slots() {
            return None;
        }
        let wanted = Wanted { cpu, frames: &frames[..most] };
        let (first, taken) = if past.settings.slot_cache {
            self.alloc_parked(past, wanted)?
        } else {
            self.alloc_direct(past, wanted)?
        };
        if let Some(trees) = self.cache.trees() {
            trees.insert(first, &frames[..taken]);
        }
        if turn == Turn::Last {
            self.standing.tries();
        }
        Some((self.slot(first), taken))
    }

    fn alloc_direct(&self, past: &Past<P>, wanted: Wanted<'_>) -> Option<(u32, usize)> {
        let _whole = past.lock_slots();
        self.search(wanted)
    }

    fn alloc_parked(&self, past: &Past<P>, wanted: Wanted<'_>) -> Option<(u32, usize)> {
        if self.parks(past, wanted.cpu)
            && let Some(found) = self.take_parked(past, wanted)
        {
            return Some(found);
        }
        self.alloc_direct(past, wanted).or_else(|| {
            // The free slots that are left may be parked.
            self.drain(past, wanted.cpu);
            self.alloc_direct(past, wanted)
        })
    }

    /// Whether slots are parked now; drains the caches when that ends.
    fn parks(&self, past: &Past<P>, cpu: CpuId) -> bool {
        if !past.settings.slot_cache {
            return false;
        }
        let free = self.info().pages.saturating_sub(self.usage.about());
        match self.slot_cache.parking(free, self.cpus.len()) {
            Parking::On => true,
            Parking::Off => false,
            Parking::Ended => {
                self.drain(past, cpu);
                false
            }
        }
    }

    fn take_parked(&self, past: &Past<P>, wanted: Wanted<'_>) -> Option<(u32, usize)> {
        let Wanted { cpu, frames } = wanted;
        let mut slots = self.slot_cache.take[usize::from(cpu.0)].lock();
        slots.visits(1);
        while slots.is_empty() {
            self.refill(past, cpu, &mut slots)?;
        }
        let first = slots.pop()?;
        let mut taken = 1;
        let adjacent = |slots: &Vec<u32>, taken: usize| {
            let next = first + taken as u32;
            slots.last() == Some(&next) && !next.is_multiple_of(CLUSTER_SLOTS)
        };
        while taken < frames.len() && adjacent(&slots, taken) {
            slots.pop();
            taken += 1;
        }
        drop(slots);
        self.with(cpu, first, |_, _| self.cache.fill(first, &frames[..taken]));
        Some((first, taken))
    }

    /// Parks up to a batch of slots; `None` if all are used.
    fn refill(&self, past: &Past<P>, cpu: CpuId, slots: &mut Vec<u32>) -> Option<()> {
        let whole = past.lock_slots();
        let mut found = None;
        while slots.len() < BATCH {
            let frames = &[PARKED; BATCH][slots.len()..];
            let Some((first, taken)) = self.search(Wanted { cpu, frames }) else { break };
            slots.extend(first..first + taken as u32);
            found = Some(());
        }
        if let Some(whole) = &whole {
            whole.visits(slots.len());
        }
        // The lowest slot is taken first: adjacent ones stay together.
        slots.reverse();
        found
    }

    /// Frees parked slots, those of a cluster under one lock.
    fn free_parked(&self, past: &Past<P>, cpu: CpuId, mut slots: Vec<u32>) {
        slots.sort_unstable();
        let whole = past.lock_slots();
        if let Some(whole) = &whole {
            whole.visits(slots.len());
        }
        for cluster in slots.chunk_by(|a, b| a / CLUSTER_SLOTS == b / CLUSTER_SLOTS) {
            self.today.with(cpu, cluster[0], |map, _| {
                for at in cluster.iter().map(|slot| (slot % CLUSTER_SLOTS) as u16) {
                    map.uncache(at);
                    map.release(at);
                }
            });
        }
    }

    /// Frees the parked slots of all CPUs.
    fn drain(&self, past: &Past<P>, cpu: CpuId) {
        let drained = self.slot_cache.drain().filter(|slots| !slots.is_empty());
        drained.for_each(|slots| self.free_parked(past, cpu, slots));
    }

    /// Takes an aligned run of slots.
    pub(in crate::swap) fn alloc_block(
        &self,
        cpu: CpuId,
        first: Pfn,
        order: Order,
    ) -> Option<Slot> {
        let Some(past) = &self.past else { return self.today.alloc_block(cpu, first, order) };
        if !self.takes_run(order) {
            return None;
        }
        let frames = IoFrames::Block(first, order);
        let slot = {
            let _whole = past.lock_slots();
            self.search_run(cpu, order, &frames)?
        };
        if let Some(trees) = self.cache.trees() {
            for (at, frames) in frames.lists() {
                trees.insert(slot + at as u32, &frames);
            }
        }
        Some(self.slot(slot))
    }

    /// Calls `act` under the lock of a slot's cluster, and the device's where that guards counts.
    fn with<R>(&self, cpu: CpuId, slot: u32, act: impl FnOnce(&mut ClusterMap, u16) -> R) -> R {
        let _whole = self.past.as_ref().and_then(Past::lock_counts);
        self.today.with(cpu, slot, act)
    }

    /// Takes a slot's frame out of the swap cache, if it is there.
    pub(in crate::swap) fn claim(&self, cpu: CpuId, slot: u32) -> Option<Pfn> {
        if self.past.is_none() {
            return self.today.claim(cpu, slot);
        }
        let Some(trees) = self.cache.trees() else {
            self.cache.get(slot)?;
            return self.with(cpu, slot, |map, at| self.claim_locked(slot, map, at));
        };
        let pfn = trees.remove(slot)?;
        self.with(cpu, slot, |map, at| map.uncache(at));
        Some(pfn)
    }

    /// Takes frames out of the swap cache after their write, except those that a fault claimed.
    pub(in crate::swap) fn uncache(
        &self,
        platform: &P,
        first: u32,
        frames: &[Pfn],
        mut outcome: impl FnMut(usize, Cached),
    ) {
        if self.past.is_none() {
            return self.today.uncache(platform, first, frames, outcome);
        }
        let cpu = platform.cpu();
        let slots = (first..).zip(frames).enumerate();
        let Some(trees) = self.cache.trees() else {
            for (index, (slot, pfn)) in slots {
                let uncache =
                    |map: &mut ClusterMap, at| self.uncache_locked(platform, slot, *pfn, map, at);
                outcome(index, self.with(cpu, slot, uncache));
            }
            return;
        };
        let mut results = [Cached::Claimed; RUN_PAGES_MAX];
        trees.remove_run(first, frames, |index, cached| results[index] = cached);
        for (index, (slot, _)) in slots {
            if results[index] == Cached::Removed {
                self.with(cpu, slot, |map, at| self.end_write(platform, slot, map, at));
            }
            outcome(index, results[index]);
        }
    }

    /// Drops a reference to a slot.
    pub(in crate::swap) fn release(&self, platform: &P, cpu: CpuId, slot: u32) {
        let Some(past) = &self.past else { return self.today.release(platform, cpu, slot) };
        let parks = self.parks(past, cpu);
        // With `Slots` the device's lock, under which a slot is freed, is not held for counts.
        let keeps = parks || past.settings.device_lock == DeviceLock::Slots;
        let kept = self.with(cpu, slot, |map, at| {
            self.discard_last(platform, slot, map, at);
            if keeps && map.is_last(at) {
                return map.cache(at);
            }
            map.release(at);
            false
        });
        if !kept {
            return;
        }
        let batch = if parks { self.slot_cache.park(cpu, slot) } else { Some(vec![slot]) };
        if let Some(batch) = batch {
            self.free_parked(past, cpu, batch);
        }
    }

    /// Adds a reference to a slot.
    pub(in crate::swap) fn duplicate(&self, cpu: CpuId, slot: u32) {
        match &self.past {
            None => self.today.duplicate(cpu, slot),
            Some(_) => self.with(cpu, slot, |map, at| map.duplicate(at)),
        }
    }

    /// Reads a batch, through the swap cache where kernels did.
    pub(in crate::swap) fn read(&self, platform: &P, batch: &mut [Io]) {
        // Inherited slots are the parent's to count, and pages of files have none.
        if !self.reads_cached() || !self.info().gives_slots() {
            return self.today.read(platform, batch);
        }
        // In ascending order, so that two readers of the same slots do not wait for each other.
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_by_key(|index| batch[*index].slot);
        for io in order.into_iter().map(|index| &batch[index]) {
            let lists = io.frames.lists();
            lists.for_each(|(at, list)| self.enter(platform, io.slot + at as u32, &list));
        }
        self.today.read(platform, batch);
        batch.iter().for_each(|io| self.leave(platform, io.slot, io.frames.len()));
    }

    /// Adds frames that are going to be read. A reader of another page with the same slot waits;
    /// look-ups find no frame before it is filled.
    pub(in crate::swap) fn enter(&self, platform: &P, first: u32, frames: &[Pfn]) {
        for slot in (first..).take(frames.len()) {
            let mut attempt = 0;
            // A thread that removes a frame from a tree changes the record afterwards.
            while !self.with(platform.cpu(), slot, |map, at| map.cache(at)) {
                platform.relax(attempt);
                attempt += 1;
            }
        }
        if let Some(trees) = self.cache.trees() {
            trees.insert_unseen(first, frames);
        }
    }

    /// Removes frames that were read.
    pub(in crate::swap) fn leave(&self, platform: &P, first: u32, slots: usize) {
        if let Some(trees) = self.cache.trees() {
            trees.remove_unseen(first, slots);
        }
        for slot in (first..).take(slots) {
            self.with(platform.cpu(), slot, |map, at| map.uncache(at));
        }
    }

    pub(in crate::swap) fn write(&self, platform: &P, batch: &mut [Io]) {
        self.tag(batch, true);
        self.today.write(platform, batch);
        self.tag(batch, false);
    }

    pub(in crate::swap) fn start_write(&self, platform: &P, batch: &mut [Io]) -> P::Transfer {
        self.tag(batch, true);
        self.today.start_write(platform, batch)
    }

    pub(in crate::swap) fn finish_write(
        &self,
        platform: &P,
        transfer: P::Transfer,
        batch: &mut [Io],
    ) {
        self.today.finish_write(platform, transfer, batch);
        self.tag(batch, false);
    }

    /// Tags the slots of a write that begins, and clears the tags when it ends.
    fn tag(&self, batch: &[Io], is_written: bool) {
        let tags = self.past.as_ref().is_some_and(|past| past.settings.writeback_tags);
        if let Some(trees) = self.cache.trees()
            && tags
            && self.info().role == DeviceRole::Swap
        {
            batch.iter().for_each(|io| trees.tag(io.slot, io.frames.len(), is_written));
        }
    }

    /// Calls `found` with (slot, count, cached) of every slot in use but the parked ones; checks
    /// that parked slots have no other use, and that trees have no frames of free slots.
    pub(crate) fn each_used(&self, mut found: impl FnMut(Slot, u32, bool)) {
        let mut used = Vec::new();
        self.today.each_used(|slot, count, cached| used.push((slot, count, cached)));
        let parked = self.slot_cache.parked();
        let frames = used.iter().filter(|(.., cached)| *cached).count();
        if let Some(trees) = self.cache.trees() {
            assert_eq!(frames, trees.len(), "frames of the cache belong to slots in use");
        }
        let (kept, others): (Vec<_>, Vec<_>) =
            used.into_iter().partition(|(slot, ..)| parked.contains(&slot.index));
        let unused = |(_, count, cached): &(Slot, u32, bool)| (*count, *cached) == (1, false);
        assert!(kept.len() == parked.len() && kept.iter().all(unused), "parked slots are kept");
        others.into_iter().for_each(|(slot, count, cached)| found(slot, count, cached));
    }
}
