//! The one paged range of this process, and its manager.
//!
//! `PROCESS` is set once the process is served (`start.rs`). The lock of `regions` comes before
//! every lock of the manager.

use crate::calls::Calls;
use crate::changes::Changes;
use crate::cpu_lock::CpuLock;
use crate::dump::Dump;
use crate::hints::Hints;
use crate::later;
use crate::mapped::Files;
use crate::others::Others;
use crate::regions::{Regions, Use};
use crate::report::Reporter;
use crate::serving::Serving;
use crate::signals::Blocked;
use crate::swap_room;
use highwater_mm::Asked;
use highwater_mm::stats::Counter;
use highwater_mm::{Manager, Range, Unadopted};
use highwater_serve::Owner;
use highwater_session::{Settings, Share};
use highwater_uffd::Uffd;
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The space of the range, the manager's only one besides those of files.
pub(crate) const SPACE: SpaceId = SpaceId(0);

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// How often regions have changed, in all processes with this memory and in their ancestors. It
/// grows under the lock of the regions, before the change.
static REGION_CHANGES: AtomicU64 = AtomicU64::new(0);

/// A state of the program's memory: regions and protections that were read are valid as long as
/// this does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    regions: u64,
    protections: u64,
}

impl State {
    /// The state of no process.
    pub(crate) const NONE: State = State { regions: 0, protections: 0 };
}

/// A served process.
pub(crate) struct Process {
    pub(crate) settings: Settings,
    pub(crate) manager: Arc<Manager<Uffd>>,
    pub(crate) reporter: Reporter,
    /// Calls that the program's threads make into the helper.
    pub(crate) calls: Calls,
    pub(crate) base: u64,
    pub(crate) pages: u64,
    pub(crate) regions: Arc<RwLock<Regions>>,
    pub(crate) changes: Changes,
    pub(crate) hints: Hints,
    pub(crate) dump: Arc<Dump>,
    pub(crate) files: Arc<Files>,
    /// How many devices, from the first, belong to an ancestor.
    pub(crate) inherited: usize,
    /// Ends of pipes, held open for the ancestors whose slots this process may read.
    pub(crate) holds: Mutex<Vec<RawFd>>,
    /// Its part of the memory that all processes of the run share.
    pub(crate) share: Option<Arc<Share>>,
    /// Whether a thread carries out changes of the swap devices.
    pub(crate) follows_swap: AtomicBool,
    /// Whether a thread compacts memory, as the user asked.
    pub(crate) compacts: AtomicBool,
    /// Whether a thread brings pages into memory that other processes ask for.
    pub(crate) brings: AtomicBool,
    /// Other runs, whose processes have pages that this one accesses.
    pub(crate) others: Others,
    /// Locked for reading during each fault: a thread that locks it for writing waits for the
    /// faults that have begun.
    pub(crate) faults: Arc<CpuLock>,
    /// Knows the use of each page of the range.
    pub(crate) owner: Arc<dyn Owner>,
    /// Whether pages may be shared with a parent or a child.
    pub(crate) shares: AtomicBool,
    /// Pages that are shared with a parent and have no frames yet.
    pub(crate) unadopted: Mutex<Option<Unadopted>>,
    pub(crate) _serving: Serving,
}

/// This process if it is served. A forked child that has not needed a manager so far is served from
/// now on.
#[inline]
pub(crate) fn running() -> Option<&'static Process> {
    already_running().or_else(|| {
        later::begin();
        already_running()
    })
}

/// This process if it is served now.
#[inline]
pub(crate) fn already_running() -> Option<&'static Process> {
    // SAFETY: the pointer is null or a Process that was leaked: it lives as long as the process.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// Makes a process the served one; `None` withdraws it.
pub(crate) fn set_running(process: Option<&'static Process>) {
    let process = process.map_or(ptr::null_mut(), |process| ptr::from_ref(process).cast_mut());
    REGION_CHANGES.fetch_add(1, AcqRel);
    PROCESS.store(process, Release);
}

/// This process if it is served and the address is in its range.
pub(crate) fn holding(address: usize) -> Option<&'static Process> {
    if already_running().is_none() && !later::holds(address) {
        return None;
    }
    running().filter(|process| process.holds(address))
}

impl Process {
    /// Runs `act` in the helper and waits for it.
    pub(crate) fn in_helper<R: Send>(&self, act: impl FnOnce() -> R + Send) -> R {
        self.calls.make(act)
    }

