//! Pages of the range that come into use and go out of it.
//!
//! ```text
//! take      free ------------------------------------------------> in use
//! release   in use --> changing: contents dropped, ordinary -----> free
//! replace   anything -> changing: contents dropped, mapped anew --> in use
//! ```
//! While pages are changing they belong to the thread that changes them: nobody else is given them,
//! and a fault there waits until the change is over. So MAP_FIXED is one step for other threads, as
//! the kernel's is. Free pages are readable and writable, but where an access was refused
//! (`Program::stray`): mappings that are released are made so, whoever protected them; blocks of
//! malloc must be writable when they are freed.
//!
//! [`Changes`] comes before `regions`: a fork waits until no page is changing or moving.

use crate::caller;
use crate::inherit::Inheritance;
use crate::process::{Commit, Process, SPACE};
use crate::regions::{Region, Use};
use crate::report;
use crate::signals::Blocked;
use highwater_mm::Range;
use highwater_os::sys;
use highwater_session::Settings;
use highwater_units::{PAGE_SIZE, Vpn};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Address space of the range, so that large reservations are paged, too: a tenth of what a process
/// has. The manager's table takes 16 KiB for each TiB that is not touched.
const RANGE: u64 = 12 << 40;
/// What sanitizers leave a program, which refuse addresses elsewhere.
const RANGE_SANITIZED: u64 = 256 << 30;
/// Below this no program can be served.
const RANGE_MIN: u64 = 1 << 30;
/// The range holds this many times what memory and swap can.
const RANGE_PER_CAPACITY: u64 = 2;

fn capacity_of(settings: &Settings) -> u64 {
    settings.memory.0 + settings.swap.iter().map(|area| area.spec.capacity().0).sum::<u64>()
}

/// Pages of address space for the range of a process. Under a limit (RLIMIT_AS, or no
/// overcommitment) the program is left as much.
pub(crate) fn pages_for(settings: &Settings) -> u64 {
    let capacity = capacity_of(settings);
    let most = if caller::are_addresses_fixed() { RANGE_SANITIZED } else { RANGE };
    let least = capacity.saturating_mul(RANGE_PER_CAPACITY).clamp(RANGE_MIN, most);
    let limit = address_space_limit();
    let fits = |len: &u64| *len <= limit / 2 && can_map(*len);
    let halves = std::iter::successors(Some(most), |len| Some(len / 2));
    halves.take_while(|len| *len >= least).find(fits).unwrap_or(least) / PAGE_SIZE as u64
}

fn address_space_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: fills in the structure given.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    limit.rlim_cur
}

fn can_map(len: u64) -> bool {
    let mapped = sys::map_anonymous(len as usize);
    // SAFETY: a new mapping, which nobody has seen when it goes.
    mapped.map(|address| unsafe { sys::unmap(address, len as usize) }).is_ok()
}

/// Keeps changes of regions and forks apart.
#[derive(Default)]
pub(crate) struct Changes(RwLock<()>);

impl Changes {
    /// Waits until nobody changes anything; nobody does while the guard lives. Signals are blocked.
    pub(crate) fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change under way. Signals are blocked.
pub(crate) struct Change<'a> {
    _shared: RwLockReadGuard<'a, ()>,
    blocked: Blocked,
}

/// What may be in use where something is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Anything: it is replaced.
    Anything,
    /// Nothing.
    Nothing,
}

/// Pages that are changing, and what to do at the end.
struct Changing {
    range: Range,
    /// What was there.
    before: Vec<Region>,
    /// How many faults were left waiting before.
    awaited: u64,
}

impl Process {
    /// Bytes that memory and swap hold.
    pub(crate) fn capacity(&self) -> u64 {
        capacity_of(&self.settings)
    }

