//! How many slots of a device are used, and whether all are used. Each allocation reads this, so it
//! is kept without a word that all CPUs write for each slot.
//!
//! ```text
//! Usage -- [part]   slots a CPU took or freed since it last added them up: up to a batch
//!       |- folded   the sum: within a batch for each CPU of the exact number
//!       \- nonfull  clusters with free slots
//! ```
//! The kernel's percpu_counter. Locking: none. Parts, `nonfull` and the counts of a cluster change
//! under the cluster's lock. That a search finds no slot does not show that the device is full:
//! a cluster that moves meanwhile may be missed.

use highwater_platform::{Atomic, Platform};
use highwater_units::CpuId;
use std::sync::atomic::{AtomicI64, Ordering::*};

/// The most slots in a part.
const BATCH_MAX: u32 = 64;
/// All parts together have at most one slot in this many.
const ERROR_SHARE: u32 = 16;

/// A CPU's part, on a cache line of its own.
#[repr(align(64))]
struct Part(AtomicI64);

/// Used slots of a device.
pub(super) struct Usage<P: Platform> {
    folded: P::Atomic<u64>,
    parts: Vec<Part>,
    batch: i64,
    nonfull: P::Atomic<u32>,
}

impl<P: Platform> Usage<P> {
    /// No used slots, of `slots` in `clusters`.
    pub(super) fn new(cpus: usize, slots: u32, clusters: u32) -> Usage<P> {
        let fair = slots / ERROR_SHARE / cpus as u32;
        Usage {
            folded: Atomic::new(0),
            parts: (0..cpus).map(|_| Part(AtomicI64::new(0))).collect(),
            batch: i64::from(fair.clamp(1, BATCH_MAX)),
            nonfull: Atomic::new(clusters),
        }
    }

    /// Adds slots that were taken, or freed (below 0).
    pub(super) fn add(&self, cpu: CpuId, slots: i64) {
        let part = &self.parts[usize::from(cpu.0)].0;
        if (part.fetch_add(slots, Relaxed) + slots).abs() >= self.batch {
            self.folded.fetch_add(part.swap(0, Relaxed) as u64, Relaxed);
        }
    }

    /// Used slots, to within 1/16 of the device (or one for each CPU).
    pub(super) fn about(&self) -> u32 {
        whole(self.folded.load(Relaxed) as i64)
    }

    /// Used slots, exact while nothing changes. Reads every CPU's part.
    pub(super) fn exact(&self) -> u32 {
        let parts = self.parts.iter().map(|part| part.0.load(Relaxed));
        whole(self.folded.load(Relaxed) as i64 + parts.sum::<i64>())
    }

    /// Clusters with free slots.
    pub(super) fn nonfull(&self) -> u32 {
        self.nonfull.load(Relaxed)
    }

    /// Whether all slots are used.
    pub(super) fn is_full(&self) -> bool {
        self.nonfull() == 0
    }

    /// Notes that the last free slots of a cluster were taken.
    pub(super) fn filled_cluster(&self) {
        self.nonfull.fetch_sub(1, Relaxed);
    }

    /// Notes that slots of a full cluster were freed.
    pub(super) fn freed_of_full(&self) {
        self.nonfull.fetch_add(1, Relaxed);
    }
}

/// A number of slots: a sum read during changes may be off either way.
fn whole(sum: i64) -> u32 {
    sum.clamp(0, i64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::Prng;

    #[test]
    fn random_changes_are_counted_and_about_is_near() {
        let (slots, cpus) = (40_000, 24);
        let usage: Usage<TestPlatform> = Usage::new(cpus, slots, 1);
        let (mut random, mut used) = (Prng::new(3), 0i64);
        for _ in 0..20_000 {
            let change = random.below(33) as i64 - 16;
            let change = change.clamp(-used, i64::from(slots) - used);
            usage.add(CpuId(random.below(cpus as u64) as u16), change);
            used += change;
            assert_eq!(i64::from(usage.exact()), used);
            let error = (i64::from(usage.about()) - used).abs();
            assert!(error <= i64::from(slots / ERROR_SHARE), "{error}");
        }
    }
}
