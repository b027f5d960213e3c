//! A batch makes no allocations: the heap may be swapped out while faults are served.

mod common;

use common::{Frames, every_device, read, write};
use highwater_platform::Io;
use highwater_units::{Bytes, Pfn};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by contract of this function.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

#[test]
fn batches_allocate_nothing_after_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(100);
    let run = |run: u32| Io::new(run * 2, [Pfn(run), Pfn(99 - run)].into_iter().collect());
    let mut batch: Vec<Io> = (0..50).map(run).collect();
    (0..100).for_each(|pfn| frames.fill(Pfn(pfn), u64::from(pfn)));
    for (name, device) in every_device(dir.path(), Bytes(4 << 20)) {
        write(&*device, &frames, &mut batch);
        let before = ALLOCATIONS.get();
        for _ in 0..10 {
            write(&*device, &frames, &mut batch);
            read(&*device, &frames, &mut batch);
        }
        assert_eq!(ALLOCATIONS.get(), before, "{name}");
        assert!(before > 0 && batch.iter().all(|io| io.result == Ok(())));
    }
}
