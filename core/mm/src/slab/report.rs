//! Reports: objects, slabs and events of caches, and callers whose objects were not freed.

use super::Slabs;
use super::cache::{Cache, Callers, EVENTS, Event};
use super::object::{CacheId, Object};
use super::source::{SlabPages, page_count};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// The state of a cache, approximate while it is in use (/proc/slabinfo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// Its name.
    pub name: String,
    /// The size of an object, in bytes.
    pub size: u32,
    /// Pages of a slab, unless memory is fragmented.
    pub slab_pages: u64,
    /// Objects of such a slab.
    pub slab_objects: u16,
    /// The number of slabs.
    pub slabs: u64,
    /// Pages of all slabs.
    pub pages: u64,
    /// Allocated objects.
    pub used: u64,
    /// Free objects that callers have reserved.
    pub at_hand: u64,
    /// Objects of all slabs, allocated or free.
    pub objects: u64,
    /// Slabs on nodes' lists.
    pub partial: u64,
    /// Counts of events; [`Event`] is the index.
    pub events: [u64; EVENTS],
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheReport { name, size, slab_pages, slab_objects, slabs, used, objects, .. } = self;
        write!(f, "{name:20}{size:>8}{slab_pages:>6}{slab_objects:>6}{slabs:>9}{used:>11}")?;
        write!(f, "{objects:>11}{:>8}", self.partial)
    }
}

/// Allocated objects of a cache that belong to one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The caller that allocated them; 0: unknown.
    pub caller: u32,
    /// How many.
    pub objects: u64,
    /// One of them.
    pub example: Object,
}

impl<S: SlabPages> Slabs<S> {
    /// All caches, in the order of their creation. Takes no lock and changes nothing. It walks over
    /// all slabs, so its time is proportional to the number of objects.
    pub fn report(&self) -> Vec<CacheReport> {
        let mut reports: Vec<CacheReport> = self.caches().map(CacheReport::empty).collect();
        for (_, slab) in self.live_slabs() {
            let report = &mut reports[usize::from(slab.cache.0)];
            report.slabs += 1;
            report.pages += page_count(slab.pages().order);
            report.objects += u64::from(slab.objects());
            let (used, at_hand) = slab.used.count(slab.objects());
            report.used += used;
            report.at_hand += at_hand;
        }
        reports
    }

    /// The callers that have objects of a cache, by number of objects: the leaks, if all should
    /// have been freed.
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

    /// Allocates an object for a caller, a number from 1 on, which is recorded if the cache does
    /// so.
    pub fn alloc_for(&self, cache: CacheId, caller: u32) -> Option<Object> {
        let object = self.alloc(cache)?;
        if self.cache(cache).spec.callers == Callers::Noted {
            let (id, index) = self.find(object).expect("it was just allocated");
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
            at_hand: 0,
            objects: 0,
            partial: cache.nodes.iter().map(|node| u64::from(node.partial())).sum(),
            events,
        }
    }

    /// The count of an event.
    pub fn count(&self, event: Event) -> u64 {
        self.events[event as usize]
    }

    /// Bytes of the allocated objects.
    pub fn used_bytes(&self) -> u64 {
        self.used * u64::from(self.size)
    }

    /// The number of words of [`CacheReport::to_words`].
    pub const WORDS: usize = 9 + EVENTS;

    /// All figures without the name, for a file or shared memory.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let CacheReport { slab_pages, slabs, pages, used, at_hand, objects, partial, .. } = *self;
        let (size, slab_objects) = (self.size.into(), self.slab_objects.into());
        let numbers =
            [size, slab_pages, slab_objects, slabs, pages, used, at_hand, objects, partial];
        let mut words = [0; Self::WORDS];
        let (first, events) = words.split_at_mut(numbers.len());
        first.copy_from_slice(&numbers);
        events.copy_from_slice(&self.events);
        words
    }

    /// The inverse of [`CacheReport::to_words`]; `None` if the words are not of a cache.
    pub fn from_words(name: impl Fn(u32) -> String, words: &[u64]) -> Option<CacheReport> {
        let (numbers, events) = words.get(..Self::WORDS)?.split_at(9);
        let numbers: [u64; 9] = numbers.try_into().ok()?;
        let [size, slab_pages, slab_objects, slabs, pages, used, at_hand, objects, partial] =
            numbers;
        let (size, slab_objects) = (size.try_into().ok()?, slab_objects.try_into().ok()?);
        let (name, events) = (name(size), events.try_into().ok()?);
        (size > 0).then_some(CacheReport {
            name,
            size,
            slab_pages,
            slab_objects,
            slabs,
            pages,
            used,
            at_hand,
            objects,
            partial,
            events,
        })
    }

    /// Adds the figures of the same cache of another process.
    pub fn merge(&mut self, other: &CacheReport) {
        self.slabs += other.slabs;
        self.pages += other.pages;
        self.used += other.used;
        self.at_hand += other.at_hand;
        self.objects += other.objects;
        self.partial += other.partial;
        self.events.iter_mut().zip(other.events).for_each(|(mine, theirs)| *mine += theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_words_and_sums() {
        let report = CacheReport {
            name: "64".to_owned(),
            size: 64,
            slab_pages: 8,
            slab_objects: 512,
            slabs: 3,
            pages: 24,
            used: 1000,
            at_hand: 7,
            objects: 1536,
            partial: 2,
            events: std::array::from_fn(|at| at as u64),
        };
        let back = CacheReport::from_words(|size| size.to_string(), &report.to_words());
        assert_eq!(back, Some(report.clone()));
        let mut sum = report.clone();
        sum.merge(&report);
        assert_eq!((sum.slab_pages, sum.slabs, sum.used, sum.at_hand), (8, 6, 2000, 14));
        assert_eq!((sum.count(Event::FreeSlab), sum.used_bytes()), (24, 128_000));
        let none = [0; CacheReport::WORDS];
        assert_eq!(CacheReport::from_words(|_| String::new(), &none), None);
        assert_eq!(CacheReport::from_words(|_| String::new(), &none[1..]), None);
    }
}
