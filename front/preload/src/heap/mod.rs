//! Blocks of malloc below 64 KiB: objects of slabs, in paged memory.
//!
//! ```text
//! HEAP -> Heap -- a bin of free objects for each class and thread       cache.rs classes.rs
//!              |- Slabs<HeapPages>  which objects there are, and which are in use
//!              |- HeapPages         runs of pages, of one region of the range   pages.rs
//!              |- Gate              closed by a fork                            gate.rs
//!              \- Watch             what all hold, for the report of the run    watch.rs
//! ```
//! All that is known of an object lies in memory of the library's own, so neither malloc nor free
//! ever touches a page: an object whose page is swapped out is freed, and its place given out
//! again, without a fault. A byte says whether an object is in use, also of those that a thread has
//! at hand: what is freed twice, or was never allocated, ends the program.
//!
//! Locking: gate, then slabs, then runs of pages; none of them is held when pages are discarded. No
//! thread of the manager takes any of these, so whoever holds one may fault (in a signal handler,
//! say) and is served. That is why the slabs are no shrinker of the manager: what they keep empty
//! is bounded, and swapped out like everything else.
//!
//! In a forked child the heap goes on as it was, over the child's manager. What other threads had
//! at hand, as its marks tell, goes back to the slabs.

mod cache;
mod classes;
mod demand;
mod gate;
mod pages;
mod watch;

pub(crate) use classes::{aligned_class_of, class_of};
pub(crate) use demand::note;
use gate::Closed;
pub(crate) use watch::{Look, Watch};

use crate::process::Process;
use crate::signals::{Blocked, touch_stack};
use crate::{memory, report};
use classes::SIZES;
use gate::Gate;
use highwater_mm::Config;
use highwater_mm::config::SlabConfig;
use highwater_mm::error::FreeError;
use highwater_mm::slab::{CacheId, CacheSpec, Callers, Marks, Object, Place, SlabPages, Slabs};
use highwater_session::{MALLOC_SIZES_MAX, MallocReport, malloc_cache_name};
use highwater_units::{Order, PAGE_SIZE};
use pages::HeapPages;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::time::Duration;

/// Slabs of 32 KiB: few enough that their records stay in the processor's caches.
const ORDER: Order = Order(3);

static HEAP: AtomicPtr<Heap> = AtomicPtr::new(ptr::null_mut());
static ABANDONED: AtomicPtr<Heap> = AtomicPtr::new(ptr::null_mut());

/// The heap of a process.
pub(crate) struct Heap {
    /// Address of object 0.
    base: usize,
    len: usize,
    slabs: Slabs<HeapPages>,
    /// By class; made first, so that a cache's number is its class's.
    caches: Vec<CacheId>,
    gate: Gate,
}

/// The heap, if there is one.
#[inline]
pub(crate) fn get() -> Option<&'static Heap> {
    // SAFETY: null, or a Heap that was leaked.
    unsafe { HEAP.load(Acquire).as_ref() }
}

/// Makes the heap of a process that is served from now on; says what there is no room for.
pub(crate) fn start(process: &'static Process) -> Result<(), String> {
    let pages = HeapPages::new(process).ok_or("no addresses for small blocks")?;
    let range = pages.range();
    let base = process.address(range.first) as usize;
    let len = (range.end.0 - range.first.0) as usize * PAGE_SIZE;
    let gate = Gate::new(pages.platform());
    // What threads have at hand does the work of sheaves.
    let slab = SlabConfig { sheaves: Some(false) };
    let slabs = Slabs::new(pages, &Config { slab, ..Config::default() });
    let create = |size: &u32| {
        let name = malloc_cache_name(*size);
        let (callers, marks) = (Callers::Unknown, Marks::Bytes);
        slabs.create(CacheSpec { name, size: *size, callers, marks, order: ORDER })
    };
    let caches: Result<Vec<CacheId>, _> = SIZES.iter().map(create).collect();
    let caches = caches.map_err(|error| format!("no caches for small blocks: {error:?}"))?;
    cache::register();
    let heap = Heap { base, len, slabs, caches, gate };
    HEAP.store(Box::leak(Box::new(heap)), Release);
    Ok(())
}

/// In a forked child, which is served: the heap is all its own.
pub(crate) fn inherit() {
    get().into_iter().for_each(Heap::return_orphans);
}

const _: () = assert!(SIZES.len() <= MALLOC_SIZES_MAX, "statistics have a row for each size");

