//! Objects smaller than pages, from slabs: runs of pages cut into objects of one size (SLUB).
//!
//! ```text
//! Slabs -- Cache x n   objects of one size                               cache.rs sizing.rs
//!       |     |- Sheaves: arrays of objects, on CPUs and in barns    sheaf.rs
//!       |     |- each CPU: a slab, its own free objects; partial slabs   alloc.rs free.rs
//!       |     \- each node: Lock<list of partial slabs>                  node.rs
//!       |- at hand: objects that callers keep in front of slabs             reserve.rs
//!       |- Table       records of slabs: free lists, counts, marks  table.rs record.rs used.rs
//!       |- PageMap     page ──> slab                                     table.rs
//!       |- Deferred    objects that wait for a grace period              deferred.rs
//!       \- S: SlabPages   where pages come from                          source.rs range.rs
//! ```
//! An object is a number: the byte of its source at which it begins. Nothing here reads or writes a
//! page: all that is known of an object lies in the record of its slab, so an object is freed, and
//! its place given out again, while its page is swapped out.
//!
//! Lock order: a CPU's lock (`SlabCpu`), then a node's (`SlabNode`) or that of spare records
//! (`SlabRecords`); apart from these, a CPU's sheaves (`SlabSheaf`), then a barn's (`SlabBarn`). No
//! lock is held when the source is asked for pages or given some.
//!
//! Conservation: see `record.rs`; [`Slabs::verify`] walks everything.

mod alloc;
mod cache;
mod check;
mod deferred;
mod frames;
mod free;
#[cfg(feature = "history")]
mod history;
mod node;
mod range;
mod record;
mod report;
mod reserve;
mod sheaf;
mod shrink;
mod size_class;
mod sizing;
#[cfg(test)]
mod slab_fuzz;
mod source;
mod table;
mod used;

pub use cache::{CacheId, CacheSpec, Callers, EVENTS, Event};
pub use frames::Frames;
pub use range::PageRange;
pub use report::{CacheReport, Held};
pub use reserve::Place;
pub use size_class::{SIZE_CLASSES, size_class};
pub use sizing::{Rules, Sizing};
pub use source::SlabPages;
pub use used::Marks;

use crate::config::Config;
use crate::error::FreeError;
use cache::Cache;
use deferred::Deferred;
use highwater_platform::Cpu;
use highwater_units::{CpuId, Order};
use sheaf::Sheaves;
use std::sync::OnceLock;
use table::{PageMap, Table};

/// Caches at most.
pub const CACHES_MAX: usize = 256;

/// Least and most bytes of an object.
pub const OBJECT_MIN: u32 = 8;
/// See there.
pub const OBJECT_MAX: u32 = 64 << 10;

/// An object: the byte of its source at which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object(pub u64);

/// Why there is no such cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheError {
    /// Objects are of 8 bytes to 64 KiB.
    Size,
    /// There are 256 caches.
    Caches,
}

/// Caches, and all their slabs.
pub struct Slabs<S: SlabPages> {
    source: S,
    rules: Rules,
    nodes: usize,
    caches: Vec<OnceLock<Cache<S::Platform>>>,
    table: Table<S::Platform>,
    map: PageMap<S::Platform>,
    deferred: Deferred<S::Platform>,
}

impl<S: SlabPages> Slabs<S> {
    /// No caches yet.
    pub fn new(source: S, config: &Config) -> Slabs<S> {
        let platform = source.platform();
        let cpus = 0..platform.cpus() as u16;
        let last = cpus.map(|cpu| platform.node_of(CpuId(cpu)).0).max();
        let nodes = usize::from(last.expect("there is a CPU")) + 1;
        Slabs {
            rules: Rules::new(config, platform.cpus(), nodes),
            nodes,
            caches: (0..CACHES_MAX).map(|_| OnceLock::new()).collect(),
            table: Table::new(),
            map: PageMap::new(source.pages()),
            deferred: Deferred::new(platform),
            source,
        }
    }

    /// Makes a cache.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn create(&self, spec: CacheSpec) -> Result<CacheId, CacheError> {
        if !(OBJECT_MIN..=OBJECT_MAX).contains(&spec.size) {
            return Err(CacheError::Size);
        }
        let platform = self.platform();
        let sizing = match Sizing::new(spec.size, self.rules) {
            sizing if sizing.order >= spec.order => sizing,
            _ => Sizing::of_order(spec.size, spec.order, self.rules),
        };
        let sizing = match spec.marks {
            Marks::Bits => sizing,
            Marks::Bytes => sizing.at_hand(),
        };
        let sheaves = || {
            let new = || Sheaves::new(platform, sizing, self.nodes, self.source.pages());
            self.rules.sheaves.then(new)
        };
        for (index, place) in self.caches.iter().enumerate() {
            if place.get().is_some() {
                continue;
            }
            let id = CacheId(index as u16);
            let cache = Cache::new(platform, id, spec.clone(), sizing, self.nodes, sheaves());
            if place.set(cache).is_ok() {
                return Ok(id);
            }
        }
        Err(CacheError::Caches)
    }

    /// Makes a cache for each of [`SIZE_CLASSES`], in their order.
    ///
    /// # Errors
    /// There are too many caches.
    pub fn create_size_classes(&self) -> Result<Vec<CacheId>, CacheError> {
        let make = |size: &u32| {
            let name = format!("kmalloc-{size}");
            let (callers, marks) = (Callers::Unknown, Marks::Bits);
            self.create(CacheSpec { name, size: *size, callers, marks, order: Order(0) })
        };
        SIZE_CLASSES.iter().map(make).collect()
    }

    /// What a cache was computed to be.
    pub fn sizing(&self, cache: CacheId) -> Sizing {
        self.cache(cache).sizing
    }

    /// Bytes from the beginning of an object that are its own.
    ///
    /// # Errors
    /// It is none, or free.
    #[inline]
    pub fn size_of(&self, object: Object) -> Result<u32, FreeError> {
        let (id, index) = self.find(object)?;
        let slab = self.table.get(id);
        if slab.is_used(index) {
            Ok(self.cache(slab.cache).sizing.size)
        } else {
            Err(FreeError::Free)
        }
    }

    /// Where pages come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The world.
    pub fn platform(&self) -> &S::Platform {
        self.source.platform()
    }

    #[inline]
    fn cache(&self, id: CacheId) -> &Cache<S::Platform> {
        self.caches[usize::from(id.0)].get().expect("numbers are of caches that were made")
    }

    fn caches(&self) -> impl Iterator<Item = &Cache<S::Platform>> {
        self.caches.iter().map_while(OnceLock::get)
    }
}
