//! Blocks of malloc below 64 KiB: objects of slabs, in paged memory.
//!
//! ```text
//! HEAP -> Heap -- a bin of free objects for each class and thread       cache.rs classes.rs
//!              |- Slabs<HeapPages>  which objects there are, and which are in use
//!              \- HeapPages         runs of pages, of one region of the range   pages.rs
//! Gate                             closed by a fork                            gate.rs
//! ```
//! All data about an object is in the library's own memory, so neither malloc nor free touches a
//! page: an object whose page is swapped out is freed, and its place reused, without a fault. One
//! byte per object records whether it is in use, also for cached objects: freeing an object twice,
//! or an address that was never allocated, ends the program.
//!
//! Locking: gate, then slabs, then runs of pages; none is held while pages are discarded. No thread
//! of the manager takes any of these, so a holder may fault (in a signal handler, for instance) and
//! is served. For the same reason the slabs are no shrinker of the manager: the empty slabs they
//! keep are bounded, and swapped out like other pages.
//!
//! In a forked child the heap continues, over the child's manager. Objects that other threads had
//! cached, which their marks show, go back to the slabs.

mod cache;
mod classes;
pub(crate) mod gate;
mod pages;

pub(crate) use classes::{aligned_class_of, class_of};
use gate::Closed;

use crate::end::abort;
use crate::memory;
use crate::process::Process;
use crate::signals::{Blocked, touch_stack};
use classes::SIZES;
use highwater_mm::Config;
use highwater_mm::config::SlabConfig;
use highwater_mm::error::FreeError;
use highwater_mm::slab::{CacheId, CacheSpec, Callers, Marks, Object, Place, Slabs};
use highwater_session::{MALLOC_SIZES_MAX, MallocReport, malloc_cache_name};
use highwater_units::PAGE_SIZE;
use pages::{HeapPages, order_of};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::time::Duration;

static HEAP: AtomicPtr<Heap> = AtomicPtr::new(ptr::null_mut());
static ABANDONED: AtomicPtr<Heap> = AtomicPtr::new(ptr::null_mut());

/// The heap of a process.
pub(crate) struct Heap {
    /// Address of object 0.
    base: usize,
    len: usize,
    slabs: Slabs<HeapPages>,
    /// By class; created first, so that a cache's number is its class's.
    caches: Vec<CacheId>,
}

/// The heap, if there is one.
#[inline]
pub(crate) fn get() -> Option<&'static Heap> {
    // SAFETY: null, or a Heap that was leaked.
    unsafe { HEAP.load(Acquire).as_ref() }
}

/// Makes the heap of a process that is served from now on. The error says what there is no room
/// for.
pub(crate) fn start(process: &'static Process) -> Result<(), String> {
    let pages = HeapPages::new(process).ok_or("no addresses for small blocks")?;
    let range = pages.range();
    let base = process.address(range.first) as usize;
    let len = (range.end.0 - range.first.0) as usize * PAGE_SIZE;
    // The threads' caches do the work of sheaves.
    let slab = SlabConfig { sheaves: Some(false) };
    let slabs = Slabs::new(pages, &Config { slab, ..Config::default() });
    let create = |size: &u32| {
        let name = malloc_cache_name(*size);
        let (callers, marks) = (Callers::Unknown, Marks::Bytes);
        slabs.create(CacheSpec { name, size: *size, callers, marks, order: order_of(*size) })
    };
    let caches: Result<Vec<CacheId>, _> = SIZES.iter().map(create).collect();
    let caches = caches.map_err(|error| format!("no caches for small blocks: {error:?}"))?;
    cache::register(|places| {
        if let Some(heap) = get() {
            heap.give(places);
        }
    });
    let heap = Heap { base, len, slabs, caches };
    HEAP.store(Box::leak(Box::new(heap)), Release);
    Ok(())
}

/// In a forked child that is served: returns objects that other threads had cached.
pub(crate) fn inherit() {
    get().into_iter().for_each(Heap::return_orphans);
}

const _: () = assert!(SIZES.len() <= MALLOC_SIZES_MAX, "statistics have a row for each size");

