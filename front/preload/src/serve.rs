//! Starts the manager of a process, and tells the server of its faults which use each page has.

use crate::balance::Memory;
use crate::calls::Calls;
use crate::changes::Changes;
use crate::cpu_lock::CpuLock;
use crate::dump::Dump;
use crate::end::{end, kill_program, say};
use crate::hints::Hints;
use crate::lost::{self, Lines, Outcome};
use crate::mapped::{Files, PLACES};
use crate::others::Others;
use crate::process::{Process, SPACE, running};
use crate::regions::{Regions, Use};
use crate::report::Reporter;
use crate::serving::Serving;
use crate::unpaged::Unpaged;
use crate::{dump, gate, heap, malloc, ranges, swap_room, swap_set};
use highwater_devices::Device;
use highwater_mm::{Config, FaultError, Manager, Poisoned, Range, Unadopted};
use highwater_os::helper::Program as Served;
use highwater_platform::Cpu;
use highwater_serve::{Cause, Owner, Part};
use highwater_session::{
    Borrowed, FaultThreads, Forked, LargePages, MapFiles, Mapping as Wanted, Settings, SystemCalls,
};
use highwater_uffd::api::{Faults, Source};
use highwater_uffd::{Delivery, Mapping, Placement, Site, Uffd};
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Everything a process is served with.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) program: Served,
    /// The devices of ancestors, by number; `None`: a vacant place.
    pub(crate) inherited: Vec<Option<Box<dyn Device>>>,
    /// Its own devices, if they are open already.
    pub(crate) opened: Option<Vec<Option<Box<dyn Device>>>>,
    pub(crate) source: Source,
    pub(crate) placement: Placement,
    /// Length of the range.
    pub(crate) pages: u64,
    pub(crate) regions: Regions,
    pub(crate) holds: Vec<RawFd>,
    /// Pages that a fork has shared with this process.
    pub(crate) forked: Forked,
}

impl Process {
    pub(crate) fn start(settings: Settings, program: Served) -> Result<Process, String> {
        let pages = ranges::pages_for(&settings);
        let regions = Regions::new(pages - 1);
        let (site, source) = match settings.system_calls {
            SystemCalls::Faults => (Site::Anywhere, Source::find(Faults::All)),
            SystemCalls::Copies => (site_of_gate(pages)?, Source::find(Faults::UserMode)),
        };
        let placement = Placement { site, delivery: delivery(&settings) };
        let plan = Plan {
            settings,
            program,
            inherited: Vec::new(),
            opened: None,
            source,
            placement,
            pages,
            regions,
            holds: Vec::new(),
            forked: Forked::default(),
        };
        Process::serve(plan, |_| Unadopted::default())
    }

