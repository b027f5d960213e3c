//! The partial slabs of a memory node: some objects free, not a CPU's (kmem_cache_node).
//!
//! ```text
//! Node -- list: Lock<List>    front: taken first [slab .. slab .. slab] back: added here
//!      |- partial             its length, read without the lock
//!      \- slabs               the number of all slabs on the node
//! ```
//! Locking: `list` (the kernel's list_lock) comes after a CPU's lock. The links are in the slabs'
//! records. A slab is on the list exactly if it is not frozen and has free objects.

use super::record::{NO_SLAB, Slab};
use super::table::Table;
use crate::lock_class;
use highwater_platform::{Atomic, Platform};
use std::sync::atomic::Ordering::*;

/// The slabs of a cache on one node.
pub(super) struct Node<P: Platform> {
    pub(super) list: P::Lock<List>,
    partial: P::Atomic<u32>,
    pub(super) slabs: P::Atomic<u32>,
}

/// The ends of a list of slabs. Its node's lock protects it.
pub(super) struct List {
    ends: [u32; 2],
    len: u32,
}

const FRONT: usize = 0;
const BACK: usize = 1;

impl<P: Platform> Node<P> {
    pub(super) fn new(platform: &P) -> Node<P> {
        let list = List { ends: [NO_SLAB; 2], len: 0 };
        Node {
            list: platform.new_lock(lock_class::SLAB_NODE, list),
            partial: Atomic::new(0),
            slabs: Atomic::new(0),
        }
    }

    /// Slabs on the list, as of about now.
    pub(super) fn partial(&self) -> u32 {
        self.partial.load(Relaxed)
    }

    /// Adds a slab at the back.
    pub(super) fn add(&self, list: &mut List, table: &Table<P>, id: u32) {
        let back = list.ends[BACK];
        let slab = table.get(id);
        slab.near[FRONT].store(back, Relaxed);
        slab.near[BACK].store(NO_SLAB, Relaxed);
        match back {
            NO_SLAB => list.ends[FRONT] = id,
            back => table.get(back).near[BACK].store(id, Relaxed),
        }
        list.ends[BACK] = id;
        self.set_len(list, list.len + 1);
    }

    /// Takes a slab off.
    pub(super) fn remove(&self, list: &mut List, slab: &Slab<P>, table: &Table<P>) {
        let [front, back] = [FRONT, BACK].map(|end| slab.near[end].load(Relaxed));
        match front {
            NO_SLAB => list.ends[FRONT] = back,
            front => table.get(front).near[BACK].store(back, Relaxed),
        }
        match back {
            NO_SLAB => list.ends[BACK] = front,
            back => table.get(back).near[FRONT].store(front, Relaxed),
        }
        self.set_len(list, list.len - 1);
    }

    fn set_len(&self, list: &mut List, len: u32) {
        list.len = len;
        self.partial.store(len, Relaxed);
    }
}

impl List {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn front(&self) -> Option<u32> {
        (self.ends[FRONT] != NO_SLAB).then_some(self.ends[FRONT])
    }

    /// From front to back.
    pub(super) fn iter<'a, P: Platform>(
        &self,
        table: &'a Table<P>,
    ) -> impl Iterator<Item = u32> + 'a {
        std::iter::successors(self.front(), |id| {
            let next = table.get(*id).near[BACK].load(Relaxed);
            (next != NO_SLAB).then_some(next)
        })
    }
}
