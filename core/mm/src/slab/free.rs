//! Frees objects into their slabs, from any CPU (__slab_free).
//!
//! ```text
//! the CPU's own slab                        its free list, no exchange
//! a frozen slab, or one with free objects   one exchange of its state
//! a full slab                               this CPU freezes it and adds it to its partial list;
//!                                           a full partial list goes to the nodes at once
//! a node's slab that becomes empty          kept or freed, under the node's lock
//! ```
//! Locking: the lock of the CPU that frees, then a node's.

use super::Slabs;
use super::cache::{Cache, CpuSlabs, Doomed, Event};
use super::object::{CacheId, Object};
use super::record::{Chain, Freed, Pages, Slab, State, freed};
use super::source::{SlabPages, page_count};
use crate::error::FreeError;
use highwater_platform::{Atomic, Cpu, Guard, Lock};
use highwater_units::{CpuId, PAGE_SHIFT};
use std::sync::atomic::Ordering::Relaxed;

impl<S: SlabPages> Slabs<S> {
    /// Frees an object, on any CPU.
    ///
    /// # Errors
    /// No object begins there, or it is free already; nothing changes.
    pub fn free(&self, object: Object) -> Result<(), FreeError> {
        let place = self.mark_free(object)?;
        self.put_back(&[place]);
        Ok(())
    }