/// What malloc holds in a process, and the CPU time of finding out; `None`: there is no heap.
pub(crate) fn gather(process: &Process) -> Option<(MallocReport, Duration)> {
    let heap = get()?;
    let began = thread_time();
    let caches = heap.slabs.report();
    let blocked = Blocked::now();
    let (large_blocks, large_pages) = process.regions(&blocked).blocks();
    drop(blocked);
    let took = thread_time().saturating_sub(began);
    Some((MallocReport { caches, large_blocks, large_pages }, took))
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The state of the heap at a fork.
pub(crate) enum Found {
    /// No thread uses the slabs or the C library's malloc.
    Whole(#[expect(dead_code, reason = "held, not read")] Option<Closed>),
    /// This thread was interrupted in one of them, or in the allocator of the slabs' records.
    Interrupted,
}

/// Closes the heap for a fork, if this thread can wait for that.
pub(crate) fn close() -> Found {
    if memory::is_interrupted() || gate::is_interrupted() {
        Found::Interrupted
    } else {
        Found::Whole(gate::close())
    }
}

/// In a forked child: gives up the heap, whose slabs another thread may have been changing. Later
/// requests go to the C library; existing blocks stay, and are not freed.
pub(crate) fn abandon() {
    gate::abandon();
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

    /// An object of a class; null if memory is exhausted.
    #[inline]
    pub(crate) fn alloc(&'static self, class: usize) -> *mut u8 {
        let Some(bin) = cache::bin(class) else { return self.alloc_alone(class) };
        match bin.pop() {
            Some(place) => self.hand_out(place),
            None => {
                bin.fill(class, |count, to| self.take(class, count, to));
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

    /// Takes an object back. If it is free, or no object, the program ends.
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
            bin.spill(class, |places| self.give(places));
        }
    }

    /// Size of an object. If it is free, or no object, the program ends.
    pub(crate) fn size_of(&self, address: usize) -> usize {
        match self.slabs.size_of(Object((address - self.base) as u64)) {
            Ok(size) => size as usize,
            Err(error) => refuse(error, address),
        }
    }

    /// Allocates for a thread that is ending and has no bins.
    #[cold]
    fn alloc_alone(&'static self, class: usize) -> *mut u8 {
        let mut one = Vec::new();
        self.take(class, 1, &mut one);
        one.pop().map_or(ptr::null_mut(), |place| self.hand_out(place))
    }

    /// Takes up to `count` objects from the slabs, as memory allows.
    fn take(&'static self, class: usize, count: usize, to: &mut Vec<Place<'static>>) {
        keeping_errno(|| {
            let _inside = gate::enter();
            self.slabs.reserve(self.caches[class], count, |place| to.push(place));
        });
    }

    /// Returns objects to the slabs.
    fn give(&self, places: &mut [Place<'_>]) {
        keeping_errno(|| {
            places.sort_unstable_by_key(Place::object);
            let inside = gate::enter();
            let returned = self.slabs.return_all(places);
            returned.unwrap_or_else(|object| refuse(FreeError::Free, self.address(object)));
            drop(inside);
            if self.slabs.source().has_excess() {
                self.discard_excess();
            }
        });
    }

    /// Returns objects that other threads had cached when the process was forked. The child's only
    /// thread keeps its own.
    fn return_orphans(&self) {
        let mut own = Vec::new();
        cache::each_of_this_thread(|place| own.push(place.object()));
        own.sort_unstable();
        let mut orphans = self.slabs.at_hand();
        orphans.retain(|place| own.binary_search(&place.object()).is_err());
        if !orphans.is_empty() {
            self.give(&mut orphans);
        }
    }

    /// Discards runs that the slabs have returned, if they are too many. Meanwhile nothing else
    /// refers to them.
    #[cold]
    fn discard_excess(&self) {
        let pages = self.slabs.source();
        let inside = gate::enter();
        let mut runs = pages.excess();
        drop(inside);
        pages.discard(&mut runs);
        let _inside = gate::enter();
        pages.put_emptied(&runs);
    }
}

/// Ends a program whose data could be overwritten otherwise.
#[cold]
fn refuse(error: FreeError, address: usize) -> ! {
    match error {
        FreeError::Free => abort(&format!("a block was freed twice: {address:#x}")),
        FreeError::Foreign => end_foreign(address),
    }
}

/// Ends a program that frees or resizes anything other than a block, or a large block that was
/// freed before: its addresses are forgotten.
pub(crate) fn end_foreign(address: usize) -> ! {
    abort(&format!(
        "free or realloc of a pointer that malloc did not return, or that was freed before: \
         {address:#x}"
    ))
}

/// Calls `act`, with the stack that `act` needs present. The program's stacks may be in paged
/// memory, and the manager allocates to serve a fault, under a lock that this thread might hold.
/// Keeps errno, which free must not change.
#[inline(never)]
fn keeping_errno(act: impl FnOnce()) {
    touch_stack();
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    act();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
