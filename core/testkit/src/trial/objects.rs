//! The trial of slabs: several threads allocate objects, exchange them, free them at once or
//! deferred, and shrink caches. A model tracks which objects are allocated.
//!
//! ```text
//! user: own objects ──> exchange ──> freed by another user, on another CPU
//!       free_deferred ──> waiting: not allocated again before two grace periods have ended
//! ```
//! Locking: the model's mutex is invisible to the platform, and never held across a call of it.

use super::outcome::Beat;
use highwater_mm::config::Config;
use highwater_mm::slab::{
    CacheId, CacheSpec, Callers, Marks, OBJECT_MIN, Object, PageRange, SIZE_CLASSES, Slabs,
};
use highwater_platform::{Platform, Thread};
use highwater_units::{Order, Prng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The parameters of a trial of slabs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectsPlan {
    /// Users.
    pub threads: usize,
    /// Steps of each user.
    pub steps: usize,
    /// The manager's settings; only those of slabs matter.
    pub config: Config,
    /// The object size of each cache, in bytes.
    pub sizes: Vec<u32>,
    /// The most objects of one user.
    pub most: usize,
}

impl ObjectsPlan {
    /// Draws a plan with 2 to 12 users and 1 to 3 caches.
    pub fn draw(seed: u64, steps: usize) -> ObjectsPlan {
        let mut random = Prng::new(seed ^ 0x51ab_0000);
        let threads = 2 + random.below(11) as usize;
        let size = |random: &mut Prng| match random.below(3) {
            0 => SIZE_CLASSES[random.below(SIZE_CLASSES.len() as u64) as usize],
            1 => OBJECT_MIN + random.below(500) as u32,
            _ => 256 + random.below(5000) as u32,
        };
        let caches = 1 + random.below(3);
        let mut config = Config::default();
        config.draw_slab(&mut random);
        ObjectsPlan {
            threads,
            steps: steps / threads,
            config,
            sizes: (0..caches).map(|_| size(&mut random)).collect(),
            most: 1 << random.below(9),
        }
    }
}

/// The expected state.
#[derive(Default)]
struct Model {
    /// Allocated objects: address and size.
    used: BTreeMap<u64, u32>,
    /// Objects freed deferred, with the number of grace periods that had ended at that time.
    waiting: BTreeMap<u64, u64>,
}

/// The state that all users share.
struct Shared<P: Platform> {
    slabs: Slabs<PageRange<P>>,
    caches: Vec<(CacheId, u32)>,
    model: Mutex<Model>,
    exchange: Mutex<Vec<Object>>,
    /// Announced ends of grace periods: calls begun, and calls finished.
    ends: [AtomicU64; 2],
    operations: AtomicU64,
    beat: Beat,
}

/// Runs a plan on a platform's frame numbers. Returns the number of calls made. Panics at the first
/// contradiction.
pub fn run_objects<P: Platform>(
    platform: Arc<P>,
    plan: &ObjectsPlan,
    seed: u64,
    beat: Beat,
) -> u64 {
    let ranges = platform.ranges();
    let slabs = Slabs::new(PageRange::new(platform.clone(), &ranges), &plan.config);
    let cache = |size: &u32| {
        let (name, callers) = (format!("trial-{size}"), Callers::Noted);
        let (marks, order) = (Marks::Bits, Order(0));
        let spec = CacheSpec { name, size: *size, callers, marks, order };
        (slabs.create(spec).expect("a cache"), *size)
    };
    let caches = plan.sizes.iter().map(cache).collect();
    let shared = Arc::new(Shared {
        caches,
        slabs,
        model: Mutex::default(),
        exchange: Mutex::default(),
        ends: [const { AtomicU64::new(0) }; 2],
        operations: AtomicU64::new(0),
        beat,
    });
    let start = |thread: usize| {
        let (shared, plan) = (shared.clone(), plan.clone());
        let body = move || {
            let random = Prng::new(seed ^ (thread as u64) << 32);
            User { shared, plan, thread, random, own: Vec::new() }.run();
        };
        let node = ranges[thread % ranges.len()].node;
        platform.spawn(&format!("objects{thread}"), node, Box::new(body)).expect("a thread")
    };
    let threads: Vec<P::Thread> = (0..plan.threads).map(start).collect();
    threads.into_iter().for_each(Thread::join);
    let shared = Arc::into_inner(shared).expect("an ended user holds no reference");
    shared.finish(ranges.iter().map(|range| u64::from(range.frames)).sum())
}

impl<P: Platform> Shared<P> {
    /// Frees everything, and checks that nothing is lost.
    fn finish(self, pages: u64) -> u64 {
        let Shared { slabs, model, exchange, operations, .. } = self;
        slabs.verify();
        let used = model.into_inner().expect("no panic").used;
        let reports = slabs.report();
        assert_eq!(reports.iter().map(|report| report.used).sum::<u64>(), used.len() as u64);
        let left = exchange.into_inner().expect("no panic");
        assert!(used.keys().copied().eq({
            let mut left: Vec<u64> = left.iter().map(|object| object.0).collect();
            left.sort_unstable();
            left
        }));
        assert_eq!(slabs.free_bulk(&left), Ok(()));
        slabs.free_all_deferred();
        slabs.verify();
        slabs.shrink();
        slabs.verify();
        assert_eq!((slabs.pages(), slabs.source().free_pages()), (0, pages), "all is given back");
        operations.load(SeqCst)
    }
}

/// A user.
struct User<P: Platform> {
    shared: Arc<Shared<P>>,
    plan: ObjectsPlan,
    thread: usize,
    random: Prng,
    own: Vec<Object>,
}

impl<P: Platform> User<P> {
    fn run(mut self) {
        for _ in 0..self.plan.steps {
            self.step();
            self.shared.operations.fetch_add(1, SeqCst);
            (self.shared.beat)();
        }
        self.shared.exchange.lock().expect("no panic").append(&mut self.own);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 if self.own.len() < self.plan.most => self.alloc(),
            0..60 => self.free(),
            60..75 => self.hand_over(),
            75..88 => self.free_others(),
            88..93 => self.defer(),
            93..97 => self.expire(),
            97..99 => {
                let misplaced = self.own.last().map_or(1, |object| object.0 + 1);
                assert!(self.shared.slabs.free(Object(misplaced)).is_err());
            }
            _ => drop(self.shared.slabs.shrink()),
        }
    }

    fn alloc(&mut self) {
        let shared = &self.shared;
        let (cache, size) = shared.caches[self.random.below(shared.caches.len() as u64) as usize];
        let count = 1 + self.random.below(self.plan.most as u64) as usize;
        let from = self.own.len();
        let caller = self.thread as u32 + 1;
        if self.random.percent(50) {
            self.own.extend(shared.slabs.alloc_for(cache, caller));
        } else {
            shared.slabs.alloc_bulk(cache, count, |object| self.own.push(object));
        }
        let begun = shared.ends[0].load(SeqCst);
        let mut model = shared.model.lock().expect("no panic");
        for object in &self.own[from..] {
            let end = object.0 + u64::from(size);
            let before = model.used.range(..end).next_back();
            let free = before.is_none_or(|(at, size)| at + u64::from(*size) <= object.0);
            assert!(free, "{object:?} of {size} bytes overlaps {before:?}");
            if let Some(ended) = model.waiting.remove(&object.0) {
                assert!(ended + 2 <= begun, "{object:?} may still be looked at");
            }
            model.used.insert(object.0, size);
        }
    }

    /// Removes objects from the model before they are freed.
    fn forget(&self, objects: &[Object]) {
        let mut model = self.shared.model.lock().expect("no panic");
        for object in objects {
            assert!(model.used.remove(&object.0).is_some(), "{object:?} was in use");
            model.waiting.remove(&object.0);
        }
    }

    /// Takes some of the user's own objects.
    fn some(&mut self) -> Vec<Object> {
        let count = if self.random.percent(60) {
            self.own.len().min(1)
        } else {
            self.random.below(self.own.len() as u64 + 1) as usize
        };
        if self.random.percent(50) {
            self.own.sort_unstable();
        }
        self.own.drain(..count).collect()
    }

    fn free(&mut self) {
        let objects = self.some();
        self.forget(&objects);
        self.free_all(&objects);
    }

    fn free_all(&mut self, objects: &[Object]) {
        if self.random.percent(50) {
            assert_eq!(self.shared.slabs.free_bulk(objects), Ok(()));
        } else {
            objects.iter().for_each(|o| assert_eq!(self.shared.slabs.free(*o), Ok(())));
        }
    }

    fn hand_over(&mut self) {
        let mut objects = self.some();
        self.shared.exchange.lock().expect("no panic").append(&mut objects);
    }

    fn free_others(&mut self) {
        let mut objects = std::mem::take(&mut *self.shared.exchange.lock().expect("no panic"));
        let keep = self.random.below(objects.len() as u64 + 1) as usize;
        let kept = objects.split_off(objects.len() - keep);
        self.shared.exchange.lock().expect("no panic").extend(kept);
        self.forget(&objects);
        self.free_all(&objects);
    }

    fn defer(&mut self) {
        let objects = self.some();
        self.forget(&objects);
        let ended = self.shared.ends[1].load(SeqCst);
        let mut model = self.shared.model.lock().expect("no panic");
        model.waiting.extend(objects.iter().map(|object| (object.0, ended)));
        drop(model);
        objects.iter().for_each(|o| assert_eq!(self.shared.slabs.free_deferred(*o), Ok(())));
    }

    fn expire(&mut self) {
        if self.thread == 0 {
            self.shared.ends[0].fetch_add(1, SeqCst);
            self.shared.slabs.end_grace_period();
            self.shared.ends[1].fetch_add(1, SeqCst);
        }
        self.shared.slabs.free_expired(1 + self.random.below(300) as usize);
    }
}