    /// Frees objects together: cheaper than one by one if objects of a slab are adjacent.
    ///
    /// # Errors
    /// The error of the first object that cannot be freed; all others are freed.
    pub fn free_bulk(&self, objects: &[Object]) -> Result<(), FreeError> {
        let mut outcome = Ok(());
        let mut found = Vec::with_capacity(objects.len());
        for object in objects {
            match self.mark_free(*object) {
                Ok(place) => found.push(place),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        self.put_back(&found);
        outcome
    }

    /// Frees an object after a grace period that starts after this call.
    ///
    /// # Errors
    /// See [`Slabs::free`].
    pub fn free_deferred(&self, object: Object) -> Result<(), FreeError> {
        let place = self.mark_free(object)?;
        self.deferred.push(|| self.platform().cpu(), place);
        Ok(())
    }

    /// Marks the end of a grace period, and the start of the next. One caller at a time.
    pub fn end_grace_period(&self) {
        self.deferred.end_grace_period();
    }

    /// The number of this CPU's deferred objects, whether or not their grace period has ended.
    pub fn deferred_here(&self) -> usize {
        self.deferred.len(self.platform().cpu())
    }

    /// Frees up to `count` deferred objects of this CPU whose grace period has ended, oldest first;
    /// returns how many.
    pub fn free_expired(&self, count: usize) -> usize {
        let (epoch, cpu) = (self.deferred.epoch(), self.platform().cpu());
        let mut freed = 0;
        while freed < count
            && let Some(places) = self.deferred.pop_expired(cpu, epoch, count - freed)
        {
            freed += places.len();
            self.put_back(&places);
        }
        freed
    }

    /// Frees all deferred objects of all CPUs. No thread may be reading them.
    pub fn free_all_deferred(&self) {
        self.deferred.drain(|places| self.put_back(places));
    }

    /// The slab and index of an object.
    #[inline]
    pub(super) fn find(&self, object: Object) -> Result<(u32, u16), FreeError> {
        let id = self.map.get(object.0 >> PAGE_SHIFT).ok_or(FreeError::Foreign)?;
        let index = self.table.get(id).index_of(object.0).ok_or(FreeError::Foreign)?;
        Ok((id, index))
    }

    /// Marks an object free; it is not on a free list yet.
    fn mark_free(&self, object: Object) -> Result<(u32, u16), FreeError> {
        let (id, index) = self.find(object)?;
        self.table.get(id).mark_free(index)?;
        Ok((id, index))
    }

    /// Puts free objects into the sheaves of their caches, or into their slabs.
    fn put_back(&self, places: &[(u32, u16)]) {
        let cache_of = |place: &(u32, u16)| self.table.get(place.0).cache;
        for same in places.chunk_by(|a, b| cache_of(a) == cache_of(b)) {
            match &self.cache(cache_of(&same[0])).sheaves {
                Some(sheaves) => self.put_in_sheaves(sheaves, same),
                None => {
                    self.put_places(same);
                }
            }
        }
    }

    /// Puts free objects into their slabs, adjacent ones of a slab together; returns how many pages
    /// were freed.
    pub(super) fn put_places(&self, places: &[(u32, u16)]) -> u64 {
        let mut indices = Vec::new();
        let put = |same: &[(u32, u16)]| {
            indices.clear();
            indices.extend(same.iter().map(|(_, index)| *index));
            self.put_objects(same[0].0, &indices)
        };
        places.chunk_by(|a, b| a.0 == b.0).map(put).sum()
    }

    /// Puts free objects of one slab into it; returns how many pages were freed.
    fn put_objects(&self, id: u32, indices: &[u16]) -> u64 {
        let slab = self.table.get(id);
        let cache = self.cache(slab.cache);
        indices.windows(2).for_each(|pair| slab.link(pair[0], Some(pair[1])));
        let (first, last) = (indices[0], indices[indices.len() - 1]);
        let chain = Chain { first, last, count: indices.len() as u16 };
        let cpu = self.platform().cpu();
        let mut doomed = Doomed::default();
        let mut mine = cache.cpus[usize::from(cpu.0)].lock();
        mine.visits(1);
        if mine.slab == Some(id) {
            slab.link(last, mine.head);
            mine.head = Some(first);
            cache.count(cpu, Event::FreeFastpath, indices.len());
            return 0;
        }
        cache.count(cpu, Event::FreeSlowpath, indices.len());
        self.put_chain(cache, cpu, &mut mine, (id, slab), chain, &mut doomed);
        drop(mine);
        self.give_pages(doomed)
    }

    /// Puts a chain into a slab that the CPU does not allocate from.
    fn put_chain(
        &self,
        cache: &Cache<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
        (id, slab): (u32, &Slab<S::Platform>),
        chain: Chain,
        doomed: &mut Doomed,
    ) {
        let mut before = slab.state();
        loop {
            slab.link(chain.last, before.head);
            let after = match freed(before, chain) {
                Freed::Stays(after) | Freed::Freezes(after) => after,
                Freed::Empties(_) => {
                    match self.empty(cache, cpu, mine, (id, slab), chain, doomed) {
                        Ok(()) => return,
                        Err(now) => before = now,
                    }
                    continue;
                }
            };
            match slab.change(before, after) {
                Err(now) => before = now,
                Ok(()) if before.frozen => return cache.count(cpu, Event::FreeFrozen, 1),
                Ok(()) if after.frozen => break,
                Ok(()) => return,
            }
        }
        cache.count(cpu, Event::CpuPartialFree, 1);
        if mine.partial.len() >= cache.sizing.cpu_slabs {
            self.unfreeze(cache, cpu, mine, doomed);
        }
        mine.partial.push(id);
    }

    /// Puts the last objects into a slab on a node's list, and frees the slab if the node has
    /// enough partial ones. Fails with the state if that has changed and another case applies.
    fn empty(
        &self,
        cache: &Cache<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
        (id, slab): (u32, &Slab<S::Platform>),
        chain: Chain,
        doomed: &mut Doomed,
    ) -> Result<(), State> {
        let node = &cache.nodes[slab.node() % cache.nodes.len()];
        let mut list = node.list.lock();
        list.visits(1);
        let before = slab.state();
        slab.link(chain.last, before.head);
        let Freed::Empties(after) = freed(before, chain) else { return Err(before) };
        slab.change(before, after)?;
        if list.len() >= cache.sizing.min_partial {
            node.remove(&mut list, slab, &self.table);
            drop(list);
            self.doom(cache, cpu, mine, id, doomed);
        }
        Ok(())
    }

    /// Moves the CPU's partial slabs to the lists of their nodes, and frees empty ones if a node
    /// has enough partial ones (__unfreeze_partials).
    pub(super) fn unfreeze(
        &self,
        cache: &Cache<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
        doomed: &mut Doomed,
    ) {
        let slabs = std::mem::take(&mut mine.partial);
        let node_of = |id: &u32| self.table.get(*id).node() % cache.nodes.len();
        let mut empty = Vec::new();
        for same in slabs.chunk_by(|a, b| node_of(a) == node_of(b)) {
            let node = &cache.nodes[node_of(&same[0])];
            let mut list = node.list.lock();
            list.visits(same.len());
            for id in same {
                let state = self.table.get(*id).unfreeze();
                if state.out == 0 && list.len() >= cache.sizing.min_partial {
                    empty.push(*id);
                } else {
                    node.add(&mut list, &self.table, *id);
                }
            }
        }
        empty.iter().for_each(|id| self.doom(cache, cpu, mine, *id, doomed));
        cache.count(cpu, Event::CpuPartialDrain, 1);
        mine.partial = slabs;
        mine.partial.clear();
    }

    /// Ends an empty slab that is on no list; its pages are freed later.
    pub(super) fn doom(
        &self,
        cache: &Cache<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
        id: u32,
        doomed: &mut Doomed,
    ) {
        let slab = self.table.get(id);
        let pages = slab.pages();
        self.map.set(pages.first, pages.order, None);
        cache.nodes[slab.node() % cache.nodes.len()].slabs.fetch_sub(1, Relaxed);
        cache.count(cpu, Event::FreeSlab, 1);
        cache.put_record(mine, id);
        doomed.0.push((pages, cache.id));
    }

    /// Frees the pages of ended slabs; returns how many. No lock is held.
    pub(super) fn give_pages(&self, doomed: Doomed) -> u64 {
        let give = |(pages, cache): &(Pages, CacheId)| {
            self.source.give(pages.first, pages.order, *cache);
            page_count(pages.order)
        };
        doomed.0.iter().map(give).sum()
    }
}
