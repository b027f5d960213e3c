//! Runs of pages for slabs, from one region of the paged range.
//!
//! ```text
//! extent of a class ──> a slab has it ──> kept: contents stay, the newest first
//!                           ^   ^──────────/   \ too many: discarded, the oldest first
//!                           \── emptied <──────/
//! ```
//! A class gets addresses in extents, of 256 KiB at first, so that its slabs follow each other in
//! the order of their creation: objects that are created together are mostly used together, and
//! readahead reads the class's next object instead of another class's. For the same reason a class
//! takes its own earlier runs first, if there are any. A kept run is given out without a system
//! call; to another class only if its slabs use as many of the run's pages, because the last pages
//! of a slab of large objects are not used, and never get memory. The swapped-out part of a kept
//! run is discarded when the run is used again. Discarding enters the manager, so excess runs are
//! discarded separately ([`HeapPages::excess`]), with none of the heap's locks held. Runs are
//! neither split nor merged: an emptied run takes no memory, and addresses are plentiful. A run
//! without contents is populated at once if memory is plentiful: one call per slab instead of a
//! fault per page or two.
//!
//! Locking: `runs` is the last lock of the heap. Conservation: pages below `next` = of slabs + kept
//! + emptied + being discarded + left of extents.

use super::classes::{CLASSES, SIZES};
use crate::process::{self, Process};
use crate::regions::Use;
use crate::signals::Blocked;
use crate::units::Commit;
use highwater_mm::Range;
use highwater_mm::slab::{CacheId, SlabPages};
use highwater_uffd::Uffd;
use highwater_units::{NodeId, Order, PAGE_SHIFT, PAGE_SIZE, Vpn};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The heap's share of the range: one half, ...
const RANGE_SHARE: u64 = 2;
/// ... but at most this multiple of memory and swap, and at least 128 GiB. The slabs' tables have
/// an entry per page.
const PAGES_PER_CAPACITY: u64 = 8;
const PAGES_MIN: u64 = (128 << 30) >> PAGE_SHIFT;

/// Share of the budget for kept runs, ...
const KEPT_SHARE: u64 = 32;
/// ... and its maximum in pages.
const KEPT_MAX: u64 = 4096;

/// A run of pages that is in no slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    /// Number of its first page in the region.
    first: u64,
    order: Order,
    /// Class of its last slab.
    class: usize,
}

/// The source of the heap's slabs.
pub(super) struct HeapPages {
    /// For CPU numbers and locks. In a forked child it is still the parent's, whose threads do not
    /// exist.
    platform: &'static Uffd,
    range: Range,
    runs: Mutex<Runs>,
    kept_max: u64,
    /// Pages of kept runs, approximately.
    kept: AtomicU64,
    /// Whether a class has had a run.
    used: [AtomicBool; CLASSES],
}

/// Pages of a class's first extent.
const EXTENT_MIN: u64 = 64;
/// Pages of a class's largest extent.
const EXTENT_MAX: u64 = 512;

struct Runs {
    /// First page that no extent has.
    next: u64,
    classes: [OfClass; CLASSES],
}

/// The runs of a class that are in no slab, the oldest first.
#[derive(Default)]
struct OfClass {
    kept: VecDeque<Run>,
    emptied: VecDeque<Run>,
    /// The free end of its last extent.
    left: std::ops::Range<u64>,
    /// Pages of all its extents.
    extents: u64,
}

fn pages_of(order: Order) -> u64 {
    order.frames().into()
}

/// The order of slabs for objects of `size` bytes: 32 KiB, few enough for their records to stay in
/// the processor's caches; or 64 KiB, where objects in 32 KiB leave much of their last page unused,
/// and those in 64 KiB less.
pub(super) fn order_of(size: u32) -> Order {
    /// Shares are in 1024ths of what the objects take.
    const UNIT: u64 = 1 << 10;
    const MUCH: u64 = UNIT / 32;
    let [small, large] = [Order(3), Order(4)];
    let unused = |order| {
        let used = bytes_used(order, size);
        (used.next_multiple_of(PAGE_SIZE as u64) - used) * UNIT / used
    };
    let has_none = bytes_used(small, size) == 0;
    if has_none || unused(small) > MUCH && unused(large) < unused(small) { large } else { small }
}

/// Bytes of a slab that objects take.
fn bytes_used(order: Order, size: u32) -> u64 {
    let size = u64::from(size);
    (pages_of(order) << PAGE_SHIFT) / size * size
}

/// The first pages of a slab, which hold its objects: more than half, so they determine the order.
fn pages_used(order: Order, size: u32) -> u64 {
    bytes_used(order, size).div_ceil(PAGE_SIZE as u64)
}

