//! Objects that somebody may still be looking at: freed when all who might have ended (RCU).
//!
//! ```text
//! free_deferred ──> CPU: Lock<[batch of epoch 4][batch of 5][batch of 5 ..]>
//! end_grace_period: epoch 5 -> 6        free_expired: batches of 4, as far as asked for
//! ```
//! Who reads without a lock is the caller's business: it says when a grace period has ended, that
//! is, when everybody who was reading when it began has stopped. An object that is given during one
//! waits for the next to end, too. Objects count as given back at once: to free one again is an
//! error.
//!
//! Locking: a CPU's queue has a lock of its own (class `SlabCpu`), under which nothing is locked.

use super::source::SlabPages;
use super::{Object, Slabs};
use crate::error::FreeError;
use crate::lock_class;
use highwater_platform::{Atomic, Cpu, Guard, Lock, Platform};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;

/// Objects of a batch: freed in one go.
const BATCH: usize = 64;

/// Objects that were given during one grace period.
pub(super) struct Batch {
    epoch: u64,
    places: Vec<(u32, u16)>,
}

/// What waits.
pub(super) struct Deferred<P: Platform> {
    /// Grace periods that have ended.
    epoch: P::Atomic<u64>,
    cpus: Vec<P::Lock<VecDeque<Batch>>>,
}

impl<P: Platform> Deferred<P> {
    pub(super) fn new(platform: &P) -> Deferred<P> {
        let queue = |_| platform.new_lock(lock_class::SLAB_CPU, VecDeque::new());
        Deferred { epoch: Atomic::new(0), cpus: (0..platform.cpus()).map(queue).collect() }
    }

    /// Calls `found` with the place of every object that waits.
    pub(super) fn each(&self, mut found: impl FnMut(u32, u16)) {
        for cpu in &self.cpus {
            for batch in cpu.lock().iter() {
                batch.places.iter().for_each(|(id, index)| found(*id, *index));
            }
        }
    }
}

impl<S: SlabPages> Slabs<S> {
    /// Gives an object back, to be used again when a grace period that has yet to begin has ended.
    ///
    /// # Errors
    /// As of [`Slabs::free`].
    pub fn free_deferred(&self, object: Object) -> Result<(), FreeError> {
        let place = self.hand_back(object)?;
        let epoch = self.deferred.epoch.load(Acquire);
        let mut queue = self.deferred.cpus[usize::from(self.platform().cpu().0)].lock();
        queue.visits(1);
        match queue.back_mut() {
            Some(last) if last.epoch == epoch && last.places.len() < BATCH => {
                last.places.push(place);
            }
            _ => {
                let mut places = Vec::with_capacity(BATCH);
                places.push(place);
                queue.push_back(Batch { epoch, places });
            }
        }
        Ok(())
    }

    /// Notes that a grace period has ended, and that the next begins. One caller at a time.
    pub fn end_grace_period(&self) {
        self.deferred.epoch.fetch_add(1, AcqRel);
    }

    /// Frees objects given on this CPU, the oldest first, that no one can be looking at any more:
    /// batches until there are `count`, or no more. Returns how many.
    pub fn free_expired(&self, count: usize) -> usize {
        let epoch = self.deferred.epoch.load(Acquire);
        let queue = &self.deferred.cpus[usize::from(self.platform().cpu().0)];
        let mut freed = 0;
        while freed < count {
            let mut queue = queue.lock();
            let expired = queue.front().is_some_and(|batch| batch.epoch + 2 <= epoch);
            if !expired {
                break;
            }
            let batch = queue.pop_front().expect("it was looked at");
            drop(queue);
            freed += batch.places.len();
            self.put_back(&batch.places);
        }
        freed
    }

    /// Frees all that waits, on all CPUs. Nobody reads without a lock any more.
    pub fn free_all_deferred(&self) {
        for cpu in &self.deferred.cpus {
            let batches = std::mem::take(&mut *cpu.lock());
            batches.iter().for_each(|batch| self.put_back(&batch.places));
        }
    }
}
