//! Objects and the caches in front of slabs, in all interleavings: an object has one owner, what
//! one owner wrote is seen by the next, and of two threads that free an object one gets the error.
//! Byte marks are no words of the platform: their orderings are not varied.

use super::*;
use highwater_model::{Contents, Model, check, spawn};
use highwater_platform::FrameRange;
use highwater_units::{NodeId, PAGE_SIZE, Pfn};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

const PAGES: u32 = 32;

const SIZE: u32 = 8192;

/// A cache over a range of pages.
struct Heap {
    slabs: Slabs<PageRange<Model>>,
    cache: CacheId,
    /// By address.
    contents: BTreeMap<u64, Contents>,
}

impl Heap {
    fn new(sheaves: bool, marks: Marks) -> Rc<Heap> {
        let range = FrameRange { node: NodeId(0), first: Pfn(0), frames: PAGES };
        let platform = Arc::new(Model::sharing(1, Vec::new()));
        let mut config = Config::default();
        config.slab.sheaves = Some(sheaves);
        let slabs = Slabs::new(PageRange::new(platform, &[range]), &config);
        let (name, callers) = (String::from("objects"), Callers::Unknown);
        let spec = CacheSpec { name, size: SIZE, callers, marks, order: Order(0) };
        let cache = slabs.create(spec).expect("the first one");
        let addresses = (0..u64::from(PAGES) * PAGE_SIZE as u64).step_by(SIZE as usize);
        let contents = addresses.map(|at| (at, Contents::new())).collect();
        let heap = Rc::new(Heap { slabs, cache, contents });
        // Each word is used before the threads begin.
        let half = heap.contents.len() / 2;
        let all: Vec<Object> = (0..half).map(|_| heap.alloc().expect("there is room")).collect();
        // Both CPUs have free objects.
        let there = heap.clone();
        let (own, others) = all.split_at(all.len() / 2);
        let others = others.to_vec();
        let freed = spawn(1, move || there.slabs.free_bulk(&others));
        assert_eq!(freed.join().unwrap(), Ok(()));
        assert_eq!(heap.slabs.free_bulk(own), Ok(()));
        heap
    }

    fn alloc(&self) -> Option<Object> {
        let object = self.slabs.alloc(self.cache)?;
        self.contents[&object.0].write();
        Some(object)
    }

    fn free(&self, object: Object) -> Result<(), FreeError> {
        self.slabs.free(object)
    }

    /// Allocates an object, and frees it.
    fn use_one(&self) {
        let object = self.alloc().expect("there is room");
        self.contents[&object.0].write();
        assert_eq!(self.free(object), Ok(()));
    }

    /// All objects are free.
    fn check(&self) {
        self.slabs.verify();
        assert_eq!(self.slabs.report().iter().map(|report| report.used).sum::<u64>(), 0);
    }
}

/// Runs a test with and without sheaves, and with the other thread on the same or another CPU.
fn check_caches(marks: Marks, test: fn(&Rc<Heap>, u16)) {
    for (sheaves, cpu) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        check(4, move || {
            let heap = Heap::new(sheaves, marks);
            test(&heap, cpu);
            heap.check();
        });
    }
}

#[test]
fn threads_that_allocate_at_once_get_objects_of_their_own() {
    check_caches(Marks::Bits, |heap, cpu| {
        let other = heap.clone();
        let other = spawn(cpu, move || other.use_one());
        heap.use_one();
        other.join().unwrap();
    });
}

#[test]
fn an_object_that_another_cpu_frees_can_be_allocated_again() {
    check_caches(Marks::Bits, |heap, cpu| {
        let (object, other) = (heap.alloc().expect("an object"), heap.clone());
        let other = spawn(cpu, move || {
            other.contents[&object.0].write();
            assert_eq!(other.free(object), Ok(()));
            other.use_one();
        });
        heap.use_one();
        other.join().unwrap();
    });
}

#[test]
fn of_threads_that_free_an_object_one_gets_the_error() {
    for marks in [Marks::Bits, Marks::Bytes] {
        check_caches(marks, |heap, cpu| {
            let (object, other) = (heap.alloc().expect("an object"), heap.clone());
            let other = spawn(cpu, move || other.free(object));
            let freed = [heap.free(object), other.join().unwrap()];
            assert_eq!(freed.iter().filter(|freed| freed.is_ok()).count(), 1, "{freed:?}");
        });
    }
}

#[test]
fn slabs_are_freed_while_objects_are_allocated_and_freed() {
    check_caches(Marks::Bits, |heap, cpu| {
        let other = heap.clone();
        let other = spawn(cpu, move || other.slabs.shrink());
        heap.use_one();
        other.join().unwrap();
    });
}

/// A thread's bin, as a program's malloc has it: reserved objects cross threads through slabs only.
#[test]
fn an_object_that_one_thread_reserves_is_no_other_ones() {
    check_caches(Marks::Bytes, |heap, cpu| {
        let use_reserved = |heap: &Heap| {
            let mut bin = Vec::new();
            assert_eq!(heap.slabs.reserve(heap.cache, 1, |place| bin.push(place)), 1);
            let object = bin[0].hand_out().expect("it is reserved");
            heap.contents[&object.0].write();
            let (_, place) = heap.slabs.take_back(object).expect("it is allocated");
            assert_eq!(heap.slabs.return_all(&[place]), Ok(()));
        };
        let other = heap.clone();
        let other = spawn(cpu, move || use_reserved(&other));
        use_reserved(heap);
        other.join().unwrap();
    });
}
