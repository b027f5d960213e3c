//! Mappings of large files that the program has made: their pages may be unmapped at any time.
//!
//! ```text
//! mmap, mremap ----------> add      a shared mapping, or a private one that is not written to
//! munmap, mmap, mprotect - forget   before the call: from then on its pages stay as they are
//! file_trim.rs ----------- drop_some: unmaps pages between the two
//! ```
//! A page of such a mapping lies in the page cache. Unmapping it (MADV_DONTNEED) loses nothing: a
//! store to a shared mapping marks the page of the cache as dirty, and the next access maps the
//! page again. In other memory MADV_DONTNEED would lose contents, so the pages that are present are
//! looked up first: if any of them belongs to the process alone, the mapping is forgotten.
//!
//! A private mapping that mremap changes is forgotten for good: another thread may make it writable
//! before it could be added again.
//!
//! Locking: the table is changed, and pages are unmapped, while no fork is under way ([`forking`]),
//! so calls that change a mapping wait for an unmapping; [`overlaps`] takes no lock. A program that
//! replaces such a mapping by raw system calls may lose a store to the new memory, if it is made in
//! the microseconds between the lookup of a page and the call that unmaps it.

use crate::forking;
use crate::pagemap::{Pagemap, Seen};
use crate::signals::Blocked;
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_units::{Nanos, PAGE_SIZE};
use libc::c_int;
use rustix::mm::{Advice, madvise};
use std::cell::UnsafeCell;
use std::mem;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;

/// Smaller mappings are not worth the lookups.
const BYTES_MIN: usize = 1 << 20;

/// Mappings that are remembered; others count, but stay mapped.
const PARTS_MAX: usize = 256;

/// Pages that are unmapped at once: the calls that change mappings wait for some 100 us.
pub(crate) const BATCH_MAX: u64 = 4096;

/// Pages that are forgotten at once, of those that cannot be unmapped together.
const FORGOTTEN_AT_ONCE: u64 = 16;

/// Bytes of a mapping that are looked up at once. Page tables of pages that were unmapped may stay,
/// and passing over those of 1 GiB takes some 300 us.
const SPAN_MAX: usize = 1 << 30;

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Stores change the file.
    Shared,
    /// Private, and neither writable nor executable since it was mapped.
    Constant,
}

/// A request that may make such a mapping; `None`: it cannot.
pub(crate) fn kind_of(len: usize, access: c_int, flags: c_int) -> Option<Kind> {
    let barred = libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_GROWSDOWN;
    if flags & barred != 0 || len < BYTES_MIN {
        return None;
    }
    match flags & libc::MAP_TYPE {
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => Some(Kind::Shared),
        libc::MAP_PRIVATE if access == libc::PROT_READ => Some(Kind::Constant),
        _ => None,
    }
}

/// A mapping, or what is left of it: the address of its first page, and that after its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    start: usize,
    end: usize,
    kind: Kind,
}

/// All mappings, in the order of their addresses.
struct Parts {
    all: [Part; PARTS_MAX],
    len: usize,
    /// Whether it has changed since it was shown.
    is_changed: bool,
}

impl Parts {
    const NONE: Parts = Parts {
        all: [Part { start: 0, end: 0, kind: Kind::Shared }; PARTS_MAX],
        len: 0,
        is_changed: false,
    };

    fn all(&self) -> &[Part] {
        &self.all[..self.len]
    }

    /// Adds a part where no other is. Without room for it, it is left out.
    fn insert(&mut self, part: Part) {
        if self.len < PARTS_MAX && part.start < part.end {
            let at = self.all().partition_point(|other| other.start < part.start);
            self.all.copy_within(at..self.len, at + 1);
            self.all[at] = part;
            self.len += 1;
            self.is_changed = true;
        }
    }

    /// Removes what lies between two addresses, of kinds that `goes` names.
    fn remove(&mut self, start: usize, end: usize, goes: impl Fn(Kind) -> bool) {
        let mut at = self.all().partition_point(|part| part.end <= start);
        while at < self.len && self.all[at].start < end {
            let part = self.all[at];
            if !goes(part.kind) {
                at += 1;
                continue;
            }
            self.all.copy_within(at + 1..self.len, at);
            self.len -= 1;
            self.is_changed = true;
            let before = self.len;
            self.insert(Part { end: start, ..part });
            at += self.len - before;
            self.insert(Part { start: end, ..part });
        }
    }