fn pages_for_objects(order: Order, class: usize) -> u64 {
    pages_used(order, SIZES[class])
}

impl HeapPages {
    /// A heap of one new region; `None`: there is no room.
    pub(super) fn new(process: &'static Process) -> Option<HeapPages> {
        let wanted = (process.capacity() >> PAGE_SHIFT).saturating_mul(PAGES_PER_CAPACITY);
        let pages = wanted.max(PAGES_MIN).min(process.extent().1 / RANGE_SHARE);
        let range = process.take(pages, 1, Use::Objects, Commit::Unchecked)?;
        Some(HeapPages {
            platform: process.manager.platform(),
            range,
            runs: Mutex::new(Runs::new()),
            kept_max: (process.settings.memory.pages() / KEPT_SHARE).min(KEPT_MAX),
            kept: AtomicU64::new(0),
            used: [const { AtomicBool::new(false) }; CLASSES],
        })
    }

    /// The region's pages of the range.
    pub(super) fn range(&self) -> Range {
        self.range
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn vpn(&self, page: u64) -> Vpn {
        self.range.first.offset(page)
    }

    /// Whether too many runs are kept.
    #[inline]
    pub(super) fn has_excess(&self) -> bool {
        self.kept.load(Relaxed) > self.kept_max
    }

    /// Removes the oldest kept runs of each class, until half of the maximum is left.
    pub(super) fn excess(&self) -> Vec<Run> {
        let mut runs = self.runs();
        let mut out = Vec::new();
        while self.kept.load(Relaxed) > self.kept_max / 2 {
            let oldest = runs.classes.iter_mut().filter_map(|of_class| of_class.kept.pop_front());
            for run in oldest {
                self.kept.fetch_sub(pages_for_objects(run.order, run.class), Relaxed);
                out.push(run);
            }
        }
        out
    }

    /// Drops the contents of removed runs, adjacent ones together. No lock is held.
    pub(super) fn discard(&self, runs: &mut [Run]) {
        let Some(process) = process::running() else { return };
        runs.sort_unstable();
        let follow = |a: &Run, b: &Run| a.first + pages_of(a.order) == b.first;
        for together in runs.chunk_by(follow) {
            let [first, last] = [together.first(), together.last()].map(|run| *run.expect("one"));
            let end = last.first + pages_of(last.order);
            process.discard(Range { first: self.vpn(first.first), end: self.vpn(end) });
        }
    }

    /// Adds runs without contents.
    pub(super) fn put_emptied(&self, emptied: &[Run]) {
        let mut runs = self.runs();
        emptied.iter().for_each(|run| runs.classes[run.class].emptied.push_back(*run));
    }

    /// Whether a class has had a run: then the next one will be used wholly, and is worth
    /// populating.
    fn is_used(&self, cache: CacheId) -> bool {
        self.used[cache.index()].swap(true, Relaxed)
    }

    /// A run with contents: the newest of the class, or of a class whose slabs use as many pages.
    fn take_kept(&self, order: Order, class: usize) -> Option<u64> {
        let used = pages_for_objects(order, class);
        if self.kept.load(Relaxed) < used {
            return None;
        }
        let fits = |run: &&Run| run.order == order && pages_for_objects(order, run.class) == used;
        let found = self.runs().find(class, |of_class| {
            of_class.kept.back().filter(fits)?;
            of_class.kept.pop_back()
        })?;
        self.kept.fetch_sub(used, Relaxed);
        Some(found)
    }

    /// A run without contents, if memory and swap can hold it.
    fn take_empty(&self, order: Order, class: usize, process: &Process) -> Option<u64> {
        if !process.manager.can_commit(pages_of(order)) {
            return None;
        }
        let mut runs = self.runs();
        let found = runs.find(class, |of_class| {
            of_class.emptied.front().filter(|run| run.order == order)?;
            of_class.emptied.pop_front()
        });
        found.or_else(|| runs.take_new(class, pages_of(order), self.pages()))
    }
}

impl Runs {
    fn new() -> Runs {
        Runs { next: 0, classes: std::array::from_fn(|_| OfClass::default()) }
    }

    /// The first page that `take` finds in a class, or else in another.
    fn find(&mut self, class: usize, take: impl Fn(&mut OfClass) -> Option<Run>) -> Option<u64> {
        let others = (0..CLASSES).filter(|other| *other != class);
        let mut classes = std::iter::once(class).chain(others);
        classes.find_map(|class| take(&mut self.classes[class])).map(|run| run.first)
    }

