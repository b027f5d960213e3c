//! Frees memory of caches: objects that CPUs keep, and empty slabs.

use super::Slabs;
use super::cache::{Cache, CpuSlabs, Doomed};
use super::record::{Chain, Freed, Taken, freed};
use super::source::SlabPages;
use crate::machine::Shrinker;
use highwater_platform::{Cpu, Guard, Lock};
use highwater_units::CpuId;

impl<S: SlabPages> Shrinker for Slabs<S> {
    fn shrink(&self) -> u64 {
        Slabs::shrink(self)
    }
}

impl<S: SlabPages> Slabs<S> {
    /// Empties the sheaves and partial lists of CPUs and frees all empty slabs; returns how many
    /// pages were freed. Objects that wait for the end of a grace period stay.
    pub fn shrink(&self) -> u64 {
        self.caches().map(|cache| self.shrink_cache(cache)).sum()
    }

    fn shrink_cache(&self, cache: &Cache<S::Platform>) -> u64 {
        let kept = cache.sheaves.as_ref().map_or(0, |sheaves| self.empty_sheaves(sheaves));
        let mut doomed = Doomed::default();
        for cpu in 0..cache.cpus.len() as u16 {
            let mut mine = cache.cpus[usize::from(cpu)].lock();
            self.flush(cache, CpuId(cpu), &mut mine, &mut doomed);
        }
        let cpu = self.platform().cpu();
        let mut mine = cache.cpus[usize::from(cpu.0)].lock();
        for node in &cache.nodes {
            let mut list = node.list.lock();
            list.visits(list.len() as usize);
            let is_empty = |id: &u32| self.table.get(*id).state().out == 0;
            let empty: Vec<u32> = list.iter(&self.table).filter(is_empty).collect();
            for id in &empty {
                node.remove(&mut list, self.table.get(*id), &self.table);
            }
            drop(list);
            empty.iter().for_each(|id| self.doom(cache, cpu, &mut mine, *id, &mut doomed));
        }
        drop(mine);
        kept + self.give_pages(doomed)
    }

    /// Moves a CPU's slabs to the nodes (flush_slab, unfreeze_partials).
    pub(super) fn flush(
        &self,
        cache: &Cache<S::Platform>,
        cpu: CpuId,
        mine: &mut CpuSlabs,
        doomed: &mut Doomed,
    ) {
        if let Some(id) = mine.slab.take() {
            let slab = self.table.get(id);
            let own = mine.head.take().or_else(|| match slab.take_list() {
                Taken::Objects(first) => Some(first),
                Taken::Full => None,
            });
            if let Some(first) = own {
                let mut chain = Chain { first, last: first, count: 1 };
                while let Some(next) = slab.next(chain.last) {
                    (chain.last, chain.count) = (next, chain.count + 1);
                }
                let mut before = slab.state();
                loop {
                    slab.link(chain.last, before.head);
                    let Freed::Stays(after) = freed(before, chain) else {
                        unreachable!("a CPU's slab is frozen")
                    };
                    match slab.change(before, after) {
                        Ok(()) => break,
                        Err(now) => before = now,
                    }
                }
                mine.partial.push(id);
            }
        }
        if !mine.partial.is_empty() {
            self.unfreeze(cache, cpu, mine, doomed);
        }
    }
}