    /// Starts manager and server over a range, in the helper. `fill` fills the space before
    /// anything can fault.
    pub(crate) fn serve(
        plan: Plan,
        fill: impl FnOnce(&Manager<Uffd>) -> Unadopted,
    ) -> Result<Process, String> {
        let Plan { settings, program, inherited: mut devices, opened, source, .. } = plan;
        let Plan { placement, pages, regions, holds, forked, .. } = plan;
        let file = Reporter::file(&settings, program);
        let memory = Memory::of(&settings, program, file.as_ref(), forked)?;
        let open = || swap_set::open_all(&settings, memory.share.as_deref());
        let own = opened.map_or_else(open, Ok)?;
        memory.share.iter().try_for_each(|share| swap_room::share(share, &own))?;
        let inherited = devices.len();
        devices.extend(own);
        expect_numbers(devices.len())?;
        let platform = platform(&settings, &memory, devices, source)?;
        let delivery = placement.delivery;
        platform.place(SPACE, placement);
        let manager = Manager::start(platform, config(&settings));
        let manager = Arc::new(manager.map_err(|error| error.to_string())?);
        memory.begin(&manager);
        manager.add_space(pages).map_err(|error| error.to_string())?;
        let unadopted = Mutex::new(Some(fill(&manager)));
        let base = manager.platform().address(SPACE, Vpn(0)) as u64;
        let dump = Arc::new(dump_of(&manager, &regions, pages));
        let regions = Arc::new(RwLock::new(regions));
        let faults = Arc::new(CpuLock::new(manager.platform().cpus()));
        let files = Arc::new(Files::new(settings.map_files, program.in_proc));
        let owner = Arc::new(Program {
            regions: regions.clone(),
            files: files.clone(),
            manager: manager.clone(),
            dump: dump.clone(),
            faults: faults.clone(),
            lines: Lines::default(),
        });
        let serving = Serving::start(delivery, &manager, SPACE, owner.clone());
        let serving = serving.map_err(|error| format!("no thread to serve faults: {error}"))?;
        let range = (base, base + pages * PAGE_SIZE as u64);
        let (share, in_proc) = (memory.share.clone(), program.in_proc);
        let unpaged = Unpaged::new(manager.clone(), share, range, forked.own(), in_proc);
        let reporter = Reporter::new(file, manager.clone(), unpaged, delivery, || {
            // None before the process is served, and in a forked child until it is.
            running().and_then(heap::gather)
        });
        Ok(Process {
            settings,
            manager,
            reporter,
            calls: Calls::new(),
            base,
            pages,
            regions,
            changes: Changes::default(),
            hints: Hints::default(),
            dump,
            files,
            inherited,
            holds: Mutex::new(holds),
            share: memory.share,
            follows_swap: AtomicBool::new(false),
            compacts: AtomicBool::new(false),
            brings: AtomicBool::new(false),
            others: Others::default(),
            faults,
            owner,
            shares: AtomicBool::new(false),
            unadopted,
            _serving: serving,
        })
    }
}

impl Process {
    /// In the helper: gives frames to the pages that a fork has shared with this process, or waits
    /// until another thread has.
    pub(crate) fn adopt(&self) {
        let mut unadopted = self.unadopted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pages) = unadopted.take() else { return };
        if let Err(error) = self.manager.adopt(SPACE, pages) {
            end_for(error, &self.manager);
        }
    }
}

/// Refuses more devices than can be numbered.
fn expect_numbers(devices: usize) -> Result<(), String> {
    let limit = "255 generations of processes hold swapped pages";
    u8::try_from(devices).map(|_| ()).map_err(|_| limit.to_owned())
}

/// The parts of the range that core files contain: none yet, and nothing of the manager's.
fn dump_of(manager: &Manager<Uffd>, regions: &Regions, pages: u64) -> Dump {
    let platform = manager.platform();
    let (stage, stage_len) = platform.stage_range();
    dump::leave_out(stage, stage_len);
    let base = platform.address(SPACE, Vpn(0)) as u64;
    Dump::new(base, pages, &regions.own_parts(Vpn(pages)))
}

fn config(settings: &Settings) -> Config {
    let large_pages = settings.large_pages == LargePages::On;
    // Single pages need no frames side by side: the kernel compacts its own.
    let (kswapd_threads, compact) = (settings.kswapd, large_pages);
    Config { kswapd_threads, compact, large_pages, ..Config::default() }
}

/// A platform with as much memory as the process may ever use.
fn platform(
    settings: &Settings,
    memory: &Memory,
    devices: Vec<Option<Box<dyn Device>>>,
    source: Source,
) -> Result<Uffd, String> {
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
    let platform = Uffd::with_places(memory.most, devices, places, mapping, source);
    let platform = platform.map_err(refused)?;
    if let Some(share) = &memory.share {
        platform.borrow_from(Arc::new(Borrowed(share.clone())));
    }
    Ok(platform)
}

/// How the faults of this program are delivered. If it has a malloc of its own, the C library's
/// memory is paged too, and the C library uses that memory with signals blocked.
fn delivery(settings: &Settings) -> Delivery {
    match (settings.faults, settings.system_calls) {
        (FaultThreads::InThread, SystemCalls::Copies) if malloc::other().is_none() => {
            Delivery::InThread
        }
        _ => Delivery::Handler,
    }
}

/// The place of a range whose pointers the filter knows.
fn site_of_gate(pages: u64) -> Result<Site, String> {
    gate::reserve(pages)
        .map_err(|error| format!("its place for paged memory is taken: {error}"))?;
    let (address, parts) = (gate::RANGE.start as u64, vec![(Vpn(0), Vpn(pages))]);
    Ok(Site::At { address, parts, inherited: Vec::new() })
}

