//! A table of three levels, like a processor's: nodes (1 GiB of space) of 512 leaves (2 MiB) of 512
//! entries. Nodes and leaves are made at first use and never freed.
//!
//! An untouched terabyte costs 16 KiB, the first page in 2 MiB 4 KiB, as in the kernel, and the
//! first in a GiB 8 KiB more. With larger leaves, a program that touches the ends of thousands of
//! blocks of 64 MiB would pay half a gigabyte.

use highwater_platform::{Atomic, Atomics, Platform};
use highwater_units::Vpn;
use std::array;
use std::sync::OnceLock;

/// Entries in a leaf.
const LEAF: u64 = 512;
/// Leaves in a node.
const NODE: u64 = 512;

// Arrays: their length is known, so a walk has no bounds checks.
type Leaf<P> = Box<[<P as Atomics>::Atomic<u64>; LEAF as usize]>;
type Node<P> = Box<[OnceLock<Leaf<P>>; NODE as usize]>;

/// The entries of a space.
pub(super) struct Table<P: Platform> {
    nodes: Vec<OnceLock<Node<P>>>,
}

impl<P: Platform> Table<P> {
    pub(super) fn new(pages: u64) -> Table<P> {
        let nodes = pages.div_ceil(LEAF * NODE);
        Table { nodes: (0..nodes).map(|_| OnceLock::new()).collect() }
    }

    /// The entry of a page inside the space, making its node and leaf.
    pub(super) fn entry(&self, vpn: Vpn) -> &P::Atomic<u64> {
        let node = || Box::new(array::from_fn(|_| OnceLock::new()));
        let leaf = || Box::new(array::from_fn(|_| Atomic::new(0)));
        let leaves = self.nodes[(vpn.0 / (LEAF * NODE)) as usize].get_or_init(node);
        &leaves[(vpn.0 / LEAF % NODE) as usize].get_or_init(leaf)[(vpn.0 % LEAF) as usize]
    }

    /// The entry of a page inside the space; `None`: its leaf was never made.
    pub(super) fn made(&self, vpn: Vpn) -> Option<&P::Atomic<u64>> {
        let leaves = self.nodes[(vpn.0 / (LEAF * NODE)) as usize].get()?;
        Some(&leaves[(vpn.0 / LEAF % NODE) as usize].get()?[(vpn.0 % LEAF) as usize])
    }

    /// The first page from `vpn` to before `end` whose leaf exists.
    pub(super) fn next_made(&self, vpn: Vpn, end: Vpn) -> Option<Vpn> {
        let last = end.0.checked_sub(1)? / LEAF;
        let mut first = vpn.0 / LEAF;
        while first <= last {
            let after = (first / NODE + 1) * NODE;
            if let Some(leaf) = self.made_in(first, after.min(last + 1)) {
                return Some(Vpn((leaf * LEAF).max(vpn.0))).filter(|next| *next < end);
            }
            first = after;
        }
        None
    }

    /// The first leaf that exists from `first` to before `end`, all in one node.
    fn made_in(&self, first: u64, end: u64) -> Option<u64> {
        let leaves = self.nodes.get((first / NODE) as usize)?.get()?;
        let from = first % NODE;
        let some = &leaves[from as usize..(from + end - first) as usize];
        Some(first + some.iter().position(|leaf| leaf.get().is_some())? as u64)
    }
}
