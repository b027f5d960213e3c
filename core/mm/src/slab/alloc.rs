//! Allocation from slabs: the CPU's free list, and its refill (___slab_alloc).
//!
//! ```text
//! free list -> objects that others freed into the CPU's slab -> partial slabs: the CPU's, its
//! node's, other nodes' -> a new slab
//! ```
//! The last step may wait for memory, so it releases the CPU's lock. The thread may then be on
//! another CPU, or another thread may have refilled this one: the new slab becomes a partial slab.

use super::Slabs;
use super::cache::{Cache, CpuSlabs, Event};
use super::node::Node;
use super::object::{CacheId, Object};
use super::record::{Pages, Taken};
use super::sizing::objects_in;
use super::source::SlabPages;
use highwater_platform::Atomic;
use highwater_platform::{Cpu, Guard, Lock};
use highwater_units::{CpuId, Order};
use std::sync::atomic::Ordering::Relaxed;

/// The result of a refill of a CPU's free list.
enum Refill {
    /// The list has objects.
    Done,
    /// A new slab is needed; this is its record.
    Grow(u32),
    /// A new slab is needed, but there are no more records.
    Nothing,
}

impl<S: SlabPages> Slabs<S> {
    /// Allocates an object; `None` if there is no memory.
    pub fn alloc(&self, cache: CacheId) -> Option<Object> {
        let mut object = None;
        self.alloc_bulk(cache, 1, |one| object = Some(one));
        object
    }

    /// Allocates up to `count` objects together; returns how many there was memory for.
    pub fn alloc_bulk(&self, cache: CacheId, count: usize, mut each: impl FnMut(Object)) -> usize {
        let cache = self.cache(cache);
        let allocated = |id, index| {
            let slab = self.table.get(id);
            slab.mark_used(index);
            each(Object(slab.address_of(index)));
        };
        match &cache.sheaves {
            Some(sheaves) => self.take_from_sheaves(cache, sheaves, count, allocated),
            None => self.take_objects(cache, count, allocated),
        }
    }

    /// Takes free objects from the CPU's free list, refilling it as needed; they stay marked free.
    pub(super) fn take_objects(
        &self,
        cache: &Cache<S::Platform>,
        count: usize,
        mut each: impl FnMut(u32, u16),
    ) -> usize {
        let mut cpu = self.platform().cpu();
        let mut mine = cache.cpus[usize::from(cpu.0)].lock();
        let mut taken = 0;
        while taken < count {
            let popped = self.pop(&mut mine, count - taken, &mut each);
            cache.count(cpu, Event::AllocFastpath, popped);
            taken += popped;
            if taken == count {
                break;
            }
            cache.count(cpu, Event::AllocSlowpath, 1);
            match self.refill(cache, cpu, &mut mine) {
                Refill::Done => {}
                Refill::Nothing => break,
                Refill::Grow(record) => {
                    drop(mine);
                    let grown = self.grow(cache, record);
                    cpu = self.platform().cpu();
                    mine = cache.cpus[usize::from(cpu.0)].lock();
                    if !self.adopt(cache, cpu, &mut mine, record, grown) {
                        break;
                    }
                }
            }
        }
        mine.visits(taken);
        taken
    }

    /// Takes up to `count` objects from the CPU's free list.
    fn pop(&self, mine: &mut CpuSlabs, count: usize, each: &mut impl FnMut(u32, u16)) -> usize {
        let Some(id) = mine.slab else { return 0 };
        let slab = self.table.get(id);
        let mut popped = 0;
        while let Some(index) = mine.head.filter(|_| popped < count) {
            mine.head = slab.next(index);
            each(id, index);
            popped += 1;
        }
        popped
    }

    /// Refills the CPU's free list, which is empty.
    fn refill(&self, cache: &Cache<S::Platform>, cpu: CpuId, mine: &mut CpuSlabs) -> Refill {
        let mut event = Event::AllocRefill;
        loop {
            if let Some(id) = mine.slab {
                match self.table.get(id).take_list() {
                    Taken::Objects(first) => {
                        mine.head = Some(first);
                        cache.count(cpu, event, 1);
                        return Refill::Done;
                    }
                    Taken::Full => mine.slab = None,
                }
            }
            event = Event::CpuPartialAlloc;
            mine.slab = mine.partial.pop();
            if mine.slab.is_none() {
                break;
            }
        }
        let own = usize::from(self.platform().node_of(cpu).0) % cache.nodes.len();
        for step in 0..cache.nodes.len() {
            let node = &cache.nodes[(own + step) % cache.nodes.len()];
            // Other nodes keep their minimum.
            let least = if step == 0 { 0 } else { cache.sizing.min_partial };
            if node.partial() > least && self.take_partial(cache, node, cpu, mine) {
                #[cfg(feature = "history")]
                cache.from_other.fetch_add(u64::from(step > 0), Relaxed);
                return Refill::Done;
            }
        }
        cache.take_record(mine, &self.table).map_or(Refill::Nothing, Refill::Grow)
    }

    /// Takes the first slab of a node's list to allocate from, and fills half of the CPU's partial
    /// list with the next ones (get_partial_node). Returns whether there was a slab.
    fn take_partial(
        &self,
        cache: &Cache<S::Platform>,
        node: &Node<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
    ) -> bool {
        let mut list = node.list.lock();
        let mut moved = 0;
        while let Some(id) = list.front() {
            let slab = self.table.get(id);
            node.remove(&mut list, slab, &self.table);
            moved += 1;
            if moved == 1 {
                mine.head = Some(slab.take_from_node());
                mine.slab = Some(id);
                continue;
            }
            slab.freeze();
            mine.partial.push(id);
            if mine.partial.len() > cache.sizing.cpu_slabs / 2 {
                break;
            }
        }
        list.visits(moved);
        drop(list);
        if moved > 0 {
            cache.count(cpu, Event::AllocFromPartial, 1);
            cache.count(cpu, Event::CpuPartialNode, moved - 1);
        }
        moved > 0
    }

    /// Allocates a slab, frozen; returns its first object. No lock is held.
    fn grow(&self, cache: &Cache<S::Platform>, record: u32) -> Option<u16> {
        let (order, least) = (cache.sizing.order, cache.sizing.order_min);
        let run =
            |order: Order| self.source.take(order, cache.id).map(|first| Pages { first, order });
        let pages = run(order).or_else(|| if least < order { run(least) } else { None })?;
        let node = self.source.node_of(pages.first);
        let slab = self.table.get(record);
        let head = slab.begin(pages, node, objects_in(pages.order, cache.sizing.size));
        self.map.set(pages.first, pages.order, Some(record));
        cache.nodes[slab.node() % cache.nodes.len()].slabs.fetch_add(1, Relaxed);
        Some(head)
    }

    /// Gives a new slab to a CPU, or returns its record if there was no memory. Returns whether the
    /// CPU has a slab to allocate from.
    fn adopt(
        &self,
        cache: &Cache<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
        record: u32,
        grown: Option<u16>,
    ) -> bool {
        let Some(head) = grown else {
            cache.put_record(mine, record);
            return mine.slab.is_some();
        };
        cache.count(cpu, Event::AllocSlab, 1);
        match mine.slab {
            None => (mine.slab, mine.head) = (Some(record), Some(head)),
            Some(_) => {
                self.table.get(record).put_all(head);
                mine.partial.push(record);
            }
        }
        true
    }
}
