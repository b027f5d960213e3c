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
use crate::helper::{self, Calls};
use crate::mapping::Hints;
use crate::ranges::Changes;
use crate::regions::{Regions, Use};
use crate::report::{self, Reporter};
use crate::signals::Blocked;
use crate::{dump, environment, heap, ranges};
use highwater_devices::{Area, Device};
use highwater_mm::Asked;
use highwater_mm::stats::Counter;
use highwater_mm::{Config, FaultError, Manager, Range};
use highwater_os::helper::Program as Served;
use highwater_serve::{Owner, Part, Server};
use highwater_session::{Malloc, MapFiles, Mapping as Wanted, Settings};
use highwater_uffd::api::Source;
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
    /// What threads of the program have the helper do.
    pub(crate) calls: Calls,
    base: u64,
    pages: u64,
    regions: Arc<RwLock<Regions>>,
    pub(crate) changes: Changes,
    pub(crate) hints: Hints,
    pub(crate) dump: Arc<Dump>,
    pub(crate) files: Arc<Files>,
    /// How many of its devices, the first, are an ancestor's.
    pub(crate) inherited: usize,
    /// Ends of pipes held open for the ancestors whose slots this process may read.
    pub(crate) holds: Vec<RawFd>,
    _server: Server,
}

/// What a process is served with.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) program: Served,
    pub(crate) devices: Vec<Box<dyn Device>>,
    /// How many of them, the first, are an ancestor's.
    pub(crate) inherited: usize,
    pub(crate) source: Source,
    pub(crate) site: Site,
    /// Of the range.
    pub(crate) pages: u64,
    pub(crate) regions: Regions,
    pub(crate) holds: Vec<RawFd>,
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

/// The next request may start what was put off; whether anything was.
pub(crate) fn allow() -> bool {
    STATE.compare_exchange(LATER, IDLE, AcqRel, Relaxed).is_ok()
}

/// Starts to serve what was put off.
pub(crate) fn start_put_off() {
    if allow() {
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
        None => environment::map_files(),
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
    let blocked = Blocked::now();
    STARTS.set(true);
    let started = match environment::settings() {
        Ok(None) => None,
        Ok(Some(settings)) => {
            Some(helper::start(&blocked, &[], 3, move |program| Process::start(settings, program)))
        }
        Err(error) => Some(Err(error)),
    };
    match started {
        None => STATE.store(OFF, Release),
        Some(Ok(process)) => begin(process),
        Some(Err(error)) => {
            report::say(&format!("process {} is not paged: {error}", std::process::id()));
            STATE.store(OFF, Release);
        }
    }
    STARTS.set(false);
    running()
}

/// Serves a process from now on, with its heap from the first request on.
fn begin(process: &'static Process) {
    PROCESS.store(ptr::from_ref(process).cast_mut(), Release);
    if process.settings.malloc == Malloc::All {
        if let Err(error) = heap::start(process) {
            report::end(&format!("this program cannot be served: {error}"));
        }
    }
    STATE.store(RUNNING, Release);
}

/// Makes a process the one that serves; in a forked child, instead of its parent's.
pub(crate) fn publish(process: &'static Process) {
    PROCESS.store(ptr::from_ref(process).cast_mut(), Release);
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
    fn start(settings: Settings, program: Served) -> Result<Process, String> {
        let devices = open_devices(&settings)?;
        let pages = ranges::pages_for(&settings);
        let regions = Regions::new(pages - 1);
        let (site, source) = (Site::Anywhere, Source::find());
        let (inherited, holds) = (0, Vec::new());
        let plan =
            Plan { settings, program, devices, inherited, source, site, pages, regions, holds };
        Process::serve(plan, |_| ())
    }

    /// Starts manager and server over a range, in the helper. `fill` gives the space its contents
    /// before anything can fault.
    pub(crate) fn serve(plan: Plan, fill: impl FnOnce(&Manager<Uffd>)) -> Result<Process, String> {
        let Plan { settings, program, devices, inherited, source, site, pages, regions, holds } =
            plan;
        let refused = |error| format!("userfaultfd: {error} (highwater doctor says more)");
        let mapping = match settings.mapping {
            Wanted::Auto => source.probe().map_err(refused)?,
            Wanted::Move => Mapping::Move,
            Wanted::Copy => Mapping::Copy,
        };
        let places = match settings.map_files {
            MapFiles::Off => 0,
            MapFiles::Read => PLACES.min(usize::from(u8::MAX) - devices.len()),
        };
        let platform = Uffd::with_places(settings.memory, devices, places, mapping, source);
        let platform = platform.map_err(refused)?;
        platform.place(SPACE, Placement { site, delivery: Delivery::Handler });
        let config = Config { kswapd_threads: settings.kswapd, ..Config::default() };
        let manager = Manager::start(platform, config).map_err(|error| error.to_string())?;
        let manager = Arc::new(manager);
        manager.add_space(pages).map_err(|error| error.to_string())?;
        fill(&manager);
        let base = manager.platform().address(SPACE, Vpn(0)) as u64;
        let regions = Arc::new(RwLock::new(regions));
        let files = Arc::new(Files::new(settings.map_files, program.pid));
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
        let reporter = Reporter::new(&settings, program.pid, manager.clone(), base, pages);
        let calls = Calls::new();
        let (changes, hints) = (Changes::default(), Hints::default());
        Ok(Process {
            settings,
            manager,
            reporter,
            calls,
            base,
            pages,
            regions,
            changes,
            hints,
            dump,
            files,
            inherited,
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
        self.in_helper(|| {
            self.dump.include(range);
            self.manager.populate(SPACE, range);
        });
    }

    /// Makes large pages of a range of the program's paged memory.
    pub(crate) fn collapse(&self, range: Range) -> Asked {
        self.in_helper(|| self.manager.collapse(SPACE, range))
    }

    /// Drops contents.
    pub(crate) fn discard(&self, range: Range) {
        self.in_helper(|| {
            self.manager.discard(SPACE, range);
            self.discard_files(range);
        });
    }

    /// Drops what is swapped out of contents that nobody needs; returns how many pages.
    pub(crate) fn discard_swapped(&self, range: Range) -> u64 {
        self.in_helper(|| self.manager.discard_swapped(SPACE, range))
    }

    /// Says that a range will be used soon. Of a large one as much is read as may push other pages
    /// out for it.
    pub(crate) fn prefetch(&self, range: Range) {
        let most = self.manager.frames() / 4;
        let end = Vpn(range.end.0.min(range.first.0 + most));
        self.in_helper(|| {
            self.manager.prefetch(SPACE, Range { end, ..range });
            self.prefetch_files(Range { end, ..range });
        });
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
