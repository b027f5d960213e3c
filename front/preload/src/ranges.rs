//! Taking, releasing and replacing pages of the range.
//!
//! ```text
//! take      free ------------------------------------------------> in use
//! release   in use --> changing: contents dropped, ordinary -----> free
//! replace   anything -> changing: contents dropped, mapped anew --> in use
//! ```
//! Changing pages belong to the thread that changes them: no other thread gets them, and a fault
//! there waits until the change is over. So MAP_FIXED is atomic for other threads, as in the
//! kernel. Free pages are readable and writable, except where an access was refused
//! (`Program::stray`): a released mapping loses its protections, while blocks of malloc are
//! writable when freed.
//!
//! The lock of `Changes` (changes.rs) comes before that of `regions`: a fork waits until no page is
//! changing or moving.

use crate::end::end;
use crate::inherit::Inheritance;
use crate::limits;
use crate::process::{Process, SPACE};
use crate::regions::{Region, Use};
use crate::signals::Blocked;
use crate::units::Commit;
use crate::{brk, caller};
use highwater_mm::Range;
use highwater_os::sys;
use highwater_session::{RANGE, Settings};
use highwater_units::{PAGE_SIZE, Vpn};
use rustix::process::{Resource, getrlimit};
use std::sync::RwLockReadGuard;

/// The addresses that sanitizers leave to a program.
const RANGE_SANITIZED: u64 = 256 << 30;
/// A process with less is not served.
const RANGE_MIN: u64 = 1 << 30;
/// Minimum length of the range, as a multiple of memory and swap.
const RANGE_PER_CAPACITY: u64 = 2;

fn capacity_of(settings: &Settings) -> u64 {
    settings.memory.0 + settings.swap.iter().map(|area| area.spec.capacity().0).sum::<u64>()
}

/// Length in pages of the range of a process. Under a limit (RLIMIT_AS, or no overcommitment) the
/// program keeps as many addresses.
pub(crate) fn pages_for(settings: &Settings) -> u64 {
    let capacity = capacity_of(settings);
    let most = if caller::are_addresses_fixed() { RANGE_SANITIZED } else { RANGE };
    let least = capacity.saturating_mul(RANGE_PER_CAPACITY).clamp(RANGE_MIN, most);
    let limit = getrlimit(Resource::As).current.unwrap_or(u64::MAX);
    largest(most, least, |len| len <= limit / 2 && can_map(len)) / PAGE_SIZE as u64
}

/// The largest of `most`, its half, its quarter, ... that fits; `least` if none of these does.
fn largest(most: u64, least: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let halves = std::iter::successors(Some(most), |len| Some(len / 2));
    halves.take_while(|len| *len >= least).find(|len| fits(*len)).unwrap_or(least)
}

fn can_map(len: u64) -> bool {
    let mapped = sys::map_anonymous(len as usize);
    // SAFETY: a new mapping that nothing refers to.
    mapped.map(|address| unsafe { sys::unmap(address, len as usize) }).is_ok()
}

/// A change under way. Signals are blocked.
pub(crate) struct Change<'a> {
    _shared: RwLockReadGuard<'a, ()>,
    blocked: Blocked,
}

/// What may be in use where something is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Any pages, which are replaced.
    Anything,
    /// No pages.
    Nothing,
    /// Mappings that are paged, and nothing else.
    Mappings,
}

/// Pages that are changing, and what is needed to end the change.
struct Changing {
    range: Range,
    /// The regions before the change.
    before: Vec<Region>,
    /// Number of faults that were waiting before.
    awaited: u64,
}

