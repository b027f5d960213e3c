//! Arrays of objects in front of slabs: a CPU passes most objects on without touching a slab.
//!
//! ```text
//! CPU: Lock<main [..], spare [..], away [..] for each other node>           class SlabSheaf
//!        | main empty, or full                       | full: home
//! barn: Lock<full [[..] [..]], empty [[] []]>        class SlabBarn; for every 8 CPUs of a node
//!        | none full, or no room
//! slabs: many at a time
//! ```
//! As the sheaves of Linux 6.18, with three differences: a node has several barns; how many full
//! sheaves they keep goes by memory and CPUs, not 10; and an object of another node goes home in a
//! sheaf, not alone. An object in a sheaf counts as free to its user and as out to its slab.
//!
//! Locking: a CPU's lock, then a barn's; none of them is held when slabs are asked.

use super::Slabs;
use super::cache::Cache;
use super::sizing::Sizing;
use super::source::SlabPages;
use crate::lock_class;
use highwater_platform::{Cpu, Guard, Lock, Platform};
use highwater_units::{CpuId, PAGE_SIZE};
use std::collections::BTreeMap;

/// CPUs that share a barn.
const CPUS_PER_BARN: usize = 8;
/// Full sheaves of a barn, at least.
const FULL_MIN: usize = 10;
/// The part of memory that a cache's full sheaves may hold.
const MEMORY_SHARE: u64 = 64;
/// Most bytes of them for a CPU.
const CPU_BYTES_MAX: u64 = 2 << 20;

/// Objects: slab and number.
type Sheaf = Vec<(u32, u16)>;

/// What a CPU has.
struct CpuSheaves {
    main: Sheaf,
    spare: Sheaf,
    /// Of other nodes, by node.
    away: Vec<Sheaf>,
}

/// What CPUs of a node share.
#[derive(Default)]
struct Barn {
    full: Vec<Sheaf>,
    empty: Vec<Sheaf>,
}

/// The sheaves of a cache.
pub(super) struct Sheaves<P: Platform> {
    cpus: Vec<P::Lock<CpuSheaves>>,
    /// By node.
    barns: Vec<Vec<P::Lock<Barn>>>,
    /// Which barn of any node a CPU uses.
    homes: Vec<usize>,
    capacity: usize,
    full_max: usize,
}

/// The CPUs of each node in turn, 8 to a barn.
fn homes<P: Platform>(platform: &P) -> Vec<usize> {
    let mut seen = BTreeMap::new();
    let home = |cpu| {
        let rank: &mut usize = seen.entry(platform.node_of(CpuId(cpu))).or_default();
        *rank += 1;
        (*rank - 1) / CPUS_PER_BARN
    };
    (0..platform.cpus() as u16).map(home).collect()
}

impl<P: Platform> Sheaves<P> {
    /// None yet, for a cache of a source of so many pages.
    pub(super) fn new(platform: &P, sizing: Sizing, nodes: usize, pages: u64) -> Sheaves<P> {
        let cpus = platform.cpus();
        let cpu = |_| {
            let away = vec![Sheaf::new(); nodes];
            let sheaves = CpuSheaves { main: Sheaf::new(), spare: Sheaf::new(), away };
            platform.new_lock(lock_class::SLAB_SHEAF, sheaves)
        };
        let homes = homes(platform);
        let barns = homes.iter().max().map_or(1, |last| last + 1);
        let barn = |_| platform.new_lock(lock_class::SLAB_BARN, Barn::default());
        let bytes = (pages * PAGE_SIZE as u64 / MEMORY_SHARE / cpus as u64).min(CPU_BYTES_MAX);
        let each = u64::from(sizing.size) * sizing.sheaf as u64;
        Sheaves {
            cpus: (0..cpus).map(cpu).collect(),
            barns: (0..nodes).map(|_| (0..barns).map(barn).collect()).collect(),
            homes,
            capacity: sizing.sheaf,
            full_max: FULL_MIN.max((CPUS_PER_BARN as u64 * bytes / each) as usize),
        }
    }

    fn barn(&self, node: usize, cpu: CpuId) -> &P::Lock<Barn> {
        &self.barns[node][self.homes[usize::from(cpu.0)]]
    }

