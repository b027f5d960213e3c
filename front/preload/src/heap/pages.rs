//! Runs of pages for slabs, from one region of the paged range.
//!
//! ```text
//! never used ──> a slab has it ──> kept: contents stay, the newest first
//!                    ^   ^──────────/   \ too many: discarded, the oldest first
//!                    \── emptied <──────/
//! ```
//! A kept run is given out again without a system call, to a class whose slabs use as many of its
//! pages: of those of large objects the last pages are not used, and stay without memory so.
//! Discarding enters the manager, so it is done apart ([`HeapPages::excess`]), with none of the
//! heap's locks held. Runs are neither split nor merged: an emptied one takes no memory, and
//! addresses are plenty. One without contents is made present at once, if there is memory to spare:
//! a call for a slab, and not a fault for every page or two.
//!
//! Locking: `runs` is the last lock of the heap. Conservation: pages below `next` = of slabs + kept
//! + emptied + being discarded.

use super::classes::{CLASSES, SIZES};
use crate::process::{self, Process};
use crate::regions::Use;
use highwater_mm::Range;
use highwater_mm::slab::{CacheId, SlabPages};
use highwater_uffd::Uffd;
use highwater_units::{NodeId, Order, PAGE_SHIFT, PAGE_SIZE, Vpn};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The part of the range that is the heap's.
const RANGE_SHARE: u64 = 2;

/// The part of the budget that kept runs may hold, ...
const KEPT_SHARE: u64 = 32;
/// ... in pages at most.
const KEPT_MAX: u64 = 4096;

/// Orders of slabs: objects of 64 KiB have order 4.
const ORDERS: usize = 5;

/// Pages of a run that a slab may use: 1 to this.
const USED_MAX: usize = 1 << (ORDERS - 1);

/// A run of pages: the first, by its number in the region.
pub(super) type Run = (u64, Order);

/// The source of the heap's slabs.
pub(super) struct HeapPages {
    /// For CPU numbers and locks: in a forked child still its parent's, whose threads are gone.
    platform: &'static Uffd,
    range: Range,
    runs: Mutex<Runs>,
    kept_max: u64,
    /// Pages of kept runs, as of about now.
    kept: AtomicU64,
    /// Whether a class, by its number, has had a run.
    used: [AtomicBool; CLASSES],
}

#[derive(Default)]
struct Runs {
    next: u64,
    /// By the pages that slabs have used of them, from one on.
    kept: [VecDeque<u64>; USED_MAX],
    emptied: [Vec<u64>; ORDERS],
}

fn pages_of(order: Order) -> u64 {
    order.frames().into()
}

/// The first pages of a slab, in which its objects are: more than half of them, so they tell the
/// order.
fn pages_used(order: Order, size: u32) -> u64 {
    let size = u64::from(size);
    let bytes = (pages_of(order) << PAGE_SHIFT) / size * size;
    bytes.div_ceil(PAGE_SIZE as u64)
}

fn pages_for_objects(order: Order, class: CacheId) -> u64 {
    pages_used(order, SIZES[class.index()])
}

impl HeapPages {
    /// All of a new region; `None`: there is no room.
    pub(super) fn new(process: &'static Process) -> Option<HeapPages> {
        let pages = process.extent().1 / RANGE_SHARE;
        let range = process.take(pages, 1, Use::Objects, process::Commit::Unchecked)?;
        Some(HeapPages {
            platform: process.manager.platform(),
            range,
            runs: Mutex::default(),
            kept_max: (process.settings.memory.pages() / KEPT_SHARE).min(KEPT_MAX),
            kept: AtomicU64::new(0),
            used: [const { AtomicBool::new(false) }; CLASSES],
        })
    }

