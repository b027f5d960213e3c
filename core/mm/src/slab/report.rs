//! What caches hold and did, and who has objects that were never given back.

use super::cache::{Cache, Callers, EVENTS, Event};
use super::source::{SlabPages, page_count};
use super::{CacheId, Object, Slabs};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// A cache, as of about now (/proc/slabinfo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// Its name.
    pub name: String,
    /// Bytes of an object.
    pub size: u32,
    /// Pages of a slab, where they are to be had in one piece.
    pub slab_pages: u64,
    /// Objects of such a slab.
    pub slab_objects: u16,
    /// Slabs.
    pub slabs: u64,
    /// Their pages.
    pub pages: u64,
    /// Objects that are handed out.
    pub used: u64,
    /// Objects that there are.
    pub objects: u64,
    /// Slabs on nodes' lists.
    pub partial: u64,
    /// By [`Event`] as index.
    pub events: [u64; EVENTS],
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheReport { name, size, slab_pages, slab_objects, slabs, used, objects, .. } = self;
        write!(f, "{name:20}{size:>8}{slab_pages:>6}{slab_objects:>6}{slabs:>9}{used:>11}")?;
        write!(f, "{objects:>11}{:>8}", self.partial)
    }
}

/// Objects of a cache that one caller has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who asked for them; 0: unknown.
    pub caller: u32,
    /// How many.
    pub objects: u64,
    /// One of them.
    pub example: Object,
}

impl<S: SlabPages> Slabs<S> {
    /// All caches, in the order in which they were made.
    pub fn report(&self) -> Vec<CacheReport> {
        let mut reports: Vec<CacheReport> = self.caches().map(CacheReport::empty).collect();
        for (_, slab) in self.live_slabs() {
            let report = &mut reports[usize::from(slab.cache.0)];
            report.slabs += 1;
            report.pages += page_count(slab.pages().order);
            report.objects += u64::from(slab.objects());
            slab.each_used(|_| report.used += 1);
        }
        reports
    }

    /// Who has objects of a cache, the most first. When all should be back: what leaked.
    pub fn held(&self, cache: CacheId) -> Vec<Held> {
        let mut held: BTreeMap<u32, Held> = BTreeMap::new();
        for (_, slab) in self.live_slabs().filter(|(_, slab)| slab.cache == cache) {
            slab.each_used(|index| {
                let noted = slab.callers.get(usize::from(index));
                let caller = noted.map_or(0, |caller| caller.load(Relaxed));
                let example = Object(slab.address_of(index));
                held.entry(caller).or_insert(Held { caller, objects: 0, example }).objects += 1;
            });
        }
        let mut held: Vec<Held> = held.into_values().collect();
        held.sort_by_key(|held| std::cmp::Reverse(held.objects));
        held
    }

    /// An object, for a caller with a number of its own (from 1): it is noted, if the cache does
    /// that.
    pub fn alloc_for(&self, cache: CacheId, caller: u32) -> Option<Object> {
        let object = self.alloc(cache)?;
        if self.cache(cache).spec.callers == Callers::Noted {
            let (id, index) = self.find(object).expect("it was just handed out");
            self.table.get(id).callers[usize::from(index)].store(caller, Relaxed);
        }
        Some(object)
    }
}

impl CacheReport {
    fn empty<P: highwater_platform::Platform>(cache: &Cache<P>) -> CacheReport {
        let mut events = [0; EVENTS];
        Event::ALL.iter().for_each(|event| events[*event as usize] = cache.counted(*event));
        CacheReport {
            name: cache.spec.name.clone(),
            size: cache.sizing.size,
            slab_pages: page_count(cache.sizing.order),
            slab_objects: cache.sizing.objects,
            slabs: 0,
            pages: 0,
            used: 0,
            objects: 0,
            partial: cache.nodes.iter().map(|node| u64::from(node.partial())).sum(),
            events,
        }
    }

    /// How often something happened.
    pub fn count(&self, event: Event) -> u64 {
        self.events[event as usize]
    }
}