    /// Begins a change.
    pub(crate) fn change(&self) -> Change<'_> {
        let blocked = Blocked::now();
        let _shared = self.changes.0.read().unwrap_or_else(PoisonError::into_inner);
        Change { _shared, blocked }
    }

    /// Takes pages that read as zeros. `None` if there is no room, or they could not all be held.
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
        self.make_ordinary(range).then_some(range)
    }

    /// Whether memory and swap could hold so many pages more, if that matters.
    pub(crate) fn can_hold(&self, pages: u64, check: Commit) -> bool {
        check == Commit::Unchecked || pages <= self.manager.capacity_left()
    }

    /// Pages may have been protected while they were free, to catch stray accesses.
    pub(crate) fn make_ordinary(&self, range: Range) -> bool {
        self.manager.platform().unprotect(SPACE, range.first, range.end).is_ok()
    }

    /// Takes these pages, if they are free.
    pub(crate) fn take_at(&self, range: Range, used_as: Use) -> bool {
        let blocked = Blocked::now();
        let pages = range.end.0 - range.first.0;
        let taken = self.regions_mut(&blocked).take_at(range.first, pages, used_as);
        taken && self.make_ordinary(range)
    }

    /// Lengthens a region by free pages.
    pub(crate) fn grow(&self, region: Region, pages: u64) -> bool {
        let blocked = Blocked::now();
        self.regions_mut(&blocked).grow(region, pages)
    }

    /// Drops contents and takes the pages out of use.
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
                // It was unmapped past us, and may be somebody's: it is never used again.
                regions.settle(region.range, Use::Foreign);
            }
            regions.inherited.forget(region.range);
            let is_awaited = regions.awaited() != awaited;
            drop(regions);
            self.wake_if(is_awaited, region.range);
        }
    }

    /// Drops what is in a region that is going out of use; whether its pages are as new ones.
    fn empty(&self, region: &Region) -> bool {
        let Range { first, end } = region.range;
        match region.used_as {
            Use::Foreign => {
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

    /// Drops contents, if there are any: the helper need not be asked for what was never touched.
    fn drop_contents(&self, range: Range) {
        if self.manager.used_pages(SPACE, range).next().is_some() {
            self.in_helper(|| self.manager.discard(SPACE, range));
        }
    }

    /// Maps something anew at a range, in one step for other threads: `act` makes the pages what
    /// they are to be. Contents that were there are gone by then. `None`: pages are in use that may
    /// not be, or `act` failed.
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
        self.in_helper(|| {
            for region in &changing.before {
                match (region.used_as, used_as) {
                    // The kernel's MAP_FIXED replaces its own.
                    (Use::Foreign, Use::Foreign) => {}
                    (Use::Foreign, _) => self.regain(region.range),
                    _ => self.manager.discard(SPACE, region.range),
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

    /// Makes all of a range changing, waiting for other threads' changes there.
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
            if let Some(before) = regions.replace(range) {
                regions.inherited.forget(range);
                return Some(Changing { range, before, awaited });
            }
            drop(regions);
            highwater_os::relax(attempt);
            attempt += 1;
        }
    }

    /// `None`: the pages are free.
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

    /// Lets threads look again that were left waiting, perhaps in this range.
    fn wake_if(&self, is_awaited: bool, range: Range) {
        if is_awaited {
            let bytes = (range.end.0 - range.first.0) as usize * PAGE_SIZE;
            let first = self.address(range.first) as u64;
            self.in_helper(|| self.manager.platform().uffd(SPACE).wake(first, bytes));
        }
    }

    /// Moves contents to pages that read as zeros, with what children are to see of them.
    pub(crate) fn relocate(&self, range: Range, to: Vpn) {
        let _change = self.change();
        self.shift(range, to);
    }

    /// Does so for a caller that has begun a change.
    pub(crate) fn shift(&self, range: Range, to: Vpn) {
        let blocked = Blocked::now();
        self.in_helper(|| {
            self.dump.include(Range { first: to, end: to.offset(range.end.0 - range.first.0) });
            self.manager.relocate(SPACE, range, to);
        });
        self.regions_mut(&blocked).inherited.carry(range, to);
    }

    /// Gives pages added at the end of `old` the protection of its last page.
    pub(crate) fn extend_access(&self, old: Range, tail: Range) -> bool {
        let platform = self.manager.platform();
        let last = platform.access_at(SPACE, Vpn(old.end.0 - 1));
        self.make_ordinary(tail)
            && last.is_none_or(|bits| platform.protect(SPACE, tail.first, tail.end, bits).is_ok())
    }

    /// Gives `new` the protections of `old`, page for page.
    pub(crate) fn carry_access(&self, old: Range, new: Range) -> bool {
        let platform = self.manager.platform();
        let protected = platform.protected(SPACE, old.first, old.end);
        protected.into_iter().all(|(from, to, bits)| {
            let moved = |vpn: Vpn| Vpn(vpn.0 - old.first.0 + new.first.0);
            platform.protect(SPACE, moved(from), moved(to), bits).is_ok()
        })
    }

    /// Makes pages that the program mapped something over the manager's again.
    fn regain(&self, range: Range) {
        self.in_helper(|| {
            let regained = self.manager.platform().regain(SPACE, range.first, range.end);
            if let Err(error) = regained {
                report::end(&format!("pages cannot be registered again: {error}"));
            }
        });
    }

    /// Follows madvise(2) on what a forked child gets of a range.
    pub(crate) fn advise_fork(&self, range: Range, advice: libc::c_int) {
        let blocked = Blocked::now();
        self.regions_mut(&blocked).inherited.advise(range, advice);
    }

    /// In a forked child that has all pages of its parent: drops what the parent said that it shall
    /// not have. What objects lie on stays, since malloc goes on using it.
    pub(crate) fn heed_inheritance(&self) {
        let told = self.regions().inherited.in_child();
        for (range, what) in told {
            match what {
                Inheritance::Zeros => self.discard(range),
                Inheritance::Absent | Inheritance::AbsentZeros => {
                    let found = self.regions().within(range);
                    let objects = found.iter().any(|region| region.used_as == Use::Objects);
                    if !objects {
                        self.release(range);
                    }
                }
            }
        }
    }
}
