//! Objects back into slabs (__slab_free), from any CPU.
//!
//! ```text
//! slab of this CPU ── its own list
//! another, frozen, or with other objects free ── one exchange of its state
//! one that was full ── frozen: this CPU's partial list; the oldest of it to the nodes, all at once
//! one that is empty now, on a node's list ── kept, or its pages given back, under the node's lock
//! ```

use super::cache::{Cache, CpuSlabs, Doomed, Event};
use super::record::{Chain, Freed, Pages, Slab, State, freed};
use super::source::{SlabPages, page_count};
use super::{CacheId, Object, Slabs};
use crate::error::FreeError;
use highwater_platform::{Atomic, Cpu, Guard, Lock};
use highwater_units::{CpuId, PAGE_SHIFT};
use std::sync::atomic::Ordering::Relaxed;

impl<S: SlabPages> Slabs<S> {
    /// Gives an object back, whoever has allocated it, on whatever CPU.
    ///
    /// # Errors
    /// It is none, or is free already: nothing has changed.
    pub fn free(&self, object: Object) -> Result<(), FreeError> {
        let place = self.hand_back(object)?;
        self.put_back(&[place]);
        Ok(())
    }

    /// Gives objects back in one go: cheaper where those of a slab follow each other.
    ///
    /// # Errors
    /// The first that is none, or free already; all others are given back.
    pub fn free_bulk(&self, objects: &[Object]) -> Result<(), FreeError> {
        let mut outcome = Ok(());
        let mut found = Vec::with_capacity(objects.len());
        for object in objects {
            match self.hand_back(*object) {
                Ok(place) => found.push(place),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        self.put_back(&found);
        outcome
    }

    /// Where an object is, if it is one.
    #[inline]
    pub(super) fn find(&self, object: Object) -> Result<(u32, u16), FreeError> {
        let id = self.map.get(object.0 >> PAGE_SHIFT).ok_or(FreeError::Foreign)?;
        let index = self.table.get(id).index_of(object.0).ok_or(FreeError::Foreign)?;
        Ok((id, index))
    }

    /// Notes that an object came back.
    pub(super) fn hand_back(&self, object: Object) -> Result<(u32, u16), FreeError> {
        let (id, index) = self.find(object)?;
        self.table.get(id).hand_back(index)?;
        Ok((id, index))
    }

    /// Puts objects that nobody has where their caches have them first.
    pub(super) fn put_back(&self, places: &[(u32, u16)]) {
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

    /// Puts objects that nobody has into their slabs, those of one that follow each other together.
    /// Returns how many pages were given back for that.
    pub(super) fn put_places(&self, places: &[(u32, u16)]) -> u64 {
        let mut indices = Vec::new();
        let put = |same: &[(u32, u16)]| {
            indices.clear();
            indices.extend(same.iter().map(|(_, index)| *index));
            self.put_objects(same[0].0, &indices)
        };
        places.chunk_by(|a, b| a.0 == b.0).map(put).sum()
    }

    /// The same with objects of one slab.
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

    /// Puts a chain into a slab that is not the CPU's present one.
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

    /// Puts the last objects into a slab of a node's list; of more empty ones than are kept, it is
    /// given back. Fails with its state, if it is another slab's case by now.
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

    /// Moves the CPU's partial slabs to the lists of their nodes; of more empty ones than are kept,
    /// the pages are given back (__unfreeze_partials).
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
                match state.out == 0 && list.len() >= cache.sizing.min_partial {
                    true => empty.push(*id),
                    false => node.add(&mut list, &self.table, *id),
                }
            }
        }
        empty.iter().for_each(|id| self.doom(cache, cpu, mine, *id, doomed));
        cache.count(cpu, Event::CpuPartialDrain, 1);
        mine.partial = slabs;
        mine.partial.clear();
    }

    /// Ends an empty slab that is on no list.
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

    /// Gives the pages of ended slabs back; returns how many. No lock is held.
    pub(super) fn give_pages(&self, doomed: Doomed) -> u64 {
        let give = |(pages, cache): &(Pages, CacheId)| {
            self.source.give(pages.first, pages.order, *cache);
            page_count(pages.order)
        };
        doomed.0.iter().map(give).sum()
    }
}