    /// The pages of the range that it has.
    pub(super) fn range(&self) -> Range {
        self.range
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn vpn(&self, page: u64) -> Vpn {
        self.range.first.offset(page)
    }

    /// Whether so much is kept that some of it is to be discarded.
    #[inline]
    pub(super) fn has_excess(&self) -> bool {
        self.kept.load(Relaxed) > self.kept_max
    }

    /// Takes the oldest kept runs out, until half of what may be kept is left.
    pub(super) fn excess(&self) -> Vec<Run> {
        let mut runs = self.runs();
        let mut out = Vec::new();
        while self.kept.load(Relaxed) > self.kept_max / 2 {
            for used in 1..=USED_MAX {
                let Some(oldest) = runs.kept[used - 1].pop_front() else { continue };
                out.push((oldest, Order::covering(used as u32)));
                self.kept.fetch_sub(used as u64, Relaxed);
            }
        }
        out
    }

    /// Drops the contents of runs that are nobody's, neighbours together. No lock is held.
    pub(super) fn discard(&self, runs: &mut [Run]) {
        let Some(process) = process::running() else { return };
        runs.sort_unstable();
        let mut rest = &*runs;
        while let Some((first, _)) = rest.first() {
            let mut end = *first;
            while let Some((_, order)) = rest.first().filter(|(next, _)| *next == end) {
                end += pages_of(*order);
                rest = &rest[1..];
            }
            process.discard(Range { first: self.vpn(*first), end: self.vpn(end) });
        }
    }

    /// Takes back what was discarded.
    pub(super) fn put_emptied(&self, emptied: &[Run]) {
        let mut runs = self.runs();
        for (first, order) in emptied {
            runs.emptied[usize::from(order.0)].push(*first);
        }
    }

    /// Whether a class has had a run before: then it is used so much that all of the next one will
    /// be, and is worth having at once.
    fn is_used(&self, cache: CacheId) -> bool {
        self.used[cache.index()].swap(true, Relaxed)
    }

    fn take_kept(&self, used: u64) -> Option<u64> {
        let first = self.runs().kept[used as usize - 1].pop_back()?;
        self.kept.fetch_sub(used, Relaxed);
        Some(first)
    }

    /// A run without contents, if memory and swap could hold it.
    fn take_empty(&self, order: Order, process: &Process) -> Option<u64> {
        let pages = pages_of(order);
        if pages > process.manager.capacity_left() {
            return None;
        }
        let mut runs = self.runs();
        runs.emptied[usize::from(order.0)].pop().or_else(|| {
            let first = runs.next;
            let fits = first + pages <= self.pages();
            runs.next += if fits { pages } else { 0 };
            fits.then_some(first)
        })
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
        let used = pages_for_objects(order, cache);
        let kept = self.take_kept(used);
        let first = kept.or_else(|| self.take_empty(order, process))?;
        let range = Range { first: self.vpn(first), end: self.vpn(first + pages_of(order)) };
        // The program may have protected them, and freed them so.
        if !process.make_ordinary(range) {
            return None;
        }
        if self.is_used(cache) && kept.is_none() {
            process.populate(Range { end: range.first.offset(used), ..range });
        }
        Some(first)
    }

    fn give(&self, first: u64, order: Order, cache: CacheId) {
        let used = pages_for_objects(order, cache);
        let mut runs = self.runs();
        runs.kept[used as usize - 1].push_back(first);
        self.kept.fetch_add(used, Relaxed);
    }

    fn node_of(&self, _: u64) -> NodeId {
        NodeId(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::config::SlabConfig;
    use highwater_mm::slab::{Resolved, Sizing};

    #[test]
    fn pages_with_objects_tell_the_order_of_a_slab() {
        for size in SIZES {
            let sizing = Sizing::new(size, 2, 1, Resolved::new(SlabConfig::default(), 2));
            for order in [sizing.order_min.max(super::super::ORDER), sizing.order_min] {
                let used = pages_used(order, size);
                assert!((1..=USED_MAX as u64).contains(&used), "{size} bytes");
                assert_eq!(Order::covering(used as u32), order, "{size} bytes, {used} pages");
            }
        }
        assert_eq!(pages_used(Order(3), 20_480), 5);
        assert_eq!(pages_used(Order(3), 12_288), 6);
        assert_eq!(pages_used(Order(3), 160), 8);
    }
}
