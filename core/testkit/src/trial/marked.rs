//! Slab objects that users allocate besides their pages, in the manager's frames: any user
//! allocates, marks, checks and frees them.
//!
//! Locking: the exchange's mutex is invisible to the platform, and never held across a call of it.

use highwater_mm::Manager;
use highwater_mm::slab::{CacheId, CacheSpec, Callers, Frames, Marks, Object, Slabs};
use highwater_platform::Platform;
use highwater_units::{Order, PAGE_SHIFT, PAGE_SIZE, Pfn, Prng};
use std::sync::{Arc, Mutex};

/// Object sizes in bytes: many objects per page, and some that cross a page boundary.
const SIZES: [u32; 3] = [64, 184, 1000];

/// An object and the value stored in it.
struct Mark {
    object: Object,
    value: u64,
}

/// The caches, and the objects for exchange between users.
pub(super) struct Objects<P: Platform> {
    slabs: Arc<Slabs<Frames<P>>>,
    caches: Vec<CacheId>,
    exchange: Mutex<Vec<Mark>>,
}

impl<P: Platform> Objects<P> {
    /// Creates the caches.
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

    /// Frees all objects and shrinks the caches.
    pub(super) fn empty(&self) {
        self.slabs.verify();
        let left = std::mem::take(&mut *self.exchange.lock().expect("no panic"));
        left.into_iter().for_each(|mark| self.give(mark));
        self.slabs.shrink();
        assert_eq!(self.slabs.pages(), 0, "all objects were given back");
    }

    /// The word in the middle of an object: its frame, and its index there.
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

/// The objects of one user.
pub(super) struct Marked {
    random: Prng,
    held: Vec<Mark>,
    most: usize,
    count: u64,
}

impl Marked {
    /// No objects yet; at most `most`.
    pub(super) fn new(seed: u64, thread: usize, most: usize) -> Marked {
        let random = Prng::new(seed << 8 ^ thread as u64 ^ 0x0b1e_0000);
        Marked { random, held: Vec::new(), most, count: thread as u64 }
    }

    /// Allocates, frees or exchanges an object in `often` of 1000 calls.
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

    /// Frees all objects.
    pub(super) fn end<P: Platform>(&mut self, objects: &Objects<P>) {
        self.held.drain(..).for_each(|mark| objects.give(mark));
    }
}