    /// The first part that ends after an address.
    fn after(&self, address: usize) -> Option<Part> {
        self.all().get(self.all().partition_point(|part| part.end <= address)).copied()
    }

    /// The part that has all bytes between two addresses.
    fn around(&self, start: usize, end: usize) -> Option<Part> {
        self.after(start).filter(|part| part.start <= start && end <= part.end)
    }
}

struct PartsCell(UnsafeCell<Parts>);

// SAFETY: used only in `with`, by the thread that excludes forks.
unsafe impl Sync for PartsCell {}

static PARTS: PartsCell = PartsCell(UnsafeCell::new(Parts::NONE));

/// Sum of the lengths of all mappings.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// 1 while a thread waits until there is a mapping.
static AWAITED: AtomicU32 = AtomicU32::new(0);

/// What [`overlaps`] reads: most calls that change memory need no lock, and the balancer must not
/// wait for a fork, which may wait for it. Odd while the bounds below change: the first address of
/// each mapping, and that after its last one, in turn.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
static BOUNDS: [AtomicUsize; 2 * PARTS_MAX] = [const { AtomicUsize::new(0) }; 2 * PARTS_MAX];
static BOUNDS_LEN: AtomicUsize = AtomicUsize::new(0);

/// Gives the table to `act`, and shows it if it has changed.
fn with<R>(act: impl FnOnce(&mut Parts) -> R) -> R {
    // A handler of a signal may fork.
    let _blocked = Blocked::now();
    forking::begin();
    // SAFETY: one thread at a time is between these two calls.
    let parts = unsafe { &mut *PARTS.0.get() };
    let result = act(parts);
    if mem::take(&mut parts.is_changed) {
        show(parts);
    }
    forking::end();
    result
}

fn show(parts: &Parts) {
    CHANGES.fetch_add(1, SeqCst);
    let bounds = parts.all().iter().flat_map(|part| [part.start, part.end]);
    BOUNDS.iter().zip(bounds).for_each(|(shown, bound)| shown.store(bound, SeqCst));
    BOUNDS_LEN.store(2 * parts.len, SeqCst);
    CHANGES.fetch_add(1, SeqCst);
    let bytes = parts.all().iter().map(|part| part.end - part.start).sum();
    BYTES.store(bytes, SeqCst);
}

/// Sum of the lengths of all mappings: no more than this can become resident.
pub(crate) fn bytes() -> usize {
    BYTES.load(SeqCst)
}

/// A number that changes with the mappings.
pub(crate) fn changes() -> usize {
    CHANGES.load(SeqCst)
}

/// Whether any part of a mapping lies between two addresses. Takes no lock; `None` if the mappings
/// change all the time.
fn overlaps(start: usize, end: usize) -> Option<bool> {
    const TRIES: usize = 100;
    (0..TRIES).find_map(|_| {
        let changes = CHANGES.load(SeqCst);
        let bounds = BOUNDS[..BOUNDS_LEN.load(SeqCst)].as_chunks::<2>().0;
        let at = bounds.partition_point(|[_, last]| last.load(SeqCst) <= start);
        let found = bounds.get(at).is_some_and(|[first, _]| first.load(SeqCst) < end);
        (changes.is_multiple_of(2) && changes == CHANGES.load(SeqCst)).then_some(found)
    })
}

/// Whether a call that changes these addresses needs the table.
fn may_overlap(start: usize, end: usize) -> bool {
    start < end && overlaps(start, end).unwrap_or(true)
}

/// Whether any address from `start` to `end` lies in a mapping. Takes no lock; may be wrong while
/// the mappings change.
pub(crate) fn contains_any(start: usize, end: usize) -> bool {
    overlaps(start, end).unwrap_or(false)
}

#[cfg(test)]
pub(crate) fn contains(address: usize) -> bool {
    contains_any(address, address + 1)
}

