//! Containers of the crate allocator-api2 in paged memory, and pages that tasks await.

use crate::common::{PAGE, WAYS, memory};
use allocator_api2::alloc::{Allocator, Layout};
use allocator_api2::vec::Vec as ApiVec;
use hashbrown::{DefaultHashBuilder, HashMap};
use highwater::{Error, FileAccess, PagedAllocator};
use highwater_units::Prng;
use std::future::Future;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// A block, its layout, and the bytes that it should have.
type Owned = (NonNull<u8>, Layout, Vec<u8>);

fn layout(random: &mut Prng) -> Layout {
    let bits = 4 + random.below(17);
    let len = 1 + random.below(1 << bits) as usize;
    Layout::from_size_align(len, 1 << random.below(13)).expect("a layout")
}

fn bytes(block: NonNull<[u8]>) -> &'static mut [u8] {
    // SAFETY: a block of the test, which uses it in one place at a time.
    unsafe { &mut *block.as_ptr() }
}

fn change(alloc: &PagedAllocator, (block, old, kept): &mut Owned, random: &mut Prng) {
    let len = layout(random).size();
    let new = Layout::from_size_align(len, old.align()).expect("a layout");
    let (moved, is_zeroed) = if len < old.size() {
        // SAFETY: the block, its layout, and a shorter one.
        (unsafe { alloc.shrink(*block, *old, new) }, false)
    } else if random.percent(50) {
        // SAFETY: the block, its layout, and a longer one.
        (unsafe { alloc.grow_zeroed(*block, *old, new) }, true)
    } else {
        // SAFETY: as above.
        (unsafe { alloc.grow(*block, *old, new) }, false)
    };
    let found = bytes(moved.expect("room"));
    let same = len.min(old.size());
    assert!(found[..same] == kept[..same], "{old:?} to {new:?}");
    assert!(!is_zeroed || found[same..len].iter().all(|byte| *byte == 0), "{old:?} to {new:?}");
    found[same..len].fill(len as u8);
    kept.resize(len, len as u8);
    (*block, *old) = (moved.expect("room").cast(), new);
}

#[test]
fn blocks_keep_their_bytes_as_they_grow_and_shrink() {
    let memory = memory(WAYS[1]);
    let (alloc, left) = (PagedAllocator::new(&memory), memory.left().expect("ours"));
    let (mut random, mut owned) = (Prng::new(3), Vec::<Owned>::new());
    for _ in 0..2000 {
        let place = random.below(40) as usize;
        if place >= owned.len() {
            let layout = layout(&mut random);
            let block = alloc.allocate_zeroed(layout).expect("room");
            assert!(bytes(block)[..layout.size()].iter().all(|byte| *byte == 0));
            assert!(block.cast::<u8>().addr().get().is_multiple_of(layout.align()));
            owned.push((block.cast(), layout, vec![0; layout.size()]));
        } else if random.percent(30) {
            let (block, layout, kept) = owned.swap_remove(place);
            let found = bytes(NonNull::slice_from_raw_parts(block, layout.size()));
            assert!(*found == kept[..]);
            // SAFETY: the block and its layout.
            unsafe { alloc.deallocate(block, layout) };
        } else {
            change(&alloc, &mut owned[place], &mut random);
        }
    }
    for (block, layout, _) in owned {
        // SAFETY: as above.
        unsafe { alloc.deallocate(block, layout) };
    }
    assert_eq!(memory.left().expect("ours"), left);
    assert!(alloc.allocate(Layout::from_size_align(1 << 20, 8192).expect("a layout")).is_err());
}

