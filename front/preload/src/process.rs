//! The one paged range of this process, and its manager: started at the first request to be paged.
//!
//! ```text
//! STATE: Idle --first request--> Starting --> Running (PROCESS is set)
//!         \    /                         \--> Off     (not to be served, or it failed)
//!          Later   until main begins, of a program with a malloc of its own (begin.rs)
//! ```
//! While one thread starts the manager its own requests go unpaged: nothing recurses. Those of
//! others wait, since what they got meanwhile would stay unpaged for good; but not for long, since
//! they may hold what the start needs. `regions` comes before every lock of the manager.

use crate::dump::Dump;
use crate::files::{Files, PLACES};
use crate::mapping::Hints;
use crate::ranges::Changes;
use crate::regions::{Regions, Use};
use crate::report::{self, Reporter};
use crate::signals::Blocked;
use crate::{descriptors, dump, heap, ranges};
use highwater_devices::{Area, Device};
use highwater_mm::khugepaged::Asked;
use highwater_mm::stats::Counter;
use highwater_mm::{Config, FaultError, Manager, Range};
use highwater_session::{Malloc, MapFiles, Mapping as Wanted, Settings};
use highwater_uffd::handler::{Owner, Part, Server};
use highwater_uffd::{Delivery, Mapping, Placement, Site, Uffd};
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Requests below this are objects of the heap, or the C library's.
pub(crate) const PAGED_MIN: usize = 64 << 10;

/// The space of the range: the manager's only one.
pub(crate) const SPACE: SpaceId = SpaceId(0);

const IDLE: u8 = 0;
const STARTING: u8 = 1;
const RUNNING: u8 = 2;
const OFF: u8 = 3;
const LATER: u8 = 4;

static STATE: AtomicU8 = AtomicU8::new(IDLE);
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// A served process.
pub(crate) struct Process {
    pub(crate) settings: Settings,
    pub(crate) manager: Arc<Manager<Uffd>>,
    pub(crate) reporter: Reporter,
    base: u64,
    pages: u64,
    regions: Arc<RwLock<Regions>>,
    pub(crate) changes: Changes,
    pub(crate) hints: Hints,
    pub(crate) dump: Arc<Dump>,
    pub(crate) files: Arc<Files>,
    /// Ends of pipes held open for the ancestors whose slots this process may read.
    pub(crate) holds: Vec<RawFd>,
    _server: Server,
}

/// Whether it is still open if this process is to be served.
pub(crate) fn is_undecided() -> bool {
    STATE.load(Acquire) == IDLE
}

/// Whether a thread is at starting to serve.
pub(crate) fn is_starting() -> bool {
    STATE.load(Acquire) == STARTING
}

/// This process, if it is served; starts serving it, if that is still to be decided.
pub(crate) fn get() -> Option<&'static Process> {
    match STATE.load(Acquire) {
        RUNNING => running(),
        IDLE => start(),
        STARTING => wait_for_start(),
        _ => None,
    }
}

/// Nothing starts until [`start_put_off`].
pub(crate) fn put_off() {
    let _ = STATE.compare_exchange(IDLE, LATER, AcqRel, Relaxed);
}

/// Starts to serve what was put off.
pub(crate) fn start_put_off() {
    if STATE.compare_exchange(LATER, IDLE, AcqRel, Relaxed).is_ok() {
        get();
    }
}

/// How long others wait for a start, which takes some milliseconds: one that takes longer may need
/// what a thread that waits for it holds (a lock of the dynamic loader, say).
const START_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread is the one that starts.
    static STARTS: Cell<bool> = const { Cell::new(false) };
}

/// This process, if it is served once the thread that starts is done.
#[cold]
pub(crate) fn wait_for_start() -> Option<&'static Process> {
    let began = Instant::now();
    let mut attempt = 0;
    while is_starting() && !STARTS.get() && began.elapsed() < START_MAX {
        highwater_os::relax(attempt);
        attempt += 1;
    }
    if is_starting() { None } else { running() }
}

/// This process, as [`get`], if it serves mappings of files.
pub(crate) fn get_for_files() -> Option<&'static Process> {
    let wanted = match running() {
        Some(process) => process.settings.map_files,
        None => MapFiles::of_env(),
    };
    (wanted != MapFiles::Off).then(get).flatten()
}