    /// Locks the regions for reading. Signals are blocked.
    pub(crate) fn regions<'a>(&'a self, _: &'a Blocked) -> RwLockReadGuard<'a, Regions> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the regions for writing. Signals are blocked.
    pub(crate) fn regions_mut<'a>(&'a self, _: &'a Blocked) -> RwLockWriteGuard<'a, Regions> {
        let regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        REGION_CHANGES.fetch_add(1, AcqRel);
        regions
    }

    /// The state of the program's memory.
    pub(crate) fn state(&self) -> State {
        let protections = self.manager.platform().protection_changes();
        State { regions: REGION_CHANGES.load(Acquire), protections }
    }

    /// The region of a page, if all of it is the program's to read and write.
    pub(crate) fn plain_region(&self, vpn: Vpn) -> Option<Range> {
        let region = self.regions(&Blocked::now()).find(vpn)?;
        let Range { first, end } = region.range;
        match region.used_as {
            Use::Mapping | Use::Block | Use::Objects => {}
            Use::File(_) | Use::Foreign | Use::Locked | Use::Changing => return None,
        }
        self.manager.platform().protected(SPACE, first, end).is_empty().then_some(region.range)
    }

    /// Whether a range lies wholly in the program's paged memory.
    pub(crate) fn covers(&self, range: Range) -> bool {
        self.regions(&Blocked::now()).covers(range)
    }

    /// The use of a page; `None`: it is free.
    pub(crate) fn use_of(&self, vpn: Vpn) -> Option<Use> {
        self.regions(&Blocked::now()).find(vpn).map(|region| region.used_as)
    }

    /// Whether an address is in the range: one comparison.
    pub(crate) fn holds(&self, address: usize) -> bool {
        (address as u64).wrapping_sub(self.base) < self.pages << highwater_units::PAGE_SHIFT
    }

    /// First address and length in pages of the range.
    pub(crate) fn extent(&self) -> (u64, u64) {
        (self.base, self.pages)
    }

    /// Whether a child could get everything that is resident: dirty pages need slots.
    pub(crate) fn can_fork(&self) -> bool {
        // Statistics allocate from the library's own memory. Other threads wait for its lock with
        // the regions locked, so a signal handler must not wait for the regions meanwhile.
        let blocked = Blocked::now();
        let now = self.manager.statistics();
        let free = now.get(Counter::SlotsTotal) - now.get(Counter::SlotsUsed);
        let resident = now.get(Counter::Resident);
        let (Some(share), true) = (&self.share, resident <= free) else { return resident <= free };
        let has_slots = swap_room::has_slots(share, resident);
        drop(blocked);
        has_slots || self.in_helper(|| swap_room::await_slots(share, resident))
    }

    /// The page of an address in the range.
    pub(crate) fn page(&self, address: usize) -> Vpn {
        Vpn((address as u64 - self.base) / PAGE_SIZE as u64)
    }

    /// The address of a page.
    pub(crate) fn address(&self, vpn: Vpn) -> *mut u8 {
        (self.base + vpn.0 * PAGE_SIZE as u64) as *mut u8
    }

    /// Makes pages present that will be written soon, if memory is plentiful.
    pub(crate) fn populate(&self, range: Range) {
        self.in_helper(|| {
            self.dump.include(range);
            self.manager.populate(SPACE, range);
        });
    }

    /// Collapses a range of the program's paged memory into large pages.
    pub(crate) fn collapse(&self, range: Range) -> Asked {
        self.in_helper(|| self.manager.collapse(SPACE, range))
    }

    /// Drops the contents of a range.
    pub(crate) fn discard(&self, range: Range) {
        self.reporter.note_demand();
        self.in_helper(|| {
            self.manager.discard(SPACE, range);
            self.discard_files(range);
        });
    }

    /// Drops swapped-out contents that are no longer needed. Returns how many pages.
    pub(crate) fn discard_swapped(&self, range: Range) -> u64 {
        self.in_helper(|| self.manager.discard_swapped(SPACE, range))
    }

    /// Reads a range ahead: at most a quarter of memory, so that few other pages are evicted.
    pub(crate) fn prefetch(&self, range: Range) {
        let most = self.manager.frames() / 4;
        let end = Vpn(range.end.0.min(range.first.0 + most));
        self.in_helper(|| {
            self.manager.prefetch(SPACE, Range { end, ..range });
            self.prefetch_files(Range { end, ..range });
        });
    }

    /// The program's own pages whose protection is not read and write, with their PROT_ bits.
    pub(crate) fn protected(&self, regions: &Regions) -> Vec<(Vpn, Vpn, i32)> {
        let platform = self.manager.platform();
        let own = regions.own_parts(Vpn(self.pages));
        own.into_iter().flat_map(|(first, end)| platform.protected(SPACE, first, end)).collect()
    }
}
