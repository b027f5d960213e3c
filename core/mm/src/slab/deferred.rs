//! Objects freed after a grace period: threads may still read them without a lock (RCU).
//!
//! ```text
//! free_deferred ──> CPU: Lock<[batch of epoch 4][batch of 5][batch of 5 ..]>
//! end_grace_period: epoch 5 -> 6        free_expired: batches of epoch 4, up to a count
//! ```
//! A grace period ends when every thread that was reading at its start has finished. The caller
//! tracks its readers and reports the end. An object is freed when a grace period that started
//! after `free_deferred` has ended, so two ends later. It counts as free at once: to free it again
//! is an error.
//!
//! Locking: a CPU's queue has a lock (class `SlabCpu`) under which no other lock is taken.

use crate::lock_class;
use highwater_platform::{Atomic, Guard, Lock, Platform};
use highwater_units::CpuId;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;

/// Most objects of a batch, which are freed together.
const BATCH: usize = 64;

/// Objects that were freed during one grace period: slab and index.
struct Batch {
    epoch: u64,
    places: Vec<(u32, u16)>,
}

/// The objects that a CPU deferred.
#[derive(Default)]
struct Queue {
    /// The oldest first.
    batches: VecDeque<Batch>,
    /// Objects of all batches.
    objects: usize,
}

/// Objects that wait for the end of a grace period.
pub(super) struct Deferred<P: Platform> {
    /// The number of grace periods that have ended.
    epoch: P::Atomic<u64>,
    cpus: Vec<P::Lock<Queue>>,
}

impl<P: Platform> Deferred<P> {
    pub(super) fn new(platform: &P) -> Deferred<P> {
        let queue = |_| platform.new_lock(lock_class::SLAB_CPU, Queue::default());
        Deferred { epoch: Atomic::new(0), cpus: (0..platform.cpus()).map(queue).collect() }
    }

    /// Adds an object to a CPU's queue.
    pub(super) fn push(&self, cpu: impl FnOnce() -> CpuId, place: (u32, u16)) {
        let epoch = self.epoch.load(Acquire);
        let mut queue = self.cpus[usize::from(cpu().0)].lock();
        queue.visits(1);
        queue.objects += 1;
        match queue.batches.back_mut() {
            Some(last) if last.epoch == epoch && last.places.len() < BATCH => {
                last.places.push(place);
            }
            _ => {
                let mut places = Vec::with_capacity(BATCH);
                places.push(place);
                queue.batches.push_back(Batch { epoch, places });
            }
        }
    }

    /// Marks the end of a grace period, and the start of the next.
    pub(super) fn end_grace_period(&self) {
        self.epoch.fetch_add(1, AcqRel);
    }

    /// The number of grace periods that have ended.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// The number of objects on a CPU's queue.
    pub(super) fn len(&self, cpu: CpuId) -> usize {
        self.cpus[usize::from(cpu.0)].lock().objects
    }

    /// Removes up to `most` objects of a CPU's oldest batch, if no thread can read them at `epoch`.
    pub(super) fn pop_expired(
        &self,
        cpu: CpuId,
        epoch: u64,
        most: usize,
    ) -> Option<Vec<(u32, u16)>> {
        let mut queue = self.cpus[usize::from(cpu.0)].lock();
        let batch = queue.batches.front_mut().filter(|batch| batch.epoch + 2 <= epoch)?;
        let places = if batch.places.len() > most {
            batch.places.drain(..most).collect()
        } else {
            queue.batches.pop_front()?.places
        };
        queue.objects -= places.len();
        Some(places)
    }

    /// Removes all batches, a CPU at a time, and calls `free` with the objects of each.
    pub(super) fn drain(&self, free: impl Fn(&[(u32, u16)])) {
        for cpu in &self.cpus {
            let queue = std::mem::take(&mut *cpu.lock());
            queue.batches.iter().for_each(|batch| free(&batch.places));
        }
    }

    /// Calls `found` with every waiting object.
    pub(super) fn each(&self, mut found: impl FnMut(u32, u16)) {
        for cpu in &self.cpus {
            for batch in &cpu.lock().batches {
                batch.places.iter().for_each(|(id, index)| found(*id, *index));
            }
        }
    }
}