impl Process {
    /// Capacity of memory and swap, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        capacity_of(&self.settings)
    }

    /// Begins a change.
    pub(crate) fn change(&self) -> Change<'_> {
        let blocked = Blocked::now();
        let _shared = self.changes.begin();
        Change { _shared, blocked }
    }

    /// Takes pages, which read as zeros. `None` if the range has no room, or `check` fails.
    pub(crate) fn take(
        &self,
        pages: u64,
        align: u64,
        used_as: Use,
        check: Commit,
    ) -> Option<Range> {
        if !self.can_hold(pages, check) {
            return None;
        }
        let blocked = Blocked::now();
        let range = self.regions_mut(&blocked).take(pages, align, used_as)?;
        self.make_ready(&blocked, range).then_some(range)
    }

    /// Makes pages that were just taken ordinary; if that is refused, frees them.
    fn make_ready(&self, blocked: &Blocked, range: Range) -> bool {
        let is_ready = self.make_ordinary(range);
        if !is_ready {
            self.regions_mut(blocked).release(range);
        }
        is_ready
    }

    /// Whether memory and swap could hold `pages` more, if that is to be checked.
    pub(crate) fn can_hold(&self, pages: u64, check: Commit) -> bool {
        check == Commit::Unchecked || self.manager.can_commit(pages) && self.may_hold(pages)
    }

    /// Whether the program's limit of addresses allows `pages` more.
    fn may_hold(&self, pages: u64) -> bool {
        let most = limits::pages_max();
        if most >= RANGE / PAGE_SIZE as u64 {
            return true;
        }
        let used = self.regions(&Blocked::now()).requested_pages() - brk::reserved_pages();
        used.saturating_add(pages) <= most
    }

    /// Removes the protection that free pages got after a stray access.
    pub(crate) fn make_ordinary(&self, range: Range) -> bool {
        self.manager.platform().unprotect(SPACE, range.first, range.end).is_ok()
    }

    /// Takes these pages if they are free.
    pub(crate) fn take_at(&self, range: Range, used_as: Use) -> bool {
        let blocked = Blocked::now();
        let pages = range.end.0 - range.first.0;
        let taken = self.regions_mut(&blocked).take_at(range.first, pages, used_as);
        taken && self.make_ready(&blocked, range)
    }

    /// Extends a region by the free pages behind it, which become ordinary.
    pub(crate) fn grow(&self, region: Region, pages: u64) -> bool {
        let blocked = Blocked::now();
        let end = region.range.end;
        let grown = self.regions_mut(&blocked).grow(region, pages);
        grown && self.make_ready(&blocked, Range { first: end, end: end.offset(pages) })
    }

    /// Drops the contents of pages and frees the pages.
    pub(crate) fn release(&self, range: Range) {
        self.end_files(range);
        let change = self.change();
        let mut regions = self.regions_mut(&change.blocked);
        let (leaving, awaited) = (regions.leave(range), regions.awaited());
        drop(regions);
        for region in leaving {
            let is_clean = self.empty(&region);
            self.dump.forget(region.range);
            let mut regions = self.regions_mut(&change.blocked);
            if is_clean {
                regions.release(region.range);
            } else {
                // Unmapped by a raw system call, so it may have another owner: never used again.
                regions.settle(region.range, Use::Foreign);
            }
            regions.inherited.forget(region.range);
            let is_awaited = regions.awaited() != awaited;
            drop(regions);
            self.wake_if(is_awaited, region.range);
        }
    }

    /// Drops the contents of a region that is released. Returns whether its pages are as good as
    /// new.
    fn empty(&self, region: &Region) -> bool {
        let Range { first, end } = region.range;
        match region.used_as {
            Use::Foreign | Use::Locked => {
                self.regain(region.range);
                true
            }
            Use::Mapping => {
                self.drop_contents(region.range);
                let ordinary = libc::PROT_READ | libc::PROT_WRITE;
                self.manager.platform().protect(SPACE, first, end, ordinary).is_ok()
            }
            Use::Block | Use::Objects | Use::File(_) | Use::Changing => {
                self.drop_contents(region.range);
                true
            }
        }
    }

    /// Whether any page has contents.
    pub(crate) fn is_used(&self, range: Range) -> bool {
        self.manager.used_pages(SPACE, range).next().is_some()
    }

    /// Drops contents if there are any: untouched memory needs no call of the helper.
    fn drop_contents(&self, range: Range) {
        if self.is_used(range) {
            self.reporter.note_demand();
            self.in_helper(|| self.manager.discard(SPACE, range));
        }
    }

    /// Maps something over a range, atomically for other threads. Old contents are dropped, then
    /// `act` sets the pages up. `None`: `over` forbids it, or `act` failed.
    pub(crate) fn replace<R>(
        &self,
        range: Range,
        over: Over,
        used_as: Use,
        act: impl FnOnce() -> Option<R>,
    ) -> Option<R> {
        self.end_files(range);
        let change = self.change();
        let changing = self.begin_change(&change, range, over)?;
        self.reporter.note_demand();
        self.in_helper(|| {
            for region in &changing.before {
                match (region.used_as.is_kernels(), used_as.is_kernels()) {
                    // The kernel's MAP_FIXED replaces its own mapping.
                    (true, true) => {}
                    (true, false) => self.regain(region.range),
                    (false, _) => self.manager.discard(SPACE, region.range),
                }
            }
            self.dump.forget(range);
        });
        let done = act();
        if done.is_none() {
            self.regain(range);
        }
        self.end_change(&change, &changing, done.as_ref().map(|_| used_as));
        done
    }

    /// Hands paged mappings over to the kernel, atomically for other threads: contents, and advice
    /// about forks, move to pages that read as zeros, and `act` maps something over the range. If
    /// it fails, all moves back. `None`: there are other pages.
    pub(crate) fn supplant<E>(
        &self,
        range: Range,
        aside: Range,
        used_as: Use,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let change = self.change();
        // Before the change, which forgets the advice.
        self.regions_mut(&change.blocked).inherited.carry(range, aside.first);
        let changing = self.begin_change(&change, range, Over::Mappings)?;
        // Later, this would undo what the program has advised about the kernel's mapping.
        self.dump.include(range);
        // A fault that began before may still insert a page of zeros, to which threads would store.
        self.faults.pass();
        self.reporter.note_demand();
        self.shift(range, aside.first);
        let done = act();
        if done.is_err() {
            self.shift(aside, range.first);
        }
        let kept = if done.is_ok() { used_as } else { Use::Mapping };
        self.end_change(&change, &changing, Some(kept));
        Some(done)
    }

    /// Marks a whole range as changing; waits for other threads' changes there.
    fn begin_change(&self, change: &Change<'_>, range: Range, over: Over) -> Option<Changing> {
        let mut attempt = 0;
        loop {
            let mut regions = self.regions_mut(&change.blocked);
            let awaited = regions.awaited();
            if over == Over::Nothing {
                let taken =
                    regions.take_at(range.first, range.end.0 - range.first.0, Use::Changing);
                return taken.then(|| Changing { range, before: Vec::new(), awaited });
            }
            if over == Over::Mappings && !regions.is_mapped(range) && !regions.is_changing(range) {
                return None;
            }
            if let Some(before) = regions.replace(range) {
                regions.inherited.forget(range);
                return Some(Changing { range, before, awaited });
            }
            drop(regions);
            highwater_os::relax(attempt);
            attempt += 1;
        }
    }

    /// Ends a change. `None` frees the pages.
    fn end_change(&self, change: &Change<'_>, changing: &Changing, used_as: Option<Use>) {
        let mut regions = self.regions_mut(&change.blocked);
        match used_as {
            Some(used_as) => regions.settle(changing.range, used_as),
            None => drop(regions.release(changing.range)),
        }
        let is_awaited = regions.awaited() != changing.awaited;
        drop(regions);
        self.wake_if(is_awaited, changing.range);
    }

    /// Wakes threads whose faults waited, perhaps in this range.
    fn wake_if(&self, is_awaited: bool, range: Range) {
        if is_awaited {
            let bytes = (range.end.0 - range.first.0) as usize * PAGE_SIZE;
            let first = self.address(range.first) as u64;
            self.in_helper(|| self.manager.platform().uffd(SPACE).wake(first, bytes));
        }
    }

    /// Moves contents, and advice about forks, to pages that read as zeros.
    pub(crate) fn relocate(&self, range: Range, to: Vpn) {
        let _change = self.change();
        self.shift(range, to);
    }

    /// As [`Process::relocate`], for a caller that has begun a change.
    pub(crate) fn shift(&self, range: Range, to: Vpn) {
        let blocked = Blocked::now();
        self.in_helper(|| {
            self.dump.include(Range { first: to, end: to.offset(range.end.0 - range.first.0) });
            self.manager.relocate(SPACE, range, to);
        });
        self.regions_mut(&blocked).inherited.carry(range, to);
    }

    /// Protects pages added at the end of `old` like its last page; if that is refused, frees them.
    pub(crate) fn extend_access(&self, old: Range, tail: Range) -> bool {
        let platform = self.manager.platform();
        let last = platform.access_at(SPACE, Vpn(old.end.0 - 1));
        let protect = |bits| platform.protect(SPACE, tail.first, tail.end, bits).is_ok();
        let is_done = last.is_none_or(protect);
        if !is_done {
            self.release(tail);
        }
        is_done
    }

    /// Protects `new` like `old`, page for page.
    pub(crate) fn carry_access(&self, old: Range, new: Range) -> bool {
        let platform = self.manager.platform();
        let protected = platform.protected(SPACE, old.first, old.end);
        protected.into_iter().all(|(from, to, bits)| {
            let moved = |vpn: Vpn| Vpn(vpn.0 - old.first.0 + new.first.0);
            platform.protect(SPACE, moved(from), moved(to), bits).is_ok()
        })
    }

    /// Takes pages back that the kernel had mapped.
    fn regain(&self, range: Range) {
        self.in_helper(|| {
            let regained = self.manager.platform().regain(SPACE, range.first, range.end);
            if let Err(error) = regained {
                end(&format!("pages cannot be registered again: {error}"));
            }
        });
    }

    /// Records an advice of madvise(2) about forked children.
    pub(crate) fn advise_fork(&self, range: Range, advice: libc::c_int) {
        let blocked = Blocked::now();
        self.regions_mut(&blocked).inherited.advise(range, advice);
    }

    /// In a forked child that has all pages of its parent: drops pages as the parent's advice says.
    /// Pages of objects stay, because malloc goes on using them.
    pub(crate) fn heed_inheritance(&self) {
        let advised = self.regions(&Blocked::now()).inherited.in_child();
        if !advised.is_empty() {
            // Only pages with frames can be dropped, and it is this thread that gives them frames.
            self.adopt();
        }
        for (range, what) in advised {
            match what {
                Inheritance::Zeros => self.discard(range),
                Inheritance::Absent | Inheritance::AbsentZeros => {
                    let found = self.regions(&Blocked::now()).within(range);
                    let objects = found.iter().any(|region| region.used_as == Use::Objects);
                    if !objects {
                        self.release(range);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_the_largest_that_fits() {
        let table = [
            // most, least, limit, expected
            (1024, 64, u64::MAX, 1024),
            (1024, 64, 1024, 1024),
            (1024, 64, 1023, 512),
            (1024, 64, 64, 64),
            (1024, 64, 63, 64),
            (1024, 100, 127, 100),
            (64, 64, 0, 64),
        ];
        for (most, least, limit, expected) in table {
            let found = largest(most, least, |len| len <= limit);
            assert_eq!(found, expected, "{most} to {least} in {limit}");
        }
    }

    #[test]
    fn the_kernel_maps_a_page_and_not_all_addresses() {
        assert!(can_map(PAGE_SIZE as u64));
        assert!(!can_map(1 << 62));
    }
}
