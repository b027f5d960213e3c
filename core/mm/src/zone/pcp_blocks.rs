//! Blocks on a CPU's list, in addition to single frames (pcp.rs).
//!
//! ```text
//! CpuBlocks -- a list for each migrate type and each frequent order: 0 to 3, and 9
//!           \- frames   in all of them: at most half of the CPU's limit
//! ```
//! These are the kernel's orders (PAGE_ALLOC_COSTLY_ORDER and large pages; 5.13 and later). A block
//! is on the list of the type that it was allocated as. Its pageblock may have another type, which
//! is known under the part's lock only.

use crate::frame::Mobility;
use highwater_units::{Order, Pfn};

/// The largest small order (PAGE_ALLOC_COSTLY_ORDER).
const SMALL_MAX: u8 = 3;
/// Number of orders that have lists.
const ORDERS: usize = SMALL_MAX as usize + 2;

/// One of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockList(usize);

impl BlockList {
    /// The list of an order, if it has one.
    pub(super) fn of(order: Order, mobility: Mobility) -> Option<BlockList> {
        let place = match order {
            Order(small) if small <= SMALL_MAX => usize::from(small),
            Order::LARGE => ORDERS - 1,
            _ => return None,
        };
        Some(BlockList(mobility as usize * ORDERS + place))
    }

    /// The order and type of the list.
    fn kind(self) -> (Order, Mobility) {
        let order = match self.0 % ORDERS {
            place if place == ORDERS - 1 => Order::LARGE,
            place => Order(place as u8),
        };
        (order, Mobility::ALL[self.0 / ORDERS])
    }
}

/// The blocks on one CPU's list.
#[derive(Debug, Default)]
pub(super) struct CpuBlocks {
    /// The newest last.
    lists: [Vec<Pfn>; ORDERS * Mobility::ALL.len()],
    frames: usize,
}

impl CpuBlocks {
    /// Frames in all blocks.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Adds a block as the newest.
    pub(super) fn push(&mut self, list: BlockList, first: Pfn) {
        self.lists[list.0].push(first);
        self.frames += list.kind().0.frames() as usize;
    }

    /// Removes the newest block.
    pub(super) fn pop(&mut self, list: BlockList) -> Option<Pfn> {
        let first = self.lists[list.0].pop()?;
        self.frames -= list.kind().0.frames() as usize;
        Some(first)
    }

    /// Calls `found` with every block.
    pub(super) fn each(&self, mut found: impl FnMut(Pfn, Order, Mobility)) {
        for (at, list) in self.lists.iter().enumerate() {
            let (order, mobility) = BlockList(at).kind();
            list.iter().for_each(|first| found(*first, order, mobility));
        }
    }

    /// Empties the lists.
    pub(super) fn clear(&mut self) {
        self.lists.iter_mut().for_each(Vec::clear);
        self.frames = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_orders_have_lists() {
        for mobility in Mobility::ALL {
            for order in (0..=Order::MAX.0).map(Order) {
                let has_list = [0, 1, 2, 3, 9].contains(&order.0);
                let list = BlockList::of(order, mobility);
                assert_eq!(list.map(BlockList::kind), has_list.then_some((order, mobility)));
            }
        }
    }
}