/// The pages that a call changes which is given these bytes: from, to.
fn pages_around(address: usize, len: usize) -> (usize, usize) {
    let end = address.saturating_add(len).checked_next_multiple_of(PAGE_SIZE);
    (address / PAGE_SIZE * PAGE_SIZE, end.unwrap_or(usize::MAX))
}

/// The program has mapped a file. The mapping has just begun, so no other thread uses it.
pub(crate) fn add(address: usize, len: usize, kind: Kind) {
    let (start, end) = pages_around(address, len);
    with(|parts| {
        parts.remove(start, end, |_| true);
        parts.insert(Part { start, end, kind });
    });
    if AWAITED.swap(0, SeqCst) == 1 {
        futex_wake_all(&AWAITED);
    }
}

/// Waits until there is a mapping, but not longer than `time`. Returns whether there is one.
pub(crate) fn await_one(time: Duration) -> bool {
    AWAITED.store(1, SeqCst);
    if bytes() == 0 {
        futex_wait(&AWAITED, 1, Some(Nanos(time.as_nanos() as u64)));
    }
    AWAITED.store(0, SeqCst);
    bytes() > 0
}

/// The program is about to change mappings.
pub(crate) fn forget(address: usize, len: usize) {
    let (start, end) = pages_around(address, len);
    if may_overlap(start, end) {
        with(|parts| parts.remove(start, end, |_| true));
    }
}

/// The program is about to change the access to some memory. A store to a private mapping makes a
/// page the process's own, and so does a breakpoint in code.
pub(crate) fn note_access(address: usize, len: usize, access: c_int) {
    let (start, end) = pages_around(address, len);
    if access & !libc::PROT_READ != 0 && may_overlap(start, end) {
        with(|parts| parts.remove(start, end, |kind| kind == Kind::Constant));
    }
}

/// The program is about to move or resize a mapping, which is forgotten. Returns whether it is a
/// shared one and lay in one of these as a whole: it may be added again after the call. Another
/// thread may make a private one writable meanwhile.
pub(crate) fn take_shared(address: usize, len: usize) -> bool {
    // Without a length the call duplicates the mapping, which stays.
    let (start, end) = pages_around(address, len.max(1));
    if !may_overlap(start, end) {
        return false;
    }
    with(|parts| {
        let found = parts.around(start, end).is_some_and(|part| part.kind == Kind::Shared);
        if len > 0 {
            parts.remove(start, end, |_| true);
        }
        found
    })
}

/// The result of a step of unmapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It has unmapped so many pages.
    Dropped(u64),
    /// There are no mappings beyond the hand, which begins at the first one again.
    Wrapped,
}

