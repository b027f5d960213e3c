//! Random operations against a model: the set of allocated objects.

use super::*;
use highwater_platform::FrameRange;
use highwater_platform::testing::TestPlatform;
use highwater_units::{NodeId, Order, PAGE_SHIFT, PAGE_SIZE, Pfn, Prng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Caches over a range of pages, and their expected state.
struct Model {
    slabs: Slabs<PageRange<TestPlatform>>,
    pages: u64,
    caches: Vec<(CacheId, u32, Marks)>,
    /// Allocated objects by address: their size.
    used: BTreeMap<u64, u32>,
    /// Reserved objects: slab and index.
    reserved: Vec<(u32, u16)>,
    /// Deferred objects, with the epoch of their free.
    waiting: Vec<(u64, u64)>,
    epoch: u64,
}

impl Model {
    fn new(random: &mut Prng) -> Model {
        let platform = Arc::new(TestPlatform::new(1, Vec::new()));
        let (first, frames) = (Pfn(random.below(50) as u32), 16 + random.below(600) as u32);
        let range = FrameRange { node: NodeId(0), first, frames };
        let mut config = Config::default();
        config.draw_slab(random);
        let slabs = Slabs::new(PageRange::new(platform, &[range]), &config);
        let count = 1 + random.below(4);
        let make = |_| {
            let size = match random.below(3) {
                0 => SIZE_CLASSES[random.below(SIZE_CLASSES.len() as u64) as usize],
                1 => OBJECT_MIN + random.below(500) as u32,
                _ => 256 + random.below(12_000) as u32,
            };
            let callers = [Callers::Unknown, Callers::Noted][random.below(2) as usize];
            let marks = [Marks::Bits, Marks::Bytes][random.below(2) as usize];
            let order = Order(random.below(4) as u8);
            let name = format!("cache-{size}");
            let spec = CacheSpec { name, size, callers, marks, order };
            (slabs.create(spec).expect("there is room"), size, marks)
        };
        let caches = (0..count).map(make).collect();
        Model {
            pages: frames.into(),
            caches,
            used: BTreeMap::new(),
            reserved: Vec::new(),
            waiting: Vec::new(),
            epoch: 0,
            slabs,
        }
    }

    fn add(&mut self, object: Object, size: u32) {
        let (begin, end) = (object.0, object.0 + u64::from(size));
        let before = self.used.range(..end).next_back();
        let free = before.is_none_or(|(at, size)| at + u64::from(*size) <= begin);
        assert!(free, "{object:?} of {size} bytes overlaps {before:?}");
        assert!(end <= self.slabs.source().pages() * PAGE_SIZE as u64);
        let waits = self.waiting.iter().any(|(_, waiting)| *waiting == begin);
        assert!(!waits, "the grace period of {object:?} has not ended");
        self.used.insert(begin, size);
    }

    fn alloc(&mut self, random: &mut Prng) {
        let (cache, size, _) = self.caches[random.below(self.caches.len() as u64) as usize];
        let count = if random.percent(70) { 1 } else { 1 + random.below(200) as usize };
        let mut objects = Vec::new();
        let had = self.slabs.alloc_bulk(cache, count, |object| objects.push(object));
        assert_eq!(had, objects.len());
        assert!(had == count || self.slabs.source().free_pages() < 16, "there was memory");
        objects.into_iter().for_each(|object| self.add(object, size));
    }

    /// Removes some allocated objects from the model.
    fn some(&mut self, random: &mut Prng, count: usize) -> Vec<Object> {
        let mut some = Vec::new();
        let end = self.slabs.source().pages() * PAGE_SIZE as u64;
        let mut at = random.below(end);
        while some.len() < count {
            let Some((object, _)) = self.used.range(at..).next().map(|(o, s)| (*o, *s)) else {
                break;
            };
            self.used.remove(&object);
            some.push(Object(object));
            at = if random.percent(80) { object } else { random.below(end) };
        }
        some
    }

    fn free(&mut self, random: &mut Prng) {
        let count = if random.percent(70) { 1 } else { 1 + random.below(100) as usize };
        let objects = self.some(random, count);
        if random.percent(50) {
            assert_eq!(self.slabs.free_bulk(&objects), Ok(()));
        } else {
            objects.iter().for_each(|object| assert_eq!(self.slabs.free(*object), Ok(())));
        }
    }

    /// Reserves objects, allocates and frees some of them, and returns some.
    fn keep(&mut self, random: &mut Prng) {
        let (cache, _, marks) = self.caches[random.below(self.caches.len() as u64) as usize];
        if marks == Marks::Bits {
            return;
        }
        let count = 1 + random.below(40) as usize;
        let reserved = &mut self.reserved;
        let before = reserved.len();
        let more = self.slabs.reserve(cache, count, |at| reserved.push((at.slab, at.index)));
        assert_eq!(reserved.len(), before + more);
        for _ in 0..random.below(count as u64) {
            let Some((id, index)) = self.draw(random) else { break };
            let size = self.slabs.sizing(self.slabs.table.get(id).cache).size;
            let object = self.slabs.place(id, index).hand_out().expect("it is reserved");
            self.add(object, size);
        }
        let back = random.below(count as u64) as usize;
        self.take_back(random, cache, back);
        let most = random.below(100) as usize;
        let mut returned = Vec::new();
        while self.reserved.len() > most {
            returned.extend(self.draw(random));
        }
        returned.sort_unstable();
        self.put(&returned);
    }

    /// Takes back objects of a cache.
    fn take_back(&mut self, random: &mut Prng, cache: CacheId, count: usize) {
        for object in self.some(random, count) {
            let id = self.slabs.map.get(object.0 >> PAGE_SHIFT).expect("it is allocated");
            if self.slabs.table.get(id).cache != cache {
                assert_eq!(self.slabs.free(object), Ok(()));
                continue;
            }
            let (of, place) = self.slabs.take_back(object).expect("it is allocated");
            assert_eq!((of, place.object()), (cache, object));
            let again = self.slabs.take_back(object).map(drop);
            assert_eq!(again, Err(FreeError::Free), "{object:?} was taken back twice");
            self.reserved.push((place.slab, place.index));
        }
    }

    fn draw(&mut self, random: &mut Prng) -> Option<(u32, u16)> {
        let count = self.reserved.len() as u64;
        (count > 0).then(|| self.reserved.swap_remove(random.below(count) as usize))
    }

    fn put(&self, places: &[(u32, u16)]) {
        let places: Vec<Place<'_>> =
            places.iter().map(|(id, index)| self.slabs.place(*id, *index)).collect();
        assert_eq!(self.slabs.return_all(&places), Ok(()));
    }

    fn defer(&mut self, random: &mut Prng) {
        for object in self.some(random, 10) {
            assert_eq!(self.slabs.free_deferred(object), Ok(()));
            self.waiting.push((self.epoch, object.0));
        }
    }

    fn expire(&mut self, random: &mut Prng) {
        if random.percent(60) {
            self.epoch += 1;
            self.slabs.end_grace_period();
        }
        let due = |epoch: u64| epoch + 2 <= self.epoch;
        let all = self.waiting.iter().filter(|(epoch, _)| due(*epoch)).count();
        let (here, before) = (self.slabs.deferred_here(), self.waiting.len());
        let few = 1 + self.epoch as usize % 20;
        let first = self.slabs.free_expired(few);
        assert!(first <= few);
        // The thread may have migrated, so other CPUs may have expired objects, too.
        let freed = first + self.slabs.free_expired(usize::MAX);
        assert!(freed <= all);
        let left = self.still_waiting();
        self.waiting.retain(|(_, object)| left.contains(object));
        assert!(here <= before);
        assert_eq!(self.waiting.len(), before - freed);
    }

    fn still_waiting(&self) -> std::collections::BTreeSet<u64> {
        let mut left = std::collections::BTreeSet::new();
        self.slabs.deferred.each(|id, index| {
            left.insert(self.slabs.table.get(id).address_of(index));
        });
        left
    }

    /// Frees addresses that are no object or are free: an error, and nothing changes.
    fn abuse(&mut self, random: &mut Prng) {
        let end = (self.slabs.source().pages() + 10) * PAGE_SIZE as u64;
        let at = random.below(end);
        if !self.used.contains_key(&at) {
            assert!(self.slabs.free(Object(at)).is_err());
            assert!(self.slabs.size_of(Object(at)).is_err());
        }
        if let Some(object) = self.some(random, 1).first() {
            assert_eq!(self.slabs.free(*object), Ok(()));
            let again = self.slabs.free(*object);
            assert!(again.is_err(), "{object:?} was freed twice");
        }
    }

    fn check(&self) {
        self.slabs.verify_with_reserved(&self.reserved);
        let mut reserved = self.reserved.clone();
        reserved.sort_unstable();
        let found = self.slabs.at_hand();
        assert_eq!(found.iter().map(|at| (at.slab, at.index)).collect::<Vec<_>>(), reserved);
        let reports = self.slabs.report();
        let used: u64 = reports.iter().map(|report| report.used).sum();
        assert_eq!(used, self.used.len() as u64);
        let reserved: u64 = reports.iter().map(|report| report.at_hand).sum();
        assert_eq!(reserved, self.reserved.len() as u64);
        let pages: u64 = reports.iter().map(|report| report.pages).sum();
        assert_eq!(pages + self.slabs.source().free_pages(), self.pages);
        let held = self.caches.iter().flat_map(|(cache, ..)| self.slabs.held(*cache));
        assert_eq!(held.map(|held| held.objects).sum::<u64>(), used);
    }
}

fn fuzz(seed: u64, steps: usize) {
    let mut random = Prng::new(seed);
    let mut model = Model::new(&mut random);
    let weights: [u64; 6] = std::array::from_fn(|at| match at {
        0 | 1 => 4 + random.below(8),
        _ => random.below(4),
    });
    for step in 0..steps {
        let mut at = random.below(weights.iter().sum::<u64>() + 1);
        let chosen = weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        match chosen {
            Some(0) => model.alloc(&mut random),
            Some(1) => model.free(&mut random),
            Some(2) => model.defer(&mut random),
            Some(3) => model.expire(&mut random),
            Some(4) => model.keep(&mut random),
            Some(_) => model.abuse(&mut random),
            None => {
                let before = model.slabs.pages();
                assert_eq!(model.slabs.shrink(), before - model.slabs.pages());
            }
        }
        if step % 32 == 0 {
            model.check();
        }
    }
    let all: Vec<Object> = model.used.keys().map(|object| Object(*object)).collect();
    assert_eq!(model.slabs.free_bulk(&all), Ok(()));
    model.used.clear();
    model.put(&model.reserved);
    model.reserved.clear();
    model.slabs.free_all_deferred();
    model.check();
    model.slabs.shrink();
    assert_eq!(model.slabs.pages(), 0, "all slabs are freed");
    assert_eq!(model.slabs.source().free_pages(), model.pages);
}

#[test]
fn random_operations_match_a_set_of_objects() {
    highwater_platform::testing::seeds(300, |seed| fuzz(seed, 400));
}
