//! Takes free frames above a watermark, nearest node first (get_page_from_freelist).

use crate::machine::{Machine, Node};
use crate::zone::{Level, Mobility};
use highwater_platform::Platform;
use highwater_units::{FrameList, Order, Pfn};

/// Up to `wanted` frames.
pub(super) fn frames<P: Platform>(
    m: &Machine<P>,
    wanted: usize,
    level: Level,
) -> Option<FrameList> {
    let cpu = m.cpu();
    let mut taken = m.nodes_from(cpu).map(|(_, node)| node.zone.alloc(cpu, wanted, level));
    taken.find(|frames| !frames.is_empty())
}

/// A block; it counts as in use.
pub(super) fn block<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    level: Level,
) -> Option<Pfn> {
    let mut nodes = m.nodes_from(m.cpu());
    nodes.find_map(|(_, node)| block_on(m, node, order, mobility, level))
}

/// A block of one node; it counts as in use.
pub(super) fn block_on<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    order: Order,
    mobility: Mobility,
    level: Level,
) -> Option<Pfn> {
    let first = node.zone.alloc_block(m.cpu(), order, mobility, level)?;
    m.taken(order.frames() as usize);
    Some(first)
}