/// This process, if it is being served.
pub(crate) fn running() -> Option<&'static Process> {
    // SAFETY: the pointer is null or a Process that was leaked: it lives as long as the process.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// This process, if it is being served and an address is in its range.
pub(crate) fn holding(address: usize) -> Option<&'static Process> {
    running().filter(|process| process.holds(address))
}

fn start() -> Option<&'static Process> {
    if STATE.compare_exchange(IDLE, STARTING, AcqRel, Acquire).is_err() {
        return get();
    }
    let _blocked = Blocked::now();
    STARTS.set(true);
    let started = match Settings::from_env() {
        Ok(None) => None,
        Ok(Some(settings)) => Some(Process::start(settings)),
        Err(error) => Some(Err(error)),
    };
    match started {
        None => STATE.store(OFF, Release),
        Some(Ok(process)) => begin(process),
        Some(Err(error)) => refuse(&error),
    }
    STARTS.set(false);
    running()
}

/// Serves a process from now on, with its heap from the first request on.
fn begin(process: Process) {
    let process: &'static Process = Box::leak(Box::new(process));
    PROCESS.store(ptr::from_ref(process).cast_mut(), Release);
    if process.settings.malloc == Malloc::All {
        heap::start(process).unwrap_or_else(|error| refuse(&error));
    }
    STATE.store(RUNNING, Release);
}

fn refuse(error: &str) -> ! {
    report::end(&format!("this program cannot be served: {error}"))
}

/// Makes a process the one that serves; in a forked child, instead of its parent's.
pub(crate) fn publish(process: Process) {
    PROCESS.store(Box::leak(Box::new(process)), Release);
    STATE.store(RUNNING, Release);
    STARTS.set(false);
}

/// In a forked child: nobody serves until [`publish`]. The parent's Process stays, unused.
pub(crate) fn withdraw() {
    STARTS.set(true);
    STATE.store(STARTING, Release);
    PROCESS.store(ptr::null_mut(), Release);
}

/// In a forked child whose parent was not served: a start that another thread was at is void.
pub(crate) fn forget_start() {
    let _ = STATE.compare_exchange(STARTING, IDLE, AcqRel, Relaxed);
}

impl Process {
    fn start(settings: Settings) -> Result<Process, String> {
        let devices = open_devices(&settings)?;
        let pages = ranges::pages_for(&settings);
        let regions = Regions::new(pages - 1);
        let site = Site::Anywhere;
        let process = Process::serve(settings, devices, site, pages, regions, vec![], |_| ())?;
        report::at_exit();
        Ok(process)
    }

    /// Starts manager and server over a range of `pages` pages. `fill` gives the space its contents
    /// before anything can fault.
    pub(crate) fn serve(
        settings: Settings,
        devices: Vec<Box<dyn Device>>,
        site: Site,
        pages: u64,
        regions: Regions,
        holds: Vec<RawFd>,
        fill: impl FnOnce(&Manager<Uffd>),
    ) -> Result<Process, String> {
        let refused = |error| format!("userfaultfd: {error} (highwater doctor says more)");
        let mapping = match settings.mapping {
            Wanted::Auto => Uffd::probe().map_err(refused)?,
            Wanted::Move => Mapping::Move,
            Wanted::Copy => Mapping::Copy,
        };
        let places = match settings.map_files {
            MapFiles::Off => 0,
            MapFiles::Read => PLACES.min(usize::from(u8::MAX) - devices.len()),
        };
        let platform = Uffd::with_places(settings.memory, devices, places, mapping);
        let platform = platform.map_err(refused)?;
        platform.place(SPACE, Placement { site, delivery: Delivery::Handler });
        let config = Config { kswapd_threads: settings.kswapd, ..Config::default() };
        let manager = Manager::start(platform, config).map_err(|error| error.to_string())?;
        let manager = Arc::new(manager);
        manager.add_space(pages).map_err(|error| error.to_string())?;
        fill(&manager);
        let base = manager.platform().address(SPACE, Vpn(0)) as u64;
        let regions = Arc::new(RwLock::new(regions));
        let files = Arc::new(Files::new(settings.map_files));
        let parts = read(&regions).own_parts(Vpn(pages));
        let dump = Arc::new(Dump::new(base, pages, &parts));
        let (arena, arena_len) = manager.platform().arena_range();
        dump::leave_out(arena, arena_len);
        let owner = Arc::new(Program {
            regions: regions.clone(),
            files: files.clone(),
            manager: manager.clone(),
            dump: dump.clone(),
        });
        let server = Server::start(manager.clone(), SPACE, owner);
        let _server = server.map_err(|error| format!("no thread to serve faults: {error}"))?;
        let own = manager.platform().descriptors();
        descriptors::guard(own.into_iter().chain(holds.iter().copied()));
        let reporter = Reporter::start(&settings, manager.clone(), base, pages);
        let (changes, hints) = (Changes::default(), Hints::default());
        Ok(Process {
            settings,
            manager,
            reporter,
            base,
            pages,
            regions,
            changes,
            hints,
            dump,
            files,
            holds,
            _server,
        })
    }

