//! Refault distances and costs, which balance anonymous pages against files' pages.
//!
//! ```text
//! eviction, activation --> age       a shadow with the age stays in the page's entry
//! fault on a shadow    --> distance = age now - age then
//!                          at most the size of the competing lists: the page should have stayed
//! refaults, writes, rotations --> cost[kind]: the cheaper kind is scanned more
//! ```
//! As in the kernel (`mm/workingset.c`, `lru_note_cost`). Locking: none; the words are estimates.

use crate::frame::{Kind, Shadow};
use highwater_platform::{Atomic, Platform};
use std::sync::atomic::Ordering::Relaxed;

/// The cost of a page read or written, in rotations (SWAP_CLUSTER_MAX).
const IO_COST: u64 = 32;

/// The recent history of a node's lists.
pub struct Workingset<P: Platform> {
    /// Evictions and activations of files' pages.
    age: P::Atomic<u64>,
    /// By [`Kind`].
    cost: [P::Atomic<u64>; 2],
    /// Refaults of files' pages that should have stayed.
    refaults: P::Atomic<u64>,
    /// The refaults that reclaim has acted on.
    acknowledged: P::Atomic<u64>,
    /// Sum of the anonymous pages' shares of batches so far; wraps around.
    turn: P::Atomic<u32>,
}

impl<P: Platform> Workingset<P> {
    pub(super) fn new() -> Workingset<P> {
        Workingset {
            age: Atomic::new(0),
            cost: [Atomic::new(0), Atomic::new(0)],
            refaults: Atomic::new(0),
            acknowledged: Atomic::new(0),
            turn: Atomic::new(0),
        }
    }

    /// Adds evictions or activations of files' pages; returns the new age.
    pub fn age_by(&self, pages: usize) -> u64 {
        match pages {
            0 => self.age.load(Relaxed),
            pages => self.age.fetch_add(pages as u64, Relaxed) + pages as u64,
        }
    }

    /// Evictions and activations since a page was evicted.
    pub fn distance(&self, shadow: Shadow) -> u64 {
        shadow.distance(self.age.load(Relaxed))
    }

    /// Notes that a file's page that should have stayed was read again.
    pub fn refault(&self) {
        self.refaults.fetch_add(1, Relaxed);
        self.age_by(1);
    }

    /// Whether pages that should have stayed were read again since
    /// [`Workingset::acknowledge_refaults`].
    pub fn has_refaults(&self) -> bool {
        self.refaults.load(Relaxed) != self.acknowledged.load(Relaxed)
    }

    /// Notes that reclaim has acted on the refaults so far.
    pub fn acknowledge_refaults(&self) {
        let refaults = self.refaults.load(Relaxed);
        if self.acknowledged.load(Relaxed) != refaults {
            self.acknowledged.store(refaults, Relaxed);
        }
    }

    /// Adds the costs of pages read again or written, and of pages scanned in vain. All costs are
    /// halved when their sum exceeds a quarter of the `listed` pages.
    pub fn note_cost(&self, kind: Kind, ios: u32, rotated: u32, listed: u32) {
        let cost = u64::from(ios) * IO_COST + u64::from(rotated);
        if cost == 0 {
            return;
        }
        self.cost[kind as usize].fetch_add(cost, Relaxed);
        if self.costs().iter().sum::<u64>() > u64::from(listed) / 4 {
            for cost in &self.cost {
                cost.store(cost.load(Relaxed) / 2, Relaxed);
            }
        }
    }

    /// By [`Kind`].
    pub fn costs(&self) -> [u64; 2] {
        self.cost.each_ref().map(|cost| cost.load(Relaxed))
    }

    /// Adds to the sum of anonymous pages' shares; returns the sum before.
    pub fn next_turn(&self, share: u32) -> u32 {
        self.turn.fetch_add(share, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::History;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::NodeId;

    #[test]
    fn costs_add_up_and_fade() {
        let set: Workingset<TestPlatform> = Workingset::new();
        set.note_cost(Kind::Anon, 1, 3, 1 << 20);
        set.note_cost(Kind::File, 0, 7, 1 << 20);
        assert_eq!(set.costs(), [35, 7]);
        set.note_cost(Kind::File, 0, 1, 100);
        assert_eq!(set.costs(), [17, 4], "43 is more than a quarter of 100");
        set.note_cost(Kind::Anon, 0, 0, 0);
        assert_eq!(set.costs(), [17, 4], "no cost");
    }

    #[test]
    fn the_distance_counts_later_evictions_and_activations() {
        let set: Workingset<TestPlatform> = Workingset::new();
        let shadow = Shadow::new(NodeId(0), set.age_by(10), History::New);
        assert_eq!(set.distance(shadow), 0);
        set.age_by(5);
        assert!(!set.has_refaults());
        set.refault();
        assert_eq!((set.distance(shadow), set.has_refaults()), (6, true));
        set.acknowledge_refaults();
        assert!(!set.has_refaults());
    }
}
