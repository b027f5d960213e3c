//! Objects smaller than pages, from slabs: runs of pages that hold objects of one size (SLUB).
//!
//! ```text
//! Slabs -- Cache x n   objects of one size                            cache.rs sizing.rs
//!       |     |- Sheaves: arrays of free objects, of CPUs and barns   barn.rs sheaf.rs
//!       |     |- each CPU: its slab and free list, partial slabs      alloc.rs free.rs
//!       |     \- each node: Lock<list of partial slabs>               node.rs
//!       |- reserved objects: free ones that callers keep themselves   reserve.rs
//!       |- Table       records of slabs: free lists, counts, marks    table.rs record.rs used.rs
//!       |- PageMap     page ──> slab                                  table.rs
//!       |- Deferred    objects freed after a grace period             deferred.rs
//!       \- S: SlabPages   the source of pages                         source.rs range.rs frames.rs
//! ```
//! An object is a number: its offset in the source. Nothing here reads or writes a page; all state
//! of an object is in the record of its slab. So an object can be freed and allocated again while
//! its page is swapped out.
//!
//! Lock order: a CPU's lock (`SlabCpu`), then a node's (`SlabNode`) or the lock of spare records
//! (`SlabRecords`). Independently, the lock of a CPU's sheaves (`SlabSheaf`), then a barn's
//! (`SlabBarn`). No lock is held while the source allocates or frees pages.
//!
//! Conservation: see `record.rs`; [`Slabs::verify`] walks all slabs.

mod alloc;
mod barn;
mod cache;
mod check;
mod deferred;
mod frames;
mod free;
#[cfg(feature = "history")]
mod history;
mod node;
mod object;
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
#[cfg(test)]
mod slab_model;
mod source;
mod table;
mod used;

pub use cache::{CacheSpec, Callers, EVENTS, Event};
pub use frames::Frames;
pub use object::{CacheId, Object};
pub use range::PageRange;
pub use report::{CacheReport, Held};
pub use reserve::Place;
pub use size_class::{SIZE_CLASSES, size_class};
pub use sizing::{Rules, Sizing};
pub use source::SlabPages;
pub use used::Marks;

use crate::config::Config;
use crate::error::FreeError;
use barn::Sheaves;
use cache::Cache;
use deferred::Deferred;
use highwater_platform::Cpu;
use highwater_units::{CpuId, Order};
use std::sync::OnceLock;
use table::{PageMap, Table};

/// Most caches.
pub const CACHES_MAX: usize = 256;

/// The smallest object, in bytes.
pub const OBJECT_MIN: u32 = 8;
/// The largest object, in bytes.
pub const OBJECT_MAX: u32 = 64 << 10;

/// Why a cache was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheError {
    /// Objects have 8 bytes to 64 KiB.
    Size,
    /// There are 256 caches.
    Caches,
}

/// Caches and their slabs.
pub struct Slabs<S: SlabPages> {
    source: S,
    rules: Rules,
    nodes: usize,
    /// Most are never created: a cache takes 1.5 KiB.
    caches: Vec<OnceLock<Box<Cache<S::Platform>>>>,
    table: Table<S::Platform>,
    map: PageMap<S::Platform>,
    deferred: Deferred<S::Platform>,
}

impl<S: SlabPages> Slabs<S> {
    /// No caches.
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

    /// Creates a cache.
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
            Marks::Bytes => sizing.for_reserving(),
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
            if place.set(Box::new(cache)).is_ok() {
                return Ok(id);
            }
        }
        Err(CacheError::Caches)
    }

    /// Creates a cache for each of [`SIZE_CLASSES`], in their order.
    ///
    /// # Errors
    /// There are 256 caches.
    pub fn create_size_classes(&self) -> Result<Vec<CacheId>, CacheError> {
        let make = |size: &u32| {
            let name = format!("kmalloc-{size}");
            let (callers, marks) = (Callers::Unknown, Marks::Bits);
            self.create(CacheSpec { name, size: *size, callers, marks, order: Order(0) })
        };
        SIZE_CLASSES.iter().map(make).collect()
    }

    /// The sizing of a cache.
    pub fn sizing(&self, cache: CacheId) -> Sizing {
        self.cache(cache).sizing
    }

    /// The size of an allocated object, in bytes.
    ///
    /// # Errors
    /// No object begins there, or it is free.
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

    /// The source of pages.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The platform.
    pub fn platform(&self) -> &S::Platform {
        self.source.platform()
    }

    #[inline]
    fn cache(&self, id: CacheId) -> &Cache<S::Platform> {
        self.caches[usize::from(id.0)].get().expect("a CacheId names a cache")
    }

    fn caches(&self) -> impl Iterator<Item = &Cache<S::Platform>> {
        self.caches.iter().map_while(OnceLock::get).map(Box::as_ref)
    }
}