    /// The next run of a class's extent, or the first of a new extent, as large as all earlier ones
    /// together: so extents are few, and little of the last is left over.
    fn take_new(&mut self, class: usize, pages: u64, all: u64) -> Option<u64> {
        let of_class = &mut self.classes[class];
        if of_class.left.end - of_class.left.start < pages {
            let wanted = of_class.extents.clamp(EXTENT_MIN, EXTENT_MAX);
            let extent = if self.next + wanted <= all { wanted } else { pages };
            if self.next + extent > all {
                return None;
            }
            of_class.left = self.next..self.next + extent;
            of_class.extents += extent;
            self.next += extent;
        }
        let first = of_class.left.start;
        of_class.left.start += pages;
        Some(first)
    }
}

impl SlabPages for HeapPages {
    type Platform = Uffd;

    fn platform(&self) -> &Uffd {
        self.platform
    }

    fn pages(&self) -> u64 {
        self.range.end.0 - self.range.first.0
    }

    fn take(&self, order: Order, cache: CacheId) -> Option<u64> {
        let process = process::running()?;
        let class = cache.index();
        let kept = self.take_kept(order, class);
        let first = kept.or_else(|| self.take_empty(order, class, process))?;
        let range = Range { first: self.vpn(first), end: self.vpn(first + pages_of(order)) };
        // A signal handler that forks would wait for the locks taken here.
        let _blocked = Blocked::now();
        // The program may have protected the objects, and freed them.
        if !process.make_ordinary(range) {
            return None;
        }
        let used = Range { end: range.first.offset(pages_for_objects(order, class)), ..range };
        let absent = match kept {
            None => self.is_used(cache),
            Some(_) => process.discard_swapped(used) > 0,
        };
        if absent {
            process.populate(used);
        }
        Some(first)
    }

    fn give(&self, first: u64, order: Order, cache: CacheId) {
        let class = cache.index();
        let mut runs = self.runs();
        runs.classes[class].kept.push_back(Run { first, order, class });
        self.kept.fetch_add(pages_for_objects(order, class), Relaxed);
    }

    fn node_of(&self, _: u64) -> NodeId {
        NodeId(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::Config;
    use highwater_mm::slab::{Rules, Sizing};

    #[test]
    fn slabs_of_a_class_follow_each_other() {
        let (mut runs, all) = (Runs::new(), 1000);
        let mut take = |class| runs.take_new(class, 8, all);
        let turns: Vec<_> = (0..16).map(|turn| take(turn % 2)).collect();
        let first = (0..8).map(|at| Some(8 * at));
        let expected: Vec<_> = first.flat_map(|at| [at, at.map(|at| at + EXTENT_MIN)]).collect();
        assert_eq!(turns, expected);
        // Twice as large, up to the maximum.
        assert_eq!([take(0), take(1)], [128, 192].map(Some));
        let more: Vec<_> = (0..8).filter_map(|_| take(0)).collect();
        assert_eq!(more, [136, 144, 152, 160, 168, 176, 184, 256]);
        let mut pages: Vec<_> = std::iter::from_fn(|| take(0).or_else(|| take(1))).collect();
        pages.extend(turns.into_iter().flatten().chain([128, 192]).chain(more));
        pages.sort_unstable();
        assert_eq!(pages, (0..125).map(|run| 8 * run).collect::<Vec<_>>(), "each once, and all");
    }

    #[test]
    fn runs_go_back_to_their_class_first() {
        let (mut runs, order) = (Runs::new(), Order(3));
        for (class, first) in [(3, 64), (5, 128), (3, 72)] {
            runs.classes[class].emptied.push_back(Run { first, order, class });
        }
        let mut take = |class| runs.find(class, |of_class| of_class.emptied.pop_front());
        let taken = [take(5), take(5), take(3), take(3)];
        assert_eq!(taken, [Some(128), Some(64), Some(72), None]);
    }

    #[test]
    fn pages_with_objects_tell_the_order_of_a_slab() {
        for size in SIZES {
            let sizing = Sizing::new(size, Rules::new(&Config::default(), 2, 1));
            for order in [sizing.order_min.max(order_of(size)), sizing.order_min] {
                let used = pages_used(order, size);
                assert!((1..=16).contains(&used), "{size} bytes");
                assert_eq!(Order::covering(used as u32), order, "{size} bytes, {used} pages");
            }
        }
        assert_eq!(
            [160, 4608, 10_240, 11_264, 12_288].map(order_of),
            [3, 3, 4, 4, 3].map(Order),
            "of 4608, 10,240 and 11,264 bytes 1/64, 1/15 and 1/11 are unused"
        );
        assert_eq!(pages_used(Order(4), 11_264), 14);
        assert_eq!(pages_used(Order(3), 20_480), 5);
        assert_eq!(pages_used(Order(3), 12_288), 6);
        assert_eq!(pages_used(Order(3), 160), 8);
    }
}