    /// The regions, to look at.
    pub(crate) fn regions(&self) -> RwLockReadGuard<'_, Regions> {
        read(&self.regions)
    }

    /// The regions, to change. Signals are blocked.
    pub(crate) fn regions_mut(&self, _: &Blocked) -> RwLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of a range is paged memory of the program.
    pub(crate) fn covers(&self, range: Range) -> bool {
        let _blocked = Blocked::now();
        self.regions().covers(range)
    }

    /// Whether an address is in the range: one comparison.
    pub(crate) fn holds(&self, address: usize) -> bool {
        (address as u64).wrapping_sub(self.base) < self.pages << highwater_units::PAGE_SHIFT
    }

    /// Where the range begins, and its pages.
    pub(crate) fn extent(&self) -> (u64, u64) {
        (self.base, self.pages)
    }

    /// Whether a descriptor belongs to what serves this process.
    pub(crate) fn owns_descriptor(&self, descriptor: RawFd) -> bool {
        self.manager.platform().devices().owns_descriptor(descriptor)
            || self.files.owns_descriptor(descriptor)
            || self.reporter.children().owns_descriptor(descriptor)
    }

    /// Whether a descriptor is a pipe's end held open for an ancestor.
    pub(crate) fn is_pipe(&self, descriptor: RawFd) -> bool {
        self.holds.contains(&descriptor)
    }

    /// Whether all that is resident could be saved for a child: what is dirty of it needs slots.
    pub(crate) fn can_fork(&self) -> bool {
        let now = self.manager.statistics();
        let free = now.get(Counter::SlotsTotal) - now.get(Counter::SlotsUsed);
        now.get(Counter::Resident) <= free
    }

    /// The page of an address in the range.
    pub(crate) fn page(&self, address: usize) -> Vpn {
        Vpn((address as u64 - self.base) / PAGE_SIZE as u64)
    }

    /// The address of a page.
    pub(crate) fn address(&self, vpn: Vpn) -> *mut u8 {
        (self.base + vpn.0 * PAGE_SIZE as u64) as *mut u8
    }

    /// Makes pages present that will be written soon, while memory is plenty.
    pub(crate) fn populate(&self, range: Range) {
        self.dump.include(range);
        let _blocked = Blocked::now();
        self.manager.populate(SPACE, range);
    }

    /// Makes large pages of a range of the program's paged memory.
    pub(crate) fn collapse(&self, range: Range) -> Asked {
        let _blocked = Blocked::now();
        self.manager.collapse(SPACE, range)
    }

    /// Drops contents.
    pub(crate) fn discard(&self, range: Range) {
        let _blocked = Blocked::now();
        self.manager.discard(SPACE, range);
        self.discard_files(range);
    }

    /// Drops what is swapped out of contents that nobody needs; returns how many pages.
    pub(crate) fn discard_swapped(&self, range: Range) -> u64 {
        let _blocked = Blocked::now();
        self.manager.discard_swapped(SPACE, range)
    }

    /// Says that a range will be used soon. Of a large one as much is read as may push other pages
    /// out for it.
    pub(crate) fn prefetch(&self, range: Range) {
        let _blocked = Blocked::now();
        let most = self.manager.machine().frames.len() as u64 / 4;
        let end = Vpn(range.end.0.min(range.first.0 + most));
        self.manager.prefetch(SPACE, Range { end, ..range });
        self.prefetch_files(Range { end, ..range });
    }

    /// What of its own pages the program protected otherwise than read and write, with PROT_ bits.
    pub(crate) fn protected(&self, regions: &Regions) -> Vec<(Vpn, Vpn, i32)> {
        let platform = self.manager.platform();
        let own = regions.own_parts(Vpn(self.pages));
        own.into_iter().flat_map(|(first, end)| platform.protected(SPACE, first, end)).collect()
    }
}

