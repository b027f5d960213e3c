//! The sheaves of a cache: arrays of free objects, in CPUs and in the barns that CPUs share.
//!
//! ```text
//! CPU:  Lock<main [..], spare [..], away [..] for each other node>    class SlabSheaf
//! barn: Lock<full [[..] [..]], empty [[] []]>     class SlabBarn; one for 8 CPUs of a node
//! ```
//! Locking: a CPU's lock, then a barn's.

use super::sizing::Sizing;
use crate::lock_class;
use highwater_platform::{Guard, Lock, Platform};
use highwater_units::{CpuId, PAGE_SIZE};
use std::collections::BTreeMap;

/// CPUs that share a barn.
const CPUS_PER_BARN: usize = 8;
/// Full sheaves that a barn keeps, at least.
const FULL_MIN: usize = 10;
/// The full sheaves of a cache hold at most this part of memory.
const MEMORY_SHARE: u64 = 64;
/// The full sheaves of a cache hold at most this many bytes for each CPU.
const CPU_BYTES_MAX: u64 = 2 << 20;

/// Free objects: slab and index.
pub(super) type Sheaf = Vec<(u32, u16)>;

/// The sheaves of a CPU.
pub(super) struct CpuSheaves {
    pub(super) main: Sheaf,
    pub(super) spare: Sheaf,
    /// By node: freed objects of other nodes.
    pub(super) away: Vec<Sheaf>,
}

/// Sheaves that some CPUs of a node share.
#[derive(Default)]
struct Barn {
    full: Vec<Sheaf>,
    empty: Vec<Sheaf>,
}

/// The sheaves of a cache.
pub(super) struct Sheaves<P: Platform> {
    pub(super) cpus: Vec<P::Lock<CpuSheaves>>,
    /// By node.
    barns: Vec<Vec<P::Lock<Barn>>>,
    /// By CPU: the index of its barn on any node.
    homes: Vec<usize>,
    /// Objects of a full sheaf.
    pub(super) capacity: usize,
    full_max: usize,
}

/// By CPU, the index of its barn: 8 CPUs of a node share one.
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
    /// Empty sheaves, for a cache over a source of `pages` pages.
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

    /// Replaces an empty sheaf by a full one of the barn.
    pub(super) fn exchange_empty(&self, node: usize, cpu: CpuId, sheaf: &mut Sheaf) -> Exchanged {
        let mut barn = self.barn(node, cpu).lock();
        barn.visits(1);
        let Some(full) = barn.full.pop() else { return Exchanged::NoneFull };
        let empty = std::mem::replace(sheaf, full);
        if barn.empty.len() < FULL_MIN {
            barn.empty.push(empty);
        }
        Exchanged::Replaced
    }

    /// Replaces a full sheaf by an empty one. Returns the full one if the barn has no room for it.
    pub(super) fn exchange_full(
        &self,
        node: usize,
        cpu: CpuId,
        sheaf: &mut Sheaf,
    ) -> Option<Sheaf> {
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

    /// Removes all sheaves with objects from CPUs and barns.
    pub(super) fn take_all(&self) -> Vec<Sheaf> {
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

/// Whether an empty sheaf was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchanged {
    /// By a full one.
    Replaced,
    /// The barn has no full sheaf.
    NoneFull,
}
