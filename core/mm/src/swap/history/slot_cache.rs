//! Slots that a CPU keeps to allocate from, and freed slots that it has yet to give back (Linux
//! 4.11 to 6.13, swap_slots.c).
//!
//! ```text
//! device -- 64 at a time --> take -- one --> page        page -- release --> give -- 64 --> device
//! ```
//! So the locks of a device are taken once for 64 slots. As in the kernel, slots are cached only
//! while free slots are plenty: caching begins above 5 batches for each CPU and ends when 2 are
//! left; then the caches are drained. A parked slot has a count of 1 and is marked as cached, but
//! the swap cache has no frame for it. Locking: a CPU's `take` comes first of all locks of swap;
//! `give` is taken alone.

use crate::lock_class;
use highwater_platform::{Atomic, Guard, Lock, Platform};
use highwater_units::CpuId;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Slots that a CPU takes or gives back at a time (SWAP_SLOTS_CACHE_SIZE).
pub(super) const BATCH: usize = 64;

/// Free batches for each CPU: with the first number parking begins, and below the second it ends.
const PLENTY: u32 = 5;
const ENOUGH: u32 = 2;

/// The slot caches of a device.
pub(super) struct SlotCache<P: Platform> {
    /// By CPU: slots to allocate from, the next one last.
    pub(super) take: Vec<P::Lock<Vec<u32>>>,
    /// By CPU: slots to give back.
    give: Vec<P::Lock<Vec<u32>>>,
    active: P::Atomic<u32>,
}

/// Whether slots are parked.
pub(super) enum Parking {
    On,
    Off,
    /// Off from now on: the caches are to be drained.
    Ended,
}

impl<P: Platform> SlotCache<P> {
    /// Empty caches.
    pub(super) fn new(platform: &P) -> SlotCache<P> {
        let empty = |_| platform.new_lock(lock_class::SLOT_CACHE, Vec::new());
        let all = || (0..platform.cpus()).map(empty).collect();
        SlotCache { take: all(), give: all(), active: Atomic::new(0) }
    }

    /// Whether slots are parked while `free` are free and `cpus` CPUs have a cluster.
    pub(super) fn parking(&self, free: u32, cpus: usize) -> Parking {
        let batches = cpus as u32 * BATCH as u32;
        if self.active.load(Relaxed) == 1 {
            if free >= ENOUGH * batches {
                return Parking::On;
            }
            self.active.store(0, Relaxed);
            return Parking::Ended;
        }
        if free <= PLENTY * batches {
            return Parking::Off;
        }
        self.active.store(1, Relaxed);
        Parking::On
    }

    /// Parks a freed slot. Returns a full batch, which is to be given back.
    pub(super) fn park(&self, cpu: CpuId, slot: u32) -> Option<Vec<u32>> {
        let mut slots = self.give[usize::from(cpu.0)].lock();
        slots.visits(1);
        slots.push(slot);
        (slots.len() >= BATCH).then(|| std::mem::take(&mut *slots))
    }

    /// The caches of all CPUs, emptied one by one.
    pub(super) fn drain(&self) -> impl Iterator<Item = Vec<u32>> {
        self.caches().map(|slots| std::mem::take(&mut *slots.lock()))
    }

    /// Slots parked in all of them.
    pub(super) fn len(&self) -> u32 {
        self.caches().map(|slots| slots.lock().len() as u32).sum()
    }

    /// The parked slots.
    pub(super) fn parked(&self) -> BTreeSet<u32> {
        self.caches().flat_map(|slots| slots.lock().clone()).collect()
    }

    fn caches(&self) -> impl Iterator<Item = &P::Lock<Vec<u32>>> {
        self.take.iter().chain(&self.give)
    }
}
