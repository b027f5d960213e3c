//! Pages that a pass has isolated from the LRU lists.

use super::folio::order_of;
use crate::lru::List;
use crate::machine::{Machine, Node};
use highwater_platform::Platform;
use highwater_units::{FrameBatch, Order, Pfn};

/// Isolated pages: those of one frame by list, and folios.
pub(super) struct Isolated {
    pub(super) batches: [FrameBatch; List::ALL.len()],
    /// Order, first frame and list of each.
    pub(super) folios: Vec<(Order, Pfn, List)>,
    /// Frames of all pages.
    pub(super) frames: usize,
}

impl Isolated {
    /// No pages.
    pub(super) fn none() -> Isolated {
        let batches = [FrameBatch::default(); List::ALL.len()];
        Isolated { batches, folios: Vec::new(), frames: 0 }
    }

    /// Adds the page whose first frame is `pfn`, isolated from `list`; returns how many frames it
    /// has, which cannot change while it is isolated.
    pub(super) fn push<P: Platform>(&mut self, m: &Machine<P>, pfn: Pfn, list: List) -> u32 {
        let order = order_of(m, pfn).unwrap_or(Order(0));
        match order {
            Order(0) => self.batches[list as usize].push(pfn),
            _ => self.folios.push((order, pfn, list)),
        }
        self.frames += order.frames() as usize;
        order.frames()
    }

    /// Number of pages of one frame.
    pub(super) fn singles(&self) -> usize {
        self.batches.iter().map(|batch| batch.len()).sum()
    }

    /// Puts all pages back on the lists they came from.
    pub(super) fn put_back<P: Platform>(&self, m: &Machine<P>, node: &Node<P>) {
        let heads = self.folios.iter().map(|(_, head, list)| (FrameBatch::one(*head), *list));
        let singles = self.batches.iter().copied().zip(List::ALL);
        for (batch, list) in singles.chain(heads) {
            m.free_to_zone(&node.lru.putback(&m.frames, &batch, list));
        }
    }
}