#[test]
fn maps_and_vectors_may_be_larger_than_the_budget() {
    for way in WAYS {
        let memory = memory(way);
        let alloc = PagedAllocator::new(&memory);
        let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), alloc.clone());
        for key in 0..250_000u64 {
            map.insert(key, key * 3);
        }
        (0..250_000).step_by(3).for_each(|key| assert_eq!(map.remove(&key), Some(key * 3)));
        assert!((0..250_000u64).all(|key| map.get(&key).is_some() == (key % 3 > 0)));
        let mut vec = ApiVec::new_in(alloc);
        (0..2_000_000u64).for_each(|number| vec.push(number));
        assert!(vec.iter().copied().eq(0..2_000_000));
        assert!(vec.try_reserve(1 << 32).is_err(), "an error, not the end");
        assert!(memory.statistics().expect("counters").get("pswpout") > Some(1000));
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a task to its end in this thread.
fn block_on<T>(task: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut task = pin!(task);
    loop {
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(found) => return found,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn pages_that_were_awaited_are_in_memory() {
    for way in WAYS {
        let memory = memory(way);
        let mut mapping = memory.map(40 << 20).expect("room");
        mapping.chunks_mut(PAGE).enumerate().for_each(|(page, bytes)| bytes.fill(page as u8));
        let majors = || memory.statistics().expect("counters").get("pgmajfault").expect("it");
        for first in [1 << 20, 5 << 20] {
            let range = first..first + 64 * PAGE;
            block_on(mapping.fetch(range.clone()).expect("inside")).expect("read");
            let before = majors();
            for (page, bytes) in mapping[range].chunks(PAGE).enumerate() {
                assert_eq!(bytes[7], (first / PAGE + page) as u8);
            }
            assert_eq!(majors(), before, "{way:?}: no access waits");
        }
        block_on(mapping.fetch(9..9).expect("inside")).expect("nothing to read");
        assert!(matches!(mapping.fetch(0..(40 << 20) + 1), Err(Error::Range { .. })));
    }
}

/// A fetch that is cancelled or forgotten neither keeps its mapping alive nor outlives it.
#[test]
fn mappings_end_while_their_pages_are_fetched() {
    let dir = tempfile::tempdir().expect("a directory");
    for way in WAYS {
        let memory = memory(way);
        let left = memory.left().expect("ours");
        for round in 0..20u8 {
            let mut mapping = memory.map(24 << 20).expect("room");
            mapping.iter_mut().step_by(PAGE).for_each(|byte| *byte = round);
            drop(mapping.fetch(0..24 << 20).expect("inside"));
            std::mem::forget(mapping.fetch(0..24 << 20).expect("inside"));
            mapping.resize(12 << 20).expect("shorter");
            std::mem::forget(mapping.fetch(0..12 << 20).expect("inside"));
            assert!(mapping.iter().step_by(PAGE).all(|byte| *byte == round));
            let mut file = memory.create_file(dir.path().join("a"), 4 << 20).expect("made");
            std::mem::forget(file.fetch(0..4 << 20).expect("inside"));
            file.bytes_mut().expect("for writing").fill(round);
            file.resize(3 << 20).expect("shorter");
            std::mem::forget(file.fetch(0..3 << 20).expect("inside"));
            assert!(file.iter().all(|byte| *byte == round));
        }
        assert_eq!(memory.left().expect("ours"), left);
        // A fetch that outlives its mapping would leave pages in memory that no mapping has. Up to
        // 64 frames may be kept by CPUs and by transfers under way.
        let resident = || memory.statistics().expect("counters").get("nr_resident");
        let is_free = |_: &u32| {
            thread::sleep(Duration::from_millis(10));
            resident() <= Some(64)
        };
        assert!((0..500).find(is_free).is_some(), "{way:?}: {:?}", resident());
    }
}

#[test]
fn a_page_that_is_lost_is_the_result_of_its_fetch() {
    let dir = tempfile::tempdir().expect("a directory");
    let (memory, path) = (memory(WAYS[1]), dir.path().join("a"));
    std::fs::write(&path, vec![1; 4 << 20]).expect("written");
    let mapping = memory.map_file(&path, FileAccess::Read).expect("mapped");
    std::fs::OpenOptions::new().write(true).open(&path).expect("it").set_len(1).expect("shorter");
    let result = block_on(mapping.fetch(1 << 20..2 << 20).expect("inside"));
    assert!(matches!(result, Err(Error::Read(_))), "{result:?}");
}