    /// A full sheaf for an empty one; says whether there was one.
    fn exchange_empty(&self, node: usize, cpu: CpuId, sheaf: &mut Sheaf) -> Exchanged {
        let mut barn = self.barn(node, cpu).lock();
        barn.visits(1);
        let Some(full) = barn.full.pop() else { return Exchanged::No };
        let empty = std::mem::replace(sheaf, full);
        if barn.empty.len() < FULL_MIN {
            barn.empty.push(empty);
        }
        Exchanged::Yes
    }

    /// An empty sheaf for a full one, which is kept; where there is no room it is returned.
    fn exchange_full(&self, node: usize, cpu: CpuId, sheaf: &mut Sheaf) -> Option<Sheaf> {
        let mut barn = self.barn(node, cpu).lock();
        barn.visits(1);
        let empty = barn.empty.pop().unwrap_or_else(|| Sheaf::with_capacity(self.capacity));
        let full = std::mem::replace(sheaf, empty);
        if barn.full.len() < self.full_max {
            barn.full.push(full);
            return None;
        }
        Some(full)
    }

    /// Takes all sheaves that have objects, of CPUs and barns.
    fn take_all(&self) -> Vec<Sheaf> {
        let mut all = Vec::new();
        for cpu in &self.cpus {
            let mut mine = cpu.lock();
            let CpuSheaves { main, spare, away } = &mut *mine;
            all.extend([main, spare].into_iter().chain(away).map(std::mem::take));
        }
        for barn in self.barns.iter().flatten() {
            all.append(&mut barn.lock().full);
        }
        all.retain(|sheaf| !sheaf.is_empty());
        all
    }

    /// Calls `found` with every object in a sheaf.
    pub(super) fn each(&self, mut found: impl FnMut(u32, u16)) {
        let mut all = |sheaf: &Sheaf| sheaf.iter().for_each(|(id, index)| found(*id, *index));
        for cpu in &self.cpus {
            let mine = cpu.lock();
            [&mine.main, &mine.spare].into_iter().chain(&mine.away).for_each(&mut all);
        }
        self.barns.iter().flatten().for_each(|barn| barn.lock().full.iter().for_each(&mut all));
    }
}

/// Whether there was something to exchange for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchanged {
    No,
    Yes,
}

impl<S: SlabPages> Slabs<S> {
    /// Takes objects from the CPU's sheaves, its barn's, or, many at a time, from slabs.
    pub(super) fn take_from_sheaves(
        &self,
        cache: &Cache<S::Platform>,
        sheaves: &Sheaves<S::Platform>,
        count: usize,
        mut each: impl FnMut(u32, u16),
    ) -> usize {
        let mut taken = 0;
        while taken < count {
            taken += self.take_at_hand(sheaves, count - taken, &mut each);
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

    /// Takes up to `count` objects from the CPU's sheaves, and its barn's.
    fn take_at_hand(
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
            } else if sheaves.exchange_empty(node, cpu, main) == Exchanged::No {
                break;
            }
        }
        mine.visits(taken);
        taken
    }

    /// Puts objects into the CPU's sheaves; full ones into barns, or their objects into slabs.
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
                match node == own && spare.len() < sheaves.capacity {
                    true => std::mem::swap(sheaf, spare),
                    false => rest.extend(sheaves.exchange_full(node, cpu, sheaf)),
                }
            }
            sheaf.push(*place);
        }
        drop(mine);
        for sheaf in rest {
            self.put_sheaf(sheaf);
        }
    }

    /// Puts objects into their slabs, those of each together; returns how many pages were given
    /// back for that.
    fn put_sheaf(&self, mut sheaf: Sheaf) -> u64 {
        sheaf.sort_unstable();
        self.put_places(&sheaf)
    }

    /// The same with the objects of all sheaves.
    pub(super) fn empty_sheaves(&self, sheaves: &Sheaves<S::Platform>) -> u64 {
        sheaves.take_all().into_iter().map(|sheaf| self.put_sheaf(sheaf)).sum()
    }

    /// The node whose objects a CPU keeps.
    fn home_of(&self, cpu: CpuId) -> usize {
        usize::from(self.platform().node_of(cpu).0) % self.nodes
    }
}