/// Whether a request must fit what is left of memory and swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// It must: better refused now than ended later.
    Checked,
    /// The program said that it will not use all of it (MAP_NORESERVE, PROT_NONE).
    Unchecked,
}

/// Opens the devices of the settings.
pub(crate) fn open_devices(settings: &Settings) -> Result<Vec<Box<dyn Device>>, String> {
    let open = |area: &Area| area.open().map_err(|error| error.to_string());
    settings.swap.iter().map(open).collect()
}

/// What the server asks of the program's regions.
struct Program {
    regions: Arc<RwLock<Regions>>,
    files: Arc<Files>,
    manager: Arc<Manager<Uffd>>,
    dump: Arc<Dump>,
}

impl Program {
    /// Whether a fault may be left to a thread that changes the page's region: it wakes who waits.
    fn is_changing(&self, vpn: Vpn) -> bool {
        let regions = read(&self.regions);
        regions.await_change(vpn)
    }

    /// A write to a page of a file: as the program's error it becomes a SIGSEGV.
    fn refuse_write(&self, part: Part) {
        let _open = self.files.enter(part.space);
        if !self.files.has(part.space) {
            return;
        }
        let (platform, next) = (self.manager.platform(), part.vpn.offset(1));
        if let Err(error) = platform.protect(part.space, part.vpn, next, libc::PROT_READ) {
            report::end(&format!("a write to a mapped file cannot be refused: {error}"));
        }
    }
}

impl Owner for Program {
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part> {
        let regions = read(&self.regions);
        let region = regions.find(vpn)?;
        let Range { first, end } = region.range;
        match region.used_as {
            Use::Mapping | Use::Block | Use::Objects => {
                Some(Part { space, vpn, within: region.range })
            }
            Use::File(space) => {
                let within = Range { first: Vpn(0), end: Vpn(end.0 - first.0) };
                Some(Part { space, vpn: Vpn(vpn.0 - first.0), within })
            }
            // The kernel's, or about to be another's, since a moment ago.
            Use::Foreign | Use::Changing => None,
        }
    }

    fn keep(&self, space: SpaceId, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        loop {
            let Some(part) = self.find(space, vpn) else { return self.is_changing(vpn) };
            // A fault that began before its page became a file's must not end later, with zeros.
            let shared = part.space != SPACE || self.files.are_served();
            let _open = shared.then(|| self.files.enter(part.space));
            if !shared || self.find(space, vpn) == Some(part) {
                self.dump.include(Range { first: vpn, end: vpn.offset(1) });
                act(part);
                return true;
            }
        }
    }

    fn failed(&self, part: Part, error: FaultError) {
        match (error, running()) {
            (FaultError::ReadOnly, _) => self.refuse_write(part),
            (FaultError::Read(_) | FaultError::BeyondEnd, Some(process)) if part.space != SPACE => {
                process.hand_over_file(part.space);
            }
            _ => report::end_for(error, &self.manager),
        }
    }

    /// The page is of no region: as the program's error it becomes a SIGSEGV.
    fn stray(&self, _: SpaceId, vpn: Vpn) {
        let regions = read(&self.regions);
        if regions.find(vpn).is_some() {
            return;
        }
        let protected = self.manager.platform().protect(SPACE, vpn, vpn.offset(1), libc::PROT_NONE);
        if let Err(error) = protected {
            report::end(&format!("an access outside all regions cannot be refused: {error}"));
        }
    }
}

fn read(regions: &RwLock<Regions>) -> RwLockReadGuard<'_, Regions> {
    regions.read().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes as whole pages.
pub(crate) fn pages_of(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PAGE_SIZE as u64)
}