/// What malloc holds of a process, and the CPU time it took to find out; `None`: there is no heap.
pub(crate) fn gather(process: &Process) -> Option<(MallocReport, Duration)> {
    let heap = get()?;
    let began = thread_time();
    let caches = heap.slabs.report();
    let blocked = Blocked::now();
    let (large_blocks, large_pages) = process.regions().blocks();
    drop(blocked);
    let took = thread_time().saturating_sub(began);
    Some((MallocReport { caches, large_blocks, large_pages }, took))
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the time, of a clock that every thread has.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a fork finds.
pub(crate) enum Found {
    /// Nobody is at the slabs, or there are none.
    Whole(#[expect(dead_code, reason = "held, not read")] Option<Closed>),
    /// This thread was interrupted at the slabs, or at the memory of their records.
    Interrupted,
}

/// Keeps the heap as it is, for a fork, where that can be waited for.
pub(crate) fn close() -> Found {
    match memory::is_interrupted() || gate::is_interrupted() {
        true => Found::Interrupted,
        false => Found::Whole(get().map(|heap| heap.gate.close())),
    }
}

/// In a forked child: gives the heap up, whose slabs somebody may have been changing. What is asked
/// for from now on is the C library's; blocks that there are stay, and are not freed.
pub(crate) fn abandon() {
    ABANDONED.store(HEAP.swap(ptr::null_mut(), AcqRel), Release);
}

/// The heap that was given up, if it holds an address.
#[cold]
pub(crate) fn abandoned(address: usize) -> Option<&'static Heap> {
    // SAFETY: null, or a Heap that was leaked.
    let heap: Option<&'static Heap> = unsafe { ABANDONED.load(Acquire).as_ref() };
    heap.filter(|heap| heap.holds(address))
}

impl Heap {
    /// Whether an address is in the heap: one comparison.
    #[inline]
    pub(crate) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.len
    }

    /// An object of a class; null: there is no memory for one.
    #[inline]
    pub(crate) fn alloc(&'static self, class: usize) -> *mut u8 {
        let Some(bin) = cache::bin(class) else { return self.alloc_alone(class) };
        match bin.pop() {
            Some(place) => self.hand_out(place),
            None => {
                bin.fill(self, class);
                bin.pop().map_or(ptr::null_mut(), |place| self.hand_out(place))
            }
        }
    }

    #[inline]
    fn hand_out(&self, place: Place<'_>) -> *mut u8 {
        let address = self.address(place.object());
        match place.hand_out() {
            Ok(_) => address as *mut u8,
            Err(error) => refuse(error, address),
        }
    }

    #[inline]
    fn address(&self, object: Object) -> usize {
        self.base + object.0 as usize
    }

    /// Takes an object back. What is none, or free, ends the program.
    #[inline]
    pub(crate) fn free(&'static self, address: usize) {
        let object = Object((address - self.base) as u64);
        let (class, place) = match self.slabs.take_back(object) {
            Ok((cache, place)) => (cache.index(), place),
            Err(error) => refuse(error, address),
        };
        let Some(bin) = cache::bin(class) else { return self.give(&mut [place]) };
        bin.push(place);
        if bin.is_full() {
            bin.spill(self, class);
        }
    }

    /// Bytes of an object. What is none, or free, ends the program.
    pub(crate) fn size_of(&self, address: usize) -> usize {
        match self.slabs.size_of(Object((address - self.base) as u64)) {
            Ok(size) => size as usize,
            Err(error) => refuse(error, address),
        }
    }

    /// For a thread that has no bins any more.
    #[cold]
    fn alloc_alone(&'static self, class: usize) -> *mut u8 {
        let mut one = Vec::new();
        self.take(class, 1, &mut one);
        one.pop().map_or(ptr::null_mut(), |place| self.hand_out(place))
    }

    /// Takes objects from the slabs, as many of `count` as there is memory for.
    fn take(&'static self, class: usize, count: usize, to: &mut Vec<Place<'static>>) {
        keeping_errno(|| {
            let _inside = self.gate.enter(self.slabs.platform());
            self.slabs.reserve(self.caches[class], count, |place| to.push(place));
        });
    }

    /// Returns objects to the slabs.
    fn give(&self, places: &mut [Place<'_>]) {
        keeping_errno(|| {
            places.sort_unstable_by_key(Place::object);
            let inside = self.gate.enter(self.slabs.platform());
            let returned = self.slabs.return_all(places);
            returned.unwrap_or_else(|object| refuse(FreeError::Free, self.address(object)));
            drop(inside);
            if self.slabs.source().has_excess() {
                self.discard_excess();
            }
        });
    }

    /// Returns what threads had at hand that a fork left behind. The forked child's only thread
    /// keeps what it has.
    fn return_orphans(&self) {
        let mut own = Vec::new();
        cache::each_of_this_thread(|place| own.push(place.object()));
        own.sort_unstable();
        let mut orphans = self.slabs.at_hand();
        orphans.retain(|place| own.binary_search(&place.object()).is_err());
        self.give(&mut orphans);
    }

    /// Discards what slabs have given back, if it is too much. Runs on their way are nobody's.
    #[cold]
    fn discard_excess(&self) {
        let pages = self.slabs.source();
        let inside = self.gate.enter(self.slabs.platform());
        let mut runs = pages.excess();
        drop(inside);
        pages.discard(&mut runs);
        let _inside = self.gate.enter(self.slabs.platform());
        pages.put_emptied(&runs);
    }
}

/// A program that goes on after this would have its data overwritten.
#[cold]
fn refuse(error: FreeError, address: usize) -> ! {
    match error {
        FreeError::Free => report::end(&format!("a block was freed twice: {address:#x}")),
        FreeError::Foreign => end_foreign(address),
    }
}

/// Ends a program that frees or resizes what is no block.
pub(crate) fn end_foreign(address: usize) -> ! {
    report::end(&format!("free or realloc of a pointer that malloc did not return: {address:#x}"))
}

/// Calls `act`, with the stack that it needs present: a program may have its stacks in paged
/// memory, and to serve a fault the manager allocates memory of its own, with a lock that this
/// thread might hold then. Keeps errno, which free must not change.
#[inline(never)]
fn keeping_errno(act: impl FnOnce()) {
    touch_stack();
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    act();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
