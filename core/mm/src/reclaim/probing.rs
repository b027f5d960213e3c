//! How reclaim finds out which pages of the active lists are in use.

use crate::lru::Kind;
use crate::machine::{Machine, Node};
use highwater_platform::{Platform, Recency};

/// How probes find the pages of a kind that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probing {
    /// By accessed bits, which cost nothing.
    AccessedBits,
    /// By unmapping whole blocks: a used page costs a fault.
    Blocks,
    /// By unmapping pages, but seldom those that each probe so far found used. Where faults follow
    /// each other fast, as with swap in memory, a page reaches the end of the inactive list before
    /// it is used again, so one probe cannot tell pages in use from others. Chosen only where no
    /// pages of files compete: these would be evicted instead.
    Sparing,
}

/// Decides how a node's pages of a kind are probed.
pub(super) fn probing<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) -> Probing {
    match (m.platform.recency(), kind) {
        (Recency::AccessedBit, _) => Probing::AccessedBits,
        (Recency::Unmapping, Kind::Anon) if node.lru.len_of(Kind::File) == 0 => Probing::Sparing,
        (Recency::Unmapping, _) => Probing::Blocks,
    }
}
