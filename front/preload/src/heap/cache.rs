//! Free objects that a thread caches.
//!
//! ```text
//! CACHE (thread) -> ThreadCache -- Bin for each class   at hand: newest last
//!                                   | empty: half a limit from the slabs
//!                                   | full:  the older half to the slabs
//! ```
//! A limit begins low and doubles whenever it is reached, up to 64 KiB of objects, so that a thread
//! with few requests caches little. Only the slabs are locked, for many objects at a time. A thread
//! that ends returns its objects (in a destructor of a pthread key, because registering that
//! allocates nothing when a thread begins); its later requests go directly to the slabs.

use super::classes::{CLASSES, SIZES};
use highwater_mm::slab::Place;
use libc::c_void;
use std::cell::Cell;
use std::sync::OnceLock;

/// Objects of a bin: initially, ...
const LIMIT_MIN: usize = 8;
/// ... at most, ...
const LIMIT_MAX: usize = 128;
/// ... and in bytes; at least two objects.
const BYTES_MAX: usize = 64 << 10;

thread_local! {
    static CACHE: Cell<State> = const { Cell::new(State::None) };
}

/// A thread's cache.
#[derive(Clone, Copy)]
enum State {
    /// Not made yet.
    None,
    Has(*mut ThreadCache),
    /// Returned: the thread is ending.
    Ended,
}

/// Returns objects of a thread to the slabs.
type Give = fn(&mut [Place<'static>]);

static KEY: OnceLock<(libc::pthread_key_t, Give)> = OnceLock::new();

/// The cached objects of a thread.
pub(super) struct ThreadCache {
    bins: [Bin; CLASSES],
}

/// The cached objects of a class.
#[derive(Default)]
pub(super) struct Bin {
    places: Vec<Place<'static>>,
    limit: usize,
}

/// Sets the function that returns a thread's objects when it ends.
pub(super) fn register(give: Give) {
    KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the call fills the key; the destructor gets what `begin` sets.
        unsafe { libc::pthread_key_create(&mut key, Some(end)) };
        (key, give)
    });
}

/// The bin of this thread; `None`: the thread is ending.
#[inline]
pub(super) fn bin(class: usize) -> Option<&'static mut Bin> {
    let cache = match CACHE.get() {
        State::Has(cache) => cache,
        State::None => begin(),
        State::Ended => return None,
    };
    // SAFETY: the thread's own, from `begin` to `end`; each call of malloc or free uses one bin at
    // a time, and neither may be called from a signal handler.
    unsafe { (*cache).bins.get_mut(class) }
}

/// Calls `found` with each cached object of this thread.
pub(super) fn each_of_this_thread(found: impl FnMut(&Place<'static>)) {
    if let State::Has(cache) = CACHE.get() {
        // SAFETY: the thread's own, as in `bin`; it does not change meanwhile.
        let cache = unsafe { &*cache };
        cache.bins.iter().flat_map(|bin| &bin.places).for_each(found);
    }
}

#[cold]
fn begin() -> *mut ThreadCache {
    let cache = ThreadCache { bins: std::array::from_fn(|_| Bin::default()) };
    let cache = Box::into_raw(Box::new(cache));
    CACHE.set(State::Has(cache));
    if let Some((key, _)) = KEY.get() {
        // SAFETY: an existing key; if the call fails, the objects leak with the thread.
        unsafe { libc::pthread_setspecific(*key, cache.cast()) };
    }
    cache
}

/// Returns a thread's objects.
///
/// # Safety
/// `cache` was made by `begin` for this thread, which does not use it again.
unsafe extern "C" fn end(cache: *mut c_void) {
    CACHE.set(State::Ended);
    // SAFETY: leaked by `begin`, for the thread that is ending.
    let mut cache = unsafe { Box::from_raw(cache.cast::<ThreadCache>()) };
    if let Some((_, give)) = KEY.get() {
        cache.bins.iter_mut().for_each(|bin| give(&mut bin.places));
    }
}

/// Maximum limit of a class.
fn limit_max(class: usize) -> usize {
    (BYTES_MAX / SIZES[class] as usize).clamp(2, LIMIT_MAX)
}

impl Bin {
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Place<'static>> {
        self.places.pop()
    }

    /// Adds an object. The bin may be full afterwards.
    #[inline]
    pub(super) fn push(&mut self, place: Place<'static>) {
        self.places.push(place);
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= self.limit
    }

    /// Doubles the limit, up to its maximum.
    fn grow(&mut self, class: usize) {
        self.limit = (2 * self.limit).clamp(LIMIT_MIN, LIMIT_MAX).min(limit_max(class));
    }

    /// Fills an empty bin to half its limit. The lowest address is used first.
    #[cold]
    pub(super) fn fill(
        &mut self,
        class: usize,
        take: impl FnOnce(usize, &mut Vec<Place<'static>>),
    ) {
        self.grow(class);
        take((self.limit / 2).max(1), &mut self.places);
        self.places.reverse();
    }

    /// Returns the older half of a full bin, unless its limit can grow.
    #[cold]
    pub(super) fn spill(&mut self, class: usize, give: impl FnOnce(&mut [Place<'static>])) {
        let before = self.limit;
        self.grow(class);
        if self.limit == before {
            let mut oldest: Vec<Place<'static>> =
                self.places.drain(..self.limit.div_ceil(2)).collect();
            give(&mut oldest);
        }
    }
}