/// The program's regions, as the server sees them.
struct Program {
    regions: Arc<RwLock<Regions>>,
    files: Arc<Files>,
    manager: Arc<Manager<Uffd>>,
    dump: Arc<Dump>,
    faults: Arc<CpuLock>,
    lines: Lines,
}

impl Program {
    /// Whether another thread is changing the page's region; that thread wakes the faulting one.
    fn is_changing(&self, vpn: Vpn) -> bool {
        let regions = read(&self.regions);
        regions.await_change(vpn)
    }

    /// The program needs a page that cannot be read: it gets SIGBUS if it handles that, or is
    /// ended.
    fn lose(&self, process: &Process, vpn: Vpn, error: FaultError) {
        let manager = &self.manager;
        let platform = manager.platform();
        // `--mapping copy` uses the kernel as if it were an old one.
        let can_poison = platform.can_poison() && process.settings.mapping != Wanted::Copy;
        match lost::decide(lost::sigbus(), platform.delivery(SPACE), can_poison) {
            Outcome::End => end_for(error, manager),
            Outcome::Signal => {
                let address = process.address(vpn) as usize;
                let report = || self.lines.print(address, &Cause::of(error, manager));
                if manager.poison(SPACE, vpn, report) == Poisoned::Refused {
                    end_for(error, manager);
                }
            }
        }
    }

    /// Refuses a write to a page of a file: it becomes a SIGSEGV.
    fn refuse_write(&self, part: Part) {
        let _open = self.files.enter(part.space);
        if !self.files.has(part.space) {
            return;
        }
        let (platform, next) = (self.manager.platform(), part.vpn.offset(1));
        if let Err(error) = platform.protect(part.space, part.vpn, next, libc::PROT_READ) {
            end(&format!("a write to a mapped file cannot be refused: {error}"));
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
            // Not paged, or about to change owner.
            Use::Foreign | Use::Locked | Use::Changing => None,
        }
    }

    fn keep(&self, space: SpaceId, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        let _fault = self.faults.read();
        loop {
            let Some(part) = self.find(space, vpn) else { return self.is_changing(vpn) };
            // A fault that began before its page became a file's must not end afterwards, with
            // zeros.
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
            (FaultError::Read(_) | FaultError::Poisoned, Some(process)) => {
                self.lose(process, part.vpn, error);
            }
            _ => end_for(error, &self.manager),
        }
    }

    fn is_foreign(&self, _: SpaceId, vpn: Vpn) -> bool {
        let region = read(&self.regions).find(vpn);
        region.is_some_and(|region| region.used_as.is_kernels())
    }

    /// Refuses access to a page in no region: it becomes a SIGSEGV.
    fn stray(&self, _: SpaceId, vpn: Vpn) {
        let regions = read(&self.regions);
        if regions.find(vpn).is_some() {
            return;
        }
        let protected = self.manager.platform().protect(SPACE, vpn, vpn.offset(1), libc::PROT_NONE);
        if let Err(error) = protected {
            end(&format!("an access outside all regions cannot be refused: {error}"));
        }
    }
}

/// Ends a process whose page fault cannot be served, as the kernel's OOM killer would. Runs in the
/// helper.
fn end_for(error: FaultError, manager: &Manager<Uffd>) -> ! {
    let cause = Cause::of(error, manager);
    let share = running().and_then(|process| process.share.as_ref());
    let room = share.map_or(String::new(), |share| swap_room::in_words(share));
    let figures = cause.figures(manager, &room);
    say(&format!("{cause}: the program is ended; {}{figures}", cause.remedy()));
    if let Some(process) = running() {
        let full = u64::from(error == FaultError::OutOfMemory);
        process.reporter.out_of_memory.store(full, Relaxed);
    }
    kill_program()
}

fn read(regions: &RwLock<Regions>) -> RwLockReadGuard<'_, Regions> {
    regions.read().unwrap_or_else(PoisonError::into_inner)
}
