//! Statistics of free memory: blocks by order and migrate type, pageblocks by type, fragmentation.
//!
//! As text they read like /proc/buddyinfo, and [`Blocks::by_type`] like /proc/pagetypeinfo.

use super::buddy::{Buddy, ORDERS, TYPES};
use crate::frame::Mobility;
use highwater_units::{NodeId, Order};
use std::fmt;

/// The free blocks of a zone at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The zone's node.
    pub node: NodeId,
    /// Number of free blocks, by [`Mobility`] of their pageblock and by order.
    pub free: [[u32; ORDERS]; TYPES],
    /// Number of pageblocks by mobility.
    pub pageblocks: [u32; TYPES],
}

/// Whether a block of an order is free, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragmentation {
    /// A block is free (the kernel's -1000).
    Fits,
    /// Near 0: too little memory is free, and reclaim helps. Near 1000: free memory is fragmented,
    /// and compaction helps. Below 0: nearly all free memory is in one block.
    Index(i32),
}

impl Blocks {
    /// No blocks.
    pub(super) fn none(node: NodeId) -> Blocks {
        Blocks { node, free: [[0; ORDERS]; TYPES], pageblocks: [0; TYPES] }
    }

    /// Adds the blocks of a part.
    pub(super) fn add(&mut self, buddy: &Buddy) {
        for mobility in Mobility::ALL {
            for order in 0..ORDERS {
                let blocks = buddy.blocks(mobility, Order(order as u8));
                self.free[mobility as usize][order] += blocks;
            }
        }
        let sums = self.pageblocks.iter_mut().zip(buddy.pageblocks());
        sums.for_each(|(sum, blocks)| *sum += blocks);
    }

    /// Number of free blocks of an order, of all types.
    pub fn of(&self, order: Order) -> u32 {
        self.free.iter().map(|blocks| blocks[usize::from(order.0)]).sum()
    }

    /// Free frames.
    pub fn frames(&self) -> u32 {
        (0..=Order::MAX.0).map(|order| self.of(Order(order)) << order).sum()
    }

    /// The fragmentation index of `order` (fragmentation_index, mm/vmstat.c).
    pub fn fragmentation(&self, order: Order) -> Fragmentation {
        let orders = (0..=Order::MAX.0).map(Order);
        if orders.clone().any(|larger| larger >= order && self.of(larger) > 0) {
            return Fragmentation::Fits;
        }
        let blocks: u64 = orders.map(|order| u64::from(self.of(order))).sum();
        if blocks == 0 {
            return Fragmentation::Index(0);
        }
        let wanted = 1000 + u64::from(self.frames()) * 1000 / u64::from(order.frames());
        Fragmentation::Index(1000 - (wanted / blocks) as i32)
    }

    /// The part of the free frames that is not in blocks of `order` or more, in thousandths
    /// (unusable_index).
    pub fn unusable(&self, order: Order) -> u32 {
        let usable = (order.0..=Order::MAX.0).map(|order| self.of(Order(order)) << order);
        let (usable, all) = (usable.sum::<u32>(), self.frames());
        ((u64::from(all - usable) * 1000).checked_div(u64::from(all))).unwrap_or(1000) as u32
    }

    /// Text with a line for each migrate type.
    pub fn by_type(&self) -> ByType<'_> {
        ByType(self)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, count: impl Fn(usize) -> u32) -> fmt::Result {
        (0..ORDERS).try_for_each(|order| write!(f, " {:>6}", count(order)))
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node {}, zone {:>8}", self.node.0, "Normal")?;
        self.line(f, |order| self.of(Order(order as u8)))
    }
}

/// [`Blocks`] as text with a line for each migrate type.
pub struct ByType<'a>(&'a Blocks);

impl fmt::Display for ByType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.0;
        for mobility in Mobility::ALL {
            let (node, name) = (blocks.node.0, mobility.name());
            write!(f, "Node {node:>4}, zone {:>8}, type {name:>12}", "Normal")?;
            blocks.line(f, |order| blocks.free[mobility as usize][order])?;
            writeln!(f)?;
        }
        write!(f, "Number of blocks type    ")?;
        Mobility::ALL.into_iter().try_for_each(|mobility| write!(f, " {:>12}", mobility.name()))?;
        write!(f, "\nNode {}, zone {:>8}   ", blocks.node.0, "Normal")?;
        blocks.pageblocks.iter().try_for_each(|count| write!(f, " {count:>12}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics with these free blocks, by order.
    fn blocks(free: &[u32]) -> Blocks {
        let mut blocks = Blocks::none(NodeId(0));
        blocks.free[1][..free.len()].copy_from_slice(free);
        blocks
    }

    #[test]
    fn the_index_tells_too_little_memory_from_fragmentation() {
        use Fragmentation::{Fits, Index};
        // Blocks of order 0, 1, 2; order wanted -> index.
        let table = [
            (&[0, 0, 1][..], 2, Fits),
            (&[][..], 2, Index(0)),
            (&[1][..], 9, Index(-1)),
            (&[100][..], 9, Index(989)),
            (&[100_000][..], 9, Index(999)),
            (&[1, 1][..], 2, Index(125)),
            (&[1000, 0, 0][..], 1, Index(499)),
        ];
        for (free, order, expected) in table {
            assert_eq!(blocks(free).fragmentation(Order(order)), expected, "{free:?}");
        }
    }

    #[test]
    fn smaller_blocks_are_unusable() {
        let table = [(&[4, 0, 1][..], 2, 500), (&[0, 0, 7][..], 1, 0), (&[][..], 0, 1000)];
        for (free, order, expected) in table {
            assert_eq!(blocks(free).unusable(Order(order)), expected, "{free:?}");
        }
    }

    #[test]
    fn text_has_the_kernels_format() {
        let (text, types) = (blocks(&[3, 0, 5]).to_string(), blocks(&[3]).by_type().to_string());
        assert_eq!(&text[..45], "Node 0, zone   Normal      3      0      5   ");
        assert_eq!(types.lines().count(), 5);
        assert!(types.contains("type    Unmovable      3      0"), "{types}");
    }
}
