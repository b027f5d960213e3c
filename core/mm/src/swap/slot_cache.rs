//! Slots that CPUs keep for later, and slots they have yet to give back: 64 of each.
//!
//! ```text
//! device -- search(64) --> take --> pages          release --> give -- 64 --> device, by cluster
//! ```
//! So a device's locks are taken once for 64 slots. As in the kernel (swap_slots.c), only while
//! free slots are plenty: on above 5 batches a CPU, off and drained below 2. Parked slots are not
//! free ([`super::cluster`]). Locking: a CPU's `take` first of all; `give` alone.

use super::cluster::CLUSTER_SLOTS;
use super::device::Device;
use super::search::{Use, Wanted};
use super::settings::Switch;
use crate::lock_class;
use highwater_platform::{Atomic, Guard, Lock, Platform};
use highwater_units::{CpuId, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// Slots that a CPU takes or gives back at a time (SWAP_SLOTS_CACHE_SIZE).
pub(super) const BATCH: usize = 64;
/// Batches for each CPU that must be free to begin, and to go on.
const PLENTY: u32 = 5;
const ENOUGH: u32 = 2;

/// The slot caches of a device.
pub(super) struct SlotCache<P: Platform> {
    /// By CPU: to be taken, the next last.
    take: Vec<P::Lock<Vec<u32>>>,
    /// By CPU: to be given back.
    give: Vec<P::Lock<Vec<u32>>>,
    active: P::Atomic<u32>,
}

impl<P: Platform> SlotCache<P> {
    /// All empty.
    pub(super) fn new(platform: &P) -> SlotCache<P> {
        let empty = |_| platform.new_lock(lock_class::SLOT_CACHE, Vec::new());
        let all = || (0..platform.cpus()).map(empty).collect();
        SlotCache { take: all(), give: all(), active: Atomic::new(0) }
    }

    /// Slots parked in all of them.
    pub(super) fn len(&self) -> u32 {
        self.take.iter().chain(&self.give).map(|slots| slots.lock().len() as u32).sum()
    }
}

impl<P: Platform> Device<P> {
    /// Whether slots are parked now; drains the caches when they no longer are.
    pub(super) fn parks(&self, cpu: CpuId) -> bool {
        if self.config.slot_cache == Switch::Off {
            return false;
        }
        let free = self.info().pages.saturating_sub(self.usage.about());
        let batches = self.cpus.len() as u32 * BATCH as u32;
        let active = self.slot_cache.active.load(Relaxed) == 1;
        match active {
            true if free < ENOUGH * batches => {
                self.slot_cache.active.store(0, Relaxed);
                self.drain(cpu);
                false
            }
            false if free > PLENTY * batches => {
                self.slot_cache.active.store(1, Relaxed);
                true
            }
            active => active,
        }
    }

    /// Slots for frames from this CPU's cache, refilled as need be.
    pub(super) fn alloc_parked(&self, cpu: CpuId, frames: &[Pfn]) -> Option<(u32, usize)> {
        if self.parks(cpu)
            && let Some(found) = self.take_parked(cpu, frames)
        {
            return Some(found);
        }
        self.alloc_direct(cpu, frames).or_else(|| {
            // What is left may be parked.
            self.drain(cpu);
            self.alloc_direct(cpu, frames)
        })
    }

    fn take_parked(&self, cpu: CpuId, frames: &[Pfn]) -> Option<(u32, usize)> {
        let mut slots = self.slot_cache.take[usize::from(cpu.0)].lock();
        slots.visits(1);
        while slots.is_empty() {
            self.refill(cpu, &mut slots)?;
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
        self.with(cpu, first, |map, at| {
            (at..).take(taken).for_each(|at| map.unpark(at));
            self.fill_table(first, &frames[..taken]);
        });
        Some((first, taken))
    }

    /// Parks up to a batch of slots; `None` if all are taken.
    fn refill(&self, cpu: CpuId, slots: &mut Vec<u32>) -> Option<()> {
        let whole = self.lock_slots();
        let mut found = None;
        while slots.len() < BATCH {
            let for_use = Use::Park(BATCH - slots.len());
            let Some((first, taken)) = self.search(Wanted { cpu, for_use }) else { break };
            slots.extend(first..first + taken as u32);
            found = Some(());
        }
        if let Some(whole) = &whole {
            whole.visits(slots.len());
        }
        // The lowest of what came last is taken first: runs stay runs.
        slots.reverse();
        found
    }

    /// Keeps a slot that nobody uses any more until there are 64.
    pub(super) fn park(&self, cpu: CpuId, slot: u32) {
        let mut slots = self.slot_cache.give[usize::from(cpu.0)].lock();
        slots.visits(1);
        slots.push(slot);
        if slots.len() >= BATCH {
            let batch = std::mem::take(&mut *slots);
            drop(slots);
            self.free_parked(cpu, batch);
        }
    }

    /// Frees parked slots, those of a cluster under one lock.
    pub(super) fn free_parked(&self, cpu: CpuId, mut slots: Vec<u32>) {
        slots.sort_unstable();
        let whole = self.lock_slots();
        if let Some(whole) = &whole {
            whole.visits(slots.len());
        }
        for cluster in slots.chunk_by(|a, b| a / CLUSTER_SLOTS == b / CLUSTER_SLOTS) {
            self.with_locked(cpu, cluster[0], |map, _| {
                cluster.iter().for_each(|slot| map.free_parked((slot % CLUSTER_SLOTS) as u16));
            });
        }
    }

    /// Gives back what all CPUs keep.
    fn drain(&self, cpu: CpuId) {
        for slots in self.slot_cache.take.iter().chain(&self.slot_cache.give) {
            let batch = std::mem::take(&mut *slots.lock());
            self.free_parked(cpu, batch);
        }
    }
}