/// Unmaps up to `wanted` pages, from the hand on, as far as one call goes. Moves the hand.
pub(crate) fn drop_some(pagemap: &Pagemap, hand: &mut usize, wanted: u64) -> Step {
    with(|parts| {
        let Some(part) = parts.after(*hand) else {
            *hand = 0;
            return Step::Wrapped;
        };
        let from = part.start.max(*hand);
        let to = part.end.min(from.saturating_add(SPAN_MAX));
        let Seen { pages, mapped, is_own, end } = pagemap.look(from..to, wanted.min(BATCH_MAX));
        *hand = end;
        if is_own {
            // Something else has been mapped here, or a debugger has written to it.
            parts.remove(part.start, part.end, |_| true);
            return Step::Dropped(0);
        }
        let address = with_exposed_provenance_mut(pages.start);
        // SAFETY: all present pages are those of a file, and no store makes them the process's own.
        let unmap = || unsafe { madvise(address, pages.len(), Advice::LinuxDontNeed) };
        if mapped > 0 && unmap().is_err() {
            // Some are locked: if none were forgotten, each pass would find them again.
            let first = pagemap.look(pages, FORGOTTEN_AT_ONCE);
            *hand = first.end;
            parts.remove(first.pages.start, first.pages.end, |_| true);
            return Step::Dropped(0);
        }
        Step::Dropped(mapped)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
    use std::io::Write;
    use std::ptr;

    fn parts(list: &[(usize, usize)]) -> Parts {
        let mut parts = Parts::NONE;
        list.iter().for_each(|(start, end)| {
            parts.insert(Part { start: *start, end: *end, kind: Kind::Shared });
        });
        parts
    }

    fn shape(parts: &Parts) -> Vec<(usize, usize)> {
        parts.all().iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn parts_of_mappings_are_forgotten() {
        for (start, end, expected) in [
            (0, 5, &[(10, 20), (20, 30), (50, 60)][..]),
            (30, 50, &[(10, 20), (20, 30), (50, 60)]),
            (0, 100, &[]),
            (10, 20, &[(20, 30), (50, 60)]),
            (12, 14, &[(10, 12), (14, 20), (20, 30), (50, 60)]),
            (15, 25, &[(10, 15), (25, 30), (50, 60)]),
            (15, 55, &[(10, 15), (55, 60)]),
            (29, 51, &[(10, 20), (20, 29), (51, 60)]),
        ] {
            let mut parts = parts(&[(50, 60), (10, 20), (20, 30)]);
            parts.remove(start, end, |_| true);
            assert_eq!(shape(&parts), expected, "{start} to {end}");
        }
    }

    #[test]
    fn a_table_that_is_full_forgets_what_does_not_fit() {
        let mut parts = Parts::NONE;
        let part = |at: usize| Part { start: 10 * at, end: 10 * at + 5, kind: Kind::Constant };
        (0..PARTS_MAX + 9).for_each(|at| parts.insert(part(at)));
        assert_eq!(parts.len, PARTS_MAX);
        parts.remove(1, 2, |kind| kind == Kind::Shared);
        assert_eq!(parts.all()[0], part(0));
        parts.remove(1, 2, |_| true);
        assert_eq!(shape(&parts)[..2], [(0, 1), (10, 15)]);
        assert_eq!(parts.len, PARTS_MAX);
    }

    #[test]
    fn a_part_is_found_by_its_addresses() {
        let parts = parts(&[(10, 20), (20, 30), (50, 60)]);
        let starts = [0, 10, 19, 20, 30, 59, 60].map(|at| parts.after(at).map(|part| part.start));
        assert_eq!(starts, [Some(10), Some(10), Some(10), Some(20), Some(50), Some(50), None]);
        let around = [(10, 20), (15, 21), (9, 12), (55, 60)];
        let around = around.map(|(start, end)| parts.around(start, end).map(|part| part.start));
        assert_eq!(around, [Some(10), None, None, Some(50)]);
    }

    /// The kernel changes whole pages. Once the rest of a page whose first byte had become writable
    /// stayed in the table.
    #[test]
    fn calls_change_whole_pages() {
        const P: usize = PAGE_SIZE;
        for (address, len, expected) in [
            (8 * P, P, (8 * P, 9 * P)),
            (8 * P, 1, (8 * P, 9 * P)),
            (8 * P + 5, P, (8 * P, 10 * P)),
            (8 * P, 0, (8 * P, 8 * P)),
            (8 * P, usize::MAX, (8 * P, usize::MAX)),
        ] {
            assert_eq!(pages_around(address, len), expected, "{address:#x} {len:#x}");
        }
    }

    const PAGES: usize = 64;

    /// Maps a file of pages of sevens.
    fn map(flags: MapFlags) -> usize {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; PAGES * PAGE_SIZE]).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at addresses that are free.
        let at = unsafe { mmap(ptr::null_mut(), PAGES * PAGE_SIZE, access, flags, &file, 0) };
        at.unwrap().expose_provenance()
    }

    /// Forgets and unmaps it.
    fn unmap(address: usize) {
        forget(address, PAGES * PAGE_SIZE);
        let at = with_exposed_provenance_mut(address);
        // SAFETY: the whole mapping.
        unsafe { munmap(at, PAGES * PAGE_SIZE).unwrap() };
    }

    fn at(address: usize, page: usize) -> *mut u8 {
        with_exposed_provenance_mut(address + page * PAGE_SIZE)
    }

    #[test]
    fn pages_that_become_writable_are_forgotten_before() {
        const P: usize = PAGE_SIZE;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        for (kind, stays) in [(Kind::Constant, false), (Kind::Shared, true)] {
            let address = map(MapFlags::PRIVATE);
            add(address, PAGES * P, kind);
            note_access(address, PAGES * P, libc::PROT_READ);
            note_access(address, PAGES * P, libc::PROT_NONE);
            assert!(contains(address + P));
            note_access(address + P, 1, both);
            let found = [0, P, 2 * P - 1, 2 * P].map(|at| contains(address + at));
            assert_eq!(found, [true, stays, stays, true], "{kind:?}");
            note_access(address + 9 * P, P, libc::PROT_READ | libc::PROT_EXEC);
            assert_eq!(contains(address + 9 * P), stays);
            // mremap may be given one page: it splits the mapping.
            assert_eq!(take_shared(address + 20 * P, 1), stays);
            assert!(!contains(address + 20 * P) && contains(address + 21 * P));
            forget(address + 30 * P, 1);
            assert!(!contains(address + 31 * P - 1) && contains(address + 31 * P));
            unmap(address);
            assert!(!contains(address));
        }
    }

    /// Regression: each call between the first and the last mapping waited for the lock.
    #[test]
    fn only_calls_that_change_a_mapping_need_the_table() {
        let address = map(MapFlags::SHARED);
        let page = |at: usize| address + at * PAGE_SIZE;
        add(page(2), 3 * PAGE_SIZE, Kind::Shared);
        add(page(7), PAGE_SIZE, Kind::Shared);
        for (start, end, expected) in
            [(0, 2, false), (0, 3, true), (4, 5, true), (5, 7, false), (5, 8, true), (8, 9, false)]
        {
            assert_eq!(may_overlap(page(start), page(end)), expected, "{start} {end}");
        }
        assert!(!may_overlap(page(3), page(3)));
        unmap(address);
    }

    #[test]
    fn pages_of_the_process_alone_are_never_dropped() {
        let pagemap = Pagemap::open().unwrap();
        for (flags, is_dropped) in [(MapFlags::SHARED, true), (MapFlags::PRIVATE, false)] {
            let address = map(flags);
            // SAFETY: pages of the mapping.
            unsafe { at(address, 5).write_volatile(1) };
            // SAFETY: as above.
            let read = |page| unsafe { at(address, page).read_volatile() };
            assert_eq!(read(9), 7);
            add(address, PAGES * PAGE_SIZE, Kind::Shared);
            let step = drop_some(&pagemap, &mut address.clone(), 9999);
            assert_eq!(step != Step::Dropped(0), is_dropped, "{step:?}");
            assert_eq!(contains(address), is_dropped);
            assert_eq!([5, 9].map(read), [1, 7]);
            unmap(address);
        }
    }

    /// Regression: a thread tried to unmap 200 MiB of locked pages all the time.
    #[test]
    fn pages_that_are_locked_are_forgotten() {
        let (pagemap, address) = (Pagemap::open().unwrap(), map(MapFlags::SHARED));
        // SAFETY: pages of the mapping.
        unsafe { mlock(at(address, 0).cast(), 8 * PAGE_SIZE).unwrap() };
        add(address, PAGES * PAGE_SIZE, Kind::Shared);
        // As far as the locked pages.
        let step = drop_some(&pagemap, &mut address.clone(), 8);
        assert_eq!(step, Step::Dropped(0));
        let found = [0, 7, PAGES - 1].map(|page| contains(address + page * PAGE_SIZE));
        assert_eq!(found, [false, false, true]);
        unmap(address);
    }

    #[test]
    fn only_files_that_keep_all_stores_are_added() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        for (len, access, flags, expected) in [
            (BYTES_MIN, both, libc::MAP_SHARED, Some(Kind::Shared)),
            (BYTES_MIN, libc::PROT_NONE, libc::MAP_SHARED, Some(Kind::Shared)),
            (BYTES_MIN, libc::PROT_READ, libc::MAP_PRIVATE, Some(Kind::Constant)),
            (BYTES_MIN, both, libc::MAP_PRIVATE, None),
            (BYTES_MIN, libc::PROT_NONE, libc::MAP_PRIVATE, None),
            (BYTES_MIN, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, None),
            (BYTES_MIN, both, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None),
            (BYTES_MIN, both, libc::MAP_SHARED | libc::MAP_LOCKED, None),
            (BYTES_MIN - 1, both, libc::MAP_SHARED, None),
        ] {
            assert_eq!(kind_of(len, access, flags), expected, "{len} {access:#x} {flags:#x}");
        }
    }
}
