//! What balances anonymous pages against files' pages: refaults, and what they and rotations cost.
//!
//! ```text
//! eviction, activation --> age        a shadow of it stays in the page's entry
//! fault on a shadow    --> distance = age now - age then: pages that took its place meanwhile
//!                          not more than the lists that it competes with: it should have stayed
//! refaults, writes, rotations --> cost[kind]: the kind that costs less is scanned more
//! ```
//! Words, no lock: all are guesses. As in the kernel (`mm/workingset.c`, `lru_note_cost`).

use crate::frame::{Kind, Shadow};
use highwater_platform::{Atomic, Platform};
use std::sync::atomic::Ordering::Relaxed;

/// What a page read or written costs, in rotations of one (SWAP_CLUSTER_MAX).
const IO_COST: u64 = 32;

/// The recent past of a node's lists.
pub struct Workingset<P: Platform> {
    /// Evictions and activations of files' pages.
    age: P::Atomic<u64>,
    /// By [`Kind`].
    cost: [P::Atomic<u64>; 2],
    /// Refaults of files' pages that should have stayed.
    refaults: P::Atomic<u64>,
    /// Those that reclaim has acted on.
    acknowledged: P::Atomic<u64>,
    /// Batches that were due to anonymous pages while there were two kinds, in parts.
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

    /// Pages of files are evicted or activated; returns the age of now.
    pub fn age_by(&self, pages: usize) -> u64 {
        match pages {
            0 => self.age.load(Relaxed),
            pages => self.age.fetch_add(pages as u64, Relaxed) + pages as u64,
        }
    }

    /// Evictions and activations since a page left.
    pub fn distance(&self, shadow: Shadow) -> u64 {
        shadow.distance(self.age.load(Relaxed))
    }

    /// A file's page was read again that should have stayed.
    pub fn refault(&self) {
        self.refaults.fetch_add(1, Relaxed);
        self.age_by(1);
    }

    /// Whether pages were read again that should have stayed, since
    /// [`Workingset::acknowledge_refaults`].
    pub fn has_refaults(&self) -> bool {
        self.refaults.load(Relaxed) != self.acknowledged.load(Relaxed)
    }

    /// Reclaim has acted on the refaults so far.
    pub fn acknowledge_refaults(&self) {
        let refaults = self.refaults.load(Relaxed);
        if self.acknowledged.load(Relaxed) != refaults {
            self.acknowledged.store(refaults, Relaxed);
        }
    }

    /// Notes pages read again or written, and pages looked at in vain, on lists of `listed` pages
    /// in all. The past counts half whenever the sum exceeds a quarter of these.
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

    /// Adds to the turns that anonymous pages have had; returns what they were. Wraps around.
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
        assert_eq!(set.costs(), [17, 4], "nothing happened");
    }

    #[test]
    fn the_distance_counts_what_came_after() {
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
