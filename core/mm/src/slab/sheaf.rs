//! Allocation and free through sheaves: most objects never touch their slab.
//!
//! ```text
//! alloc: main -- spare -- a full sheaf of the barn -- slabs, a sheaf at a time
//! free:  main, or away[node] -- spare -- the node's barn -- slabs
//! ```
//! Sheaves as in Linux 6.18, with three differences: a node has several barns; a barn may hold more
//! full sheaves than 10, by memory and CPUs; objects of another node return to that node a sheaf at
//! a time. For its user an object in a sheaf is free, for its slab it is out.
//!
//! No lock of sheaves is held while slabs are used.

use super::Slabs;
use super::barn::{CpuSheaves, Exchanged, Sheaf, Sheaves};
use super::cache::Cache;
use super::source::SlabPages;
use highwater_platform::{Cpu, Guard, Lock};
use highwater_units::CpuId;

impl<S: SlabPages> Slabs<S> {
    /// Takes `count` objects from the CPU's sheaves, from its barn, or from slabs, a sheaf at a
    /// time.
    pub(super) fn take_from_sheaves(
        &self,
        cache: &Cache<S::Platform>,
        sheaves: &Sheaves<S::Platform>,
        count: usize,
        mut each: impl FnMut(u32, u16),
    ) -> usize {
        let mut taken = 0;
        while taken < count {
            taken += self.take_cached(sheaves, count - taken, &mut each);
            if taken == count {
                break;
            }
            let mut filled = Sheaf::with_capacity(sheaves.capacity);
            self.take_objects(cache, sheaves.capacity, |id, index| filled.push((id, index)));
            if filled.is_empty() {
                break;
            }
            let own = filled.len().min(count - taken);
            filled.drain(filled.len() - own..).for_each(|(id, index)| each(id, index));
            taken += own;
            self.put_in_sheaves(sheaves, &filled);
        }
        taken
    }

    /// Takes up to `count` objects from the CPU's sheaves and its barn.
    fn take_cached(
        &self,
        sheaves: &Sheaves<S::Platform>,
        count: usize,
        each: &mut impl FnMut(u32, u16),
    ) -> usize {
        let cpu = self.platform().cpu();
        let node = self.home_of(cpu);
        let mut mine = sheaves.cpus[usize::from(cpu.0)].lock();
        let mut taken = 0;
        while taken < count {
            if let Some((id, index)) = mine.main.pop() {
                each(id, index);
                taken += 1;
                continue;
            }
            let CpuSheaves { main, spare, .. } = &mut *mine;
            if !spare.is_empty() {
                std::mem::swap(main, spare);
            } else if sheaves.exchange_empty(node, cpu, main) == Exchanged::NoneFull {
                break;
            }
        }
        mine.visits(taken);
        taken
    }

    /// Puts objects into the CPU's sheaves. A full sheaf goes to a barn; if that has no room, its
    /// objects go to their slabs.
    pub(super) fn put_in_sheaves(&self, sheaves: &Sheaves<S::Platform>, places: &[(u32, u16)]) {
        let cpu = self.platform().cpu();
        let own = self.home_of(cpu);
        let mut rest: Vec<Sheaf> = Vec::new();
        let mut mine = sheaves.cpus[usize::from(cpu.0)].lock();
        mine.visits(places.len());
        for place in places {
            let node = self.table.get(place.0).node() % self.nodes;
            let CpuSheaves { main, spare, away } = &mut *mine;
            let sheaf = if node == own { main } else { &mut away[node] };
            if sheaf.len() >= sheaves.capacity {
                if node == own && spare.len() < sheaves.capacity {
                    std::mem::swap(sheaf, spare);
                } else {
                    rest.extend(sheaves.exchange_full(node, cpu, sheaf));
                }
            }
            sheaf.push(*place);
        }
        drop(mine);
        for sheaf in rest {
            self.put_sheaf(sheaf);
        }
    }

    /// Puts objects into their slabs, sorted by slab; returns how many pages were freed.
    fn put_sheaf(&self, mut sheaf: Sheaf) -> u64 {
        sheaf.sort_unstable();
        self.put_places(&sheaf)
    }

    /// Puts the objects of all sheaves into their slabs; returns how many pages were freed.
    pub(super) fn empty_sheaves(&self, sheaves: &Sheaves<S::Platform>) -> u64 {
        sheaves.take_all().into_iter().map(|sheaf| self.put_sheaf(sheaf)).sum()
    }

    /// The node whose objects a CPU's sheaves hold.
    fn home_of(&self, cpu: CpuId) -> usize {
        usize::from(self.platform().node_of(cpu).0) % self.nodes
    }
}
