//! Free objects that a thread has at hand.
//!
//! ```text
//! CACHE (thread) -> ThreadCache -- Bin x 44   at hand: newest last
//!                                   | empty: half a limit from the slabs
//!                                   | full:  the older half to the slabs
//! ```
//! A limit begins low and doubles whenever it is reached, up to 64 KiB of objects, so that threads
//! which ask for little keep little. Nothing is locked but the slabs, for many objects at a time. A
//! thread that ends returns what it has (a destructor of a pthread key, which registers nothing
//! when a thread begins); what it asks for after that goes straight to the slabs.

use super::classes::{CLASSES, SIZES};
use highwater_mm::slab::Place;
use libc::c_void;
use std::cell::Cell;
use std::sync::OnceLock;

/// Objects of a bin: at first, ...
const LIMIT_MIN: usize = 8;
/// ... at most, ...
const LIMIT_MAX: usize = 128;
/// ... and bytes of them, but for two.
const BYTES_MAX: usize = 64 << 10;

thread_local! {
    static CACHE: Cell<State> = const { Cell::new(State::None) };
}

/// What a thread has.
#[derive(Clone, Copy)]
enum State {
    /// Nothing yet.
    None,
    Has(*mut ThreadCache),
    /// Nothing any more: it ends.
    Ended,
}

/// Takes objects back that a thread had.
type Give = fn(&mut [Place<'static>]);

static KEY: OnceLock<(libc::pthread_key_t, Give)> = OnceLock::new();

/// The objects of a thread.
pub(super) struct ThreadCache {
    bins: [Bin; CLASSES],
}

/// Those of a class.
#[derive(Default)]
pub(super) struct Bin {
    places: Vec<Place<'static>>,
    limit: usize,
}

/// Makes threads return what they have when they end, by `give`.
pub(super) fn register(give: Give) {
    KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: fills the key; the destructor is given what `begin` sets.
        unsafe { libc::pthread_key_create(&mut key, Some(end)) };
        (key, give)
    });
}

/// The bin of this thread; `None`: it ends.
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

/// Calls `found` with what this thread has at hand.
pub(super) fn each_of_this_thread(found: impl FnMut(&Place<'static>)) {
    if let State::Has(cache) = CACHE.get() {
        // SAFETY: the thread's own, as in `bin`; nobody changes it meanwhile.
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
        // SAFETY: a key that was made; if this fails the objects are lost with the thread.
        unsafe { libc::pthread_setspecific(*key, cache.cast()) };
    }
    cache
}

/// Returns what a thread has.
///
/// # Safety
/// `cache` is what `begin` made for this thread, which never uses it again.
unsafe extern "C" fn end(cache: *mut c_void) {
    CACHE.set(State::Ended);
    // SAFETY: what `begin` let go, for the thread that ends.
    let mut cache = unsafe { Box::from_raw(cache.cast::<ThreadCache>()) };
    if let Some((_, give)) = KEY.get() {
        cache.bins.iter_mut().for_each(|bin| give(&mut bin.places));
    }
}

/// Objects of a class that a thread has at most.
fn limit_max(class: usize) -> usize {
    (BYTES_MAX / SIZES[class] as usize).clamp(2, LIMIT_MAX)
}

impl Bin {
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Place<'static>> {
        self.places.pop()
    }

    /// Adds an object; the bin may be full then.
    #[inline]
    pub(super) fn push(&mut self, place: Place<'static>) {
        self.places.push(place);
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= self.limit
    }

    /// Twice as many from now on, as far as that goes.
    fn grow(&mut self, class: usize) {
        self.limit = (2 * self.limit).clamp(LIMIT_MIN, LIMIT_MAX).min(limit_max(class));
    }

    /// Fills an empty bin half; the lowest address is to be taken first.
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

    /// Returns the older half of a full bin, unless it may be larger.
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
