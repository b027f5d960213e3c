//! The free blocks that a pass has isolated for pages to move to, by order (freepages lists of
//! compaction since Linux 6.9).
//!
//! ```text
//! lists  0: [] 1: [] 2: [A] 3: [B]      take(0) splits A and returns its first
//!        0: [A+1] 1: [A+2] 2: [] 3: [B]          frame; the rest stays on the lists
//! ```
//! A folio gets a block of its order, split off the smallest sufficient one, so that large blocks
//! are left for large folios. Frames taken one by one come in ascending order within a block, so
//! pages that are neighbours get adjacent frames. Conservation: `frames` is the sum of the lists;
//! the zone counts all of them as in use.

use highwater_units::{Order, Pfn};
use std::ops::Range;

const ORDERS: usize = Order::MAX.0 as usize + 1;

/// Free blocks by order.
#[derive(Debug, Default)]
pub(super) struct Targets {
    lists: [Vec<Pfn>; ORDERS],
    frames: usize,
}

impl Targets {
    /// Number of frames in all blocks.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Adds a block.
    pub(super) fn push(&mut self, first: Pfn, order: Order) {
        self.lists[usize::from(order.0)].push(first);
        self.frames += order.frames() as usize;
    }

    /// Whether there is a block of an order, or a larger one.
    pub(super) fn has(&self, order: Order) -> bool {
        self.lists[usize::from(order.0)..].iter().any(|list| !list.is_empty())
    }

    /// Removes a block of an order, split off a larger one if necessary.
    pub(super) fn take(&mut self, order: Order) -> Option<Pfn> {
        let (from, first) = (order.0..=Order::MAX.0)
            .find_map(|from| Some((from, self.lists[usize::from(from)].pop()?)))?;
        self.frames -= Order(from).frames() as usize;
        for rest in (order.0..from).rev().map(Order) {
            self.push(first.offset(rest.frames()), rest);
        }
        Some(first)
    }

    /// Removes this many frames; `None` if there are fewer.
    pub(super) fn take_frames(&mut self, count: usize) -> Option<Vec<Pfn>> {
        (count <= self.frames).then(|| {
            let frames = (0..count).map_while(|_| self.take(Order(0)));
            frames.collect()
        })
    }

    /// Removes the frames in a region that contains each block entirely or not at all.
    pub(super) fn take_within(&mut self, region: &Range<u32>) -> Vec<Pfn> {
        let mut taken = Vec::new();
        for (order, list) in self.lists.iter_mut().enumerate() {
            let frames = Order(order as u8).frames();
            for first in list.extract_if(.., |first| region.contains(&first.0)) {
                taken.extend((0..frames).map(|index| first.offset(index)));
            }
        }
        self.frames -= taken.len();
        taken
    }

    /// Removes all frames.
    pub(super) fn take_all(&mut self) -> Vec<Pfn> {
        self.take_within(&(0..u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    #[test]
    fn the_smallest_sufficient_block_is_split() {
        let mut targets = Targets::default();
        targets.push(Pfn(64), Order(3));
        targets.push(Pfn(32), Order(2));
        assert_eq!(targets.take(Order(1)), Some(Pfn(32)));
        assert_eq!(targets.take_frames(3), Some([34, 35, 64].map(Pfn).to_vec()));
        assert_eq!(targets.take(Order(3)), None, "it was split");
        assert_eq!(targets.take(Order(2)), Some(Pfn(68)));
        assert_eq!((targets.frames(), targets.take_frames(4)), (3, None));
        assert_eq!(targets.take_within(&(66..68)), [66, 67].map(Pfn));
        assert_eq!((targets.take_all(), targets.frames()), (vec![Pfn(65)], 0));
    }

    /// Compares with a set of frames: every block is aligned, complete, and removed once.
    #[test]
    fn blocks_are_whole_and_removed_once() {
        for seed in 0..20 {
            let (mut random, mut targets) = (Prng::new(seed), Targets::default());
            let mut inside = std::collections::BTreeSet::new();
            let mut outside: Vec<(Pfn, Order)> =
                (0..16).map(|block| (Pfn(block << Order::MAX.0), Order::MAX)).collect();
            for _ in 0..2000 {
                let order = Order(random.below(ORDERS as u64) as u8);
                if random.percent(50) && !outside.is_empty() {
                    let at = random.below(outside.len() as u64) as usize;
                    let (first, order) = outside.swap_remove(at);
                    targets.push(first, order);
                    (0..order.frames()).for_each(|i| assert!(inside.insert(first.0 + i)));
                } else if let Some(first) = targets.take(order) {
                    assert_eq!(first.0 % order.frames(), 0, "seed {seed}: aligned");
                    (0..order.frames()).for_each(|i| assert!(inside.remove(&(first.0 + i))));
                    outside.push((first, order));
                }
                assert_eq!(targets.frames(), inside.len(), "seed {seed}");
            }
            let mut left = targets.take_all();
            left.sort_unstable();
            assert!(left.iter().map(|pfn| pfn.0).eq(inside), "seed {seed}");
        }
    }
}
