//! How reclaim finds out which pages of the active lists are in use.

use crate::lru::Kind;
use crate::machine::{Machine, Node};
use highwater_platform::{Platform, Recency};

/// How probes find the pages of a kind that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probing {
    /// By accessed bits, which cost nothing.
    AccessedBits,
    /// By unmapping whole blocks: a used page costs a fault, about half of a read from swap in
    /// memory.
    Blocks,
    /// By unmapping pages, but those seldom that were used each time: a read from a device costs
    /// as much as dozens of faults. Only where no files' pages compete, which would go instead.
    Sparing,
}

/// Decides how a node's pages of a kind are probed.
pub(super) fn probing<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) -> Probing {
    let slow = || !m.swap.is_in_memory() && node.lru.len_of(Kind::File) == 0;
    match (m.platform.recency(), kind) {
        (Recency::AccessedBit, _) => Probing::AccessedBits,
        (Recency::Unmapping, Kind::Anon) if slow() => Probing::Sparing,
        (Recency::Unmapping, _) => Probing::Blocks,
    }
}
