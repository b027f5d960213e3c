//! Objects that the users of a trial have beside their pages, in slabs of the manager's frames:
//! allocated, marked, found unchanged, and freed, by any of the users.
//!
//! Locking: the exchange's mutex is the observer's, and never held across a call of the platform.

use highwater_mm::Manager;
use highwater_mm::slab::{CacheId, CacheSpec, Callers, Frames, Marks, Object, Slabs};
use highwater_platform::Platform;
use highwater_units::{Order, PAGE_SHIFT, PAGE_SIZE, Pfn, Prng};
use std::sync::{Arc, Mutex};

/// Bytes of the objects: many in a page, and some that lie in two.
const SIZES: [u32; 3] = [64, 184, 1000];

/// An object, and what was stored in it.
struct Mark {
    object: Object,
    value: u64,
}

/// The caches, and objects that nobody has.
pub(super) struct Objects<P: Platform> {
    slabs: Arc<Slabs<Frames<P>>>,
    caches: Vec<CacheId>,
    exchange: Mutex<Vec<Mark>>,
}

impl<P: Platform> Objects<P> {
    /// None yet.
    pub(super) fn new(manager: &Manager<P>) -> Objects<P> {
        let slabs = manager.slabs();
        let cache = |size: &u32| {
            let spec = CacheSpec {
                name: format!("marked-{size}"),
                size: *size,
                callers: Callers::Unknown,
                marks: Marks::Bits,
                order: Order(0),
            };
            slabs.create(spec).expect("a cache")
        };
        Objects { caches: SIZES.iter().map(cache).collect(), exchange: Mutex::default(), slabs }
    }

    /// Everything is given back; empty slabs are kept no longer.
    pub(super) fn empty(&self) {
        self.slabs.verify();
        let left = std::mem::take(&mut *self.exchange.lock().expect("no panic"));
        left.into_iter().for_each(|mark| self.give(mark));
        self.slabs.shrink();
        assert_eq!(self.slabs.pages(), 0, "all objects were given back");
    }

    /// The word in the middle of an object, as a frame and a word of it.
    fn word(object: Object) -> (Pfn, usize) {
        let byte = object.0;
        (Pfn((byte >> PAGE_SHIFT) as u32), byte as usize % PAGE_SIZE / 8)
    }

    fn take(&self, cache: CacheId, value: u64) -> Option<Mark> {
        let object = self.slabs.alloc(cache)?;
        let (pfn, word) = Self::word(object);
        self.slabs.platform().store(pfn, word, value);
        Some(Mark { object, value })
    }

    fn give(&self, mark: Mark) {
        let (pfn, word) = Self::word(mark.object);
        let found = self.slabs.platform().load(pfn, word);
        assert_eq!(found, mark.value, "{:?}", mark.object);
        assert_eq!(self.slabs.free(mark.object), Ok(()));
    }
}

/// What one user has.
pub(super) struct Marked {
    random: Prng,
    held: Vec<Mark>,
    most: usize,
    count: u64,
}

impl Marked {
    /// None; `most` at most.
    pub(super) fn new(seed: u64, thread: usize, most: usize) -> Marked {
        let random = Prng::new(seed << 8 ^ thread as u64 ^ 0x0b1e_0000);
        Marked { random, held: Vec::new(), most, count: thread as u64 }
    }

    /// Of 1000 calls, in so many: takes an object, gives one back, or exchanges one for another's.
    pub(super) fn step<P: Platform>(&mut self, objects: &Objects<P>, often: u64) {
        if self.random.below(1000) >= often {
            return;
        }
        if self.held.len() < self.most && self.random.percent(60) {
            self.count += 256;
            let cache = objects.caches[self.random.below(SIZES.len() as u64) as usize];
            self.held.extend(objects.take(cache, self.count));
            return;
        }
        let Some(mine) = self.held.pop() else { return };
        if self.random.percent(50) {
            objects.give(mine);
        } else {
            let mut exchange = objects.exchange.lock().expect("no panic");
            self.held.extend(exchange.pop());
            exchange.push(mine);
        }
    }

    /// Gives all back.
    pub(super) fn end<P: Platform>(&mut self, objects: &Objects<P>) {
        self.held.drain(..).for_each(|mark| objects.give(mark));
    }
}
