//! fork(2): parent and child both keep the right contents.
//!
//! ```text
//! fork      called on a stack in paged memory, continues on another one (stack.rs)
//! prepare   last of all handlers: the list of streams locked (streams.rs), signals blocked, heap
//!           closed, changes of regions stopped. The helper freezes pages in memory that the kernel
//!           is to copy, saves others to slots (a snapshot, sharing.rs) and sends the descriptors
//!           for the child's helper. Devices paused, allocator held
//! parent    thaws; keeps the snapshot's slots until the pipe ends: they have no more readers
//! child     a helper and a manager of its own at the same addresses: the parent's devices to read,
//!           new ones to write; every page of the snapshot in memory, or swapped out, and protected
//!           as it was
//! ```
//! A signal handler that interrupted malloc, and forks, waits for neither heap nor allocator. The
//! child's heap is given up then (heap::abandon).
//!
//! The child opens served files anew and serves them itself.
//!
//! Neither range nor arena is inherited (MADV_DONTFORK), with two exceptions: mappings that the
//! program has made over pages of the range, and, during a fork, the frozen stretches, in which
//! every page that has contents is present. So a child made past the C library faults instead of
//! reading zeros. In the child the rest of the range is inaccessible until its pages are
//! registered. So another process that reads the child gets an error or the contents, never zeros.
//! Where handlers would give such a reader the contents of missing pages, fork returns in the
//! parent only after the child's pages are registered.
//!
//! A child joins the budget of the run itself. The helpers of the child and of its descendants hold
//! the pipe's end open and close it when they end, or when their program executes another one.

use crate::end::end;
use crate::mapped::Mapped;
use crate::process::{self, Process, SPACE};
use crate::regions::Regions;
use crate::registered::Registered;
use crate::serve::Plan;
use crate::signals::Blocked;
use crate::{
    calls, descriptors, forking, gate, heap, helper, later, memory, program, sharing, stack, start,
    streams, swap_set,
};
use highwater_devices::Device;
use highwater_mm::{Frozen, Snapshot};
use highwater_os::helper::Program;
use highwater_os::sys;
use highwater_serve::Service;
use highwater_session::Forked;
use highwater_uffd::api::Source;
use highwater_uffd::{Delivery, Placement, Site};
use highwater_units::{PAGE_SIZE, Vpn};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::cell::UnsafeCell;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

/// State from before a fork that is needed after it.
struct Passage {
    arrival: Arrival,
    /// Keeps changes of regions out.
    still: RwLockWriteGuard<'static, ()>,
    allocator: memory::ForkLock,
}

/// The part of it that parent and child treat differently.
struct Arrival {
    process: &'static Process,
    blocked: Blocked,
    saved: Result<Saved, String>,
    streams: Option<streams::Locked>,
    heap: heap::Found,
}

struct Saved {
    snapshot: Snapshot,
    /// The pages that the kernel's fork copies.
    frozen: Frozen,
    passed: Passed,
}

/// State that parent and child need after the fork.
struct Passed {
    /// The snapshot, with the child's device numbers.
    snapshot: Snapshot,
    /// How many of the parent's devices, from the oldest, the child does not inherit.
    left: usize,
    /// The child's own devices, if the process has dropped privileges or changed its root
    /// directory: the child could not open them.
    devices: Option<Vec<Option<Box<dyn Device>>>>,
    regions: Regions,
    /// Pages whose protection is not read and write, with their PROT_ bits.
    protected: Vec<(Vpn, Vpn, i32)>,
    /// Mappings of files for the child to serve.
    files: Vec<Arc<Mapped>>,
    /// The end of the pipe for the parent's helper.
    read: OwnedFd,
    /// The end for the child's helper; open in the parent until the child has its copy.
    hold: Option<OwnedFd>,
    /// This end and the ends for older ancestors: numbers in the parent's helper.
    holds: Vec<RawFd>,
    /// The parent's helper.
    helper: i32,
    /// Descriptors for the child's helper: numbers in the parent's helper, ...
    wanted: Vec<RawFd>,
    /// ... and in the program; empty if the program had no room.
    received: Vec<OwnedFd>,
    registered: Registered,
}

/// State of the fork under way. Only the forking thread accesses it.
struct PassageCell(UnsafeCell<Option<Passage>>);

// SAFETY: one fork is under way at a time (forking.rs).
unsafe impl Sync for PassageCell {}

static PASSAGE: PassageCell = PassageCell(UnsafeCell::new(None));

/// Registers the fork handlers before any other library does. Prepare handlers run in reverse
/// order, so this one runs last and sees what the others did to memory; child handlers run in
/// order, so this one runs first and the others find memory in place. The library is initialised
/// before all others (build.rs), and may not ask another malloc for memory before this, because
/// that malloc would register its handlers then.
pub(crate) fn register() {
    // SAFETY: plain functions that do what is allowed around a fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    streams::learn();
}

extern "C" fn prepare() {
    let Some(process) = process::running() else { return };
    // Before all else: the holder of this lock may need any of the locks taken below.
    let streams = streams::lock();
    let blocked = Blocked::now();
    memory::step_aside();
    forking::begin();
    // First: a thread in the heap may wait for a page, or change regions.
    let heap = heap::close();
    // So that a page that a thread unmaps or moves is in the same place in snapshot and regions.
    let still = process.changes.stop();
    let saved = process.in_helper(|| save(process)).map(|mut saved| {
        // If the program has no room for them, the child's helper fetches them from the parent's.
        let count = saved.passed.wanted.len();
        saved.passed.received = calls::receive(count).unwrap_or_default();
        saved
    });
    // With the allocator free, because a thread that is waited for may allocate.
    process.manager.platform().devices().pause();
    let allocator = memory::lock_for_fork(&blocked);
    let arrival = Arrival { process, blocked, saved, streams, heap };
    // SAFETY: this thread has begun the fork.
    unsafe { *PASSAGE.0.get() = Some(Passage { arrival, still, allocator }) };
}

/// Maximum number of ancestors' devices a process reads from. Beyond it, the process copies what it
/// needs before its next fork, so that the descriptors and the time of a fork do not grow with the
/// generations.
const INHERITED_MAX: usize = 3;

/// In the helper: saves what the child will read, and sends the descriptors for the child's helper.
fn save(process: &Process) -> Result<Saved, String> {
    process.adopt();
    let inherited = process.inherited.min(usize::from(u8::MAX)) as u8;
    if process.inherited > INHERITED_MAX {
        // Pages that cannot be copied stay where they are, and the child reads them there.
        let _ = process.manager.leave_devices(SPACE, inherited);
    }
    let parts = process.regions(&Blocked::now()).own_parts(Vpn(process.pages));
    let (snapshot, frozen) = sharing::begin(process, &parts).map_err(|error| error.to_string())?;
    let devices = process.manager.platform().devices().fixed().len();
    let own = snapshot.without_devices(inherited);
    let (childs, left) = match own.filter(|_| process.inherited > INHERITED_MAX) {
        // A child that finds all pages in memory reads no device of its ancestors.
        _ if snapshot.runs().is_empty() => (snapshot.clone(), devices),
        Some(own) => (own, process.inherited),
        None => (snapshot.clone(), 0),
    };
    match pass_on(process, childs, left) {
        Ok(passed) => Ok(Saved { snapshot, frozen, passed }),
        Err(error) => {
            sharing::end(process, frozen);
            process.manager.release_snapshot(&snapshot);
            Err(error)
        }
    }
}

/// Whether the program has other rights to open files than its helper, or another root directory.
fn has_given_up(program: Program) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of_program = format!("/proc/{}", program.in_proc);
    let owner = std::fs::metadata(&of_program);
    let root = |path: &str| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    owner.is_ok_and(|found| found.uid() != rustix::process::geteuid().as_raw())
        || root(&format!("{of_program}/root")) != root("/")
}

/// `left`: how many of the process's devices, from the oldest, the child does not inherit.
fn pass_on(process: &Process, snapshot: Snapshot, left: usize) -> Result<Passed, String> {
    let program = program::program().ok_or("no program")?;
    let blocked = Blocked::now();
    let regions = process.regions(&blocked);
    // With the regions locked: a mapping leaves the table of files after them.
    let files = process.files.all();
    let protected = process.protected(&regions);
    let regions = regions.clone();
    let (read, hold) = pipe().map_err(|error| format!("no pipe: {error}"))?;
    let platform = process.manager.platform();
    let open = || swap_set::open_all(&process.settings, process.share.as_deref());
    let own = has_given_up(program).then(open).transpose()?;
    // Until `make_child`: the fork is to copy their keys.
    own.iter().flatten().flatten().for_each(|device| device.pause());
    let theirs = platform.devices().fixed().into_iter().skip(left).flatten();
    let opened = own.iter().flatten().flatten().map(Box::as_ref);
    let devices = theirs.chain(opened).flat_map(|device| device.descriptors());
    let source = platform.source().descriptor();
    let mapped = files.iter().map(|mapped| mapped.descriptor());
    let held = || process.holds.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let holds = if left > 0 { Vec::new() } else { held() };
    let holds: Vec<RawFd> = holds.into_iter().chain([hold.as_raw_fd()]).collect();
    let wanted: Vec<RawFd> =
        devices.chain(source).chain(mapped).chain(holds.iter().copied()).collect();
    process.calls.send(&wanted).map_err(|error| match error {
        Errno::PIPE => "the program has closed a descriptor of Highwater's".to_owned(),
        error => format!("descriptors: {error}"),
    })?;
    Ok(Passed {
        snapshot,
        left,
        devices: own,
        regions,
        protected,
        files,
        read,
        hold: Some(hold),
        holds,
        helper: std::process::id() as i32,
        wanted,
        received: Vec::new(),
        registered: Registered::new()?,
    })
}

/// Takes the state of the fork, and unlocks the allocator and changes of regions.
fn arrive() -> Option<Arrival> {
    // SAFETY: the forking thread, in parent or child, before the fork ends.
    let Passage { arrival, still, allocator } = unsafe { (*PASSAGE.0.get()).take()? };
    drop(allocator);
    drop(still);
    Some(arrival)
}

extern "C" fn parent() {
    let Some(Arrival { process, blocked, saved, streams, heap }) = arrive() else { return };
    let saved = saved.map(|Saved { snapshot, frozen, passed }| {
        let shared = sharing::inherited(&frozen);
        sharing::end(process, frozen);
        sharing::guard(process, &shared);
        (snapshot, passed)
    });
    drop(heap);
    let mut saved = saved.ok();
    let waits = saved.as_ref().is_some_and(|(_, passed)| passed.must_register(process));
    drop(saved.as_mut().map(|(_, passed)| mem::take(&mut passed.received)));
    // In the helper: a filter of the program may forbid asking for random bytes.
    process.in_helper(|| {
        process.manager.platform().devices().resume();
        if !waits {
            leave_to_child(process, saved.take());
        }
    });
    memory::step_back();
    forking::returned();
    if let Some((_, passed)) = &saved {
        passed.registered.wait();
        process.in_helper(|| leave_to_child(process, saved.take()));
    }
    forking::registered();
    drop(blocked);
    if let Some(streams) = streams {
        streams.unlock();
    }
}

impl Passed {
    /// Whether the child reads slots that are on a server: the server must know the child before
    /// the parent ends and deletes these slots.
    fn reads_server(&self, process: &Process) -> bool {
        let theirs = process.manager.platform().devices().fixed().into_iter().skip(self.left);
        theirs.flatten().any(|device| device.is_remote())
    }

    /// Whether the parent waits until the child is registered: because the child's helper takes
    /// descriptors from this process's helper, or because another process that reads the child
    /// gets the contents of missing pages.
    fn must_register(&self, process: &Process) -> bool {
        let has_copies = self.received.len() == self.wanted.len();
        let is_read = process.manager.platform().delivery(SPACE) == Delivery::Handler;
        is_read || !has_copies || self.reads_server(process)
    }
}

/// In the helper, once the child has copies of the descriptors.
fn leave_to_child(process: &Process, saved: Option<(Snapshot, Passed)>) {
    if let Some((snapshot, passed)) = saved {
        drop((passed.hold, passed.devices));
        process.reporter.children().add(passed.read, snapshot);
    }
}

extern "C" fn child() {
    // The C library has reset the lock of the streams.
    let Some(Arrival { process: old, blocked, saved, heap, .. }) = arrive() else {
        return start::forget_start();
    };
    forking::arrived();
    start::withdraw();
    Service::forget_inherited();
    descriptors::close_guarded();
    match saved.and_then(|saved| go_on(old, saved, &heap, &blocked)) {
        Ok(()) => match heap {
            heap::Found::Interrupted => heap::abandon(),
            whole @ heap::Found::Whole(_) => {
                drop(whole);
                heap::inherit();
            }
        },
        Err(reason) => end_unserved(&reason),
    }
    forking::end();
    drop(blocked);
}

fn end_unserved(reason: &str) -> ! {
    end(&format!("a forked child cannot be served: {reason}"))
}

/// When a child gets a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Before fork returns in it.
    Now,
    /// When it first needs one (later.rs).
    AtNeed,
}

/// Decides when. A later start must still find everything that it needs: descriptors, rights, and
/// pages as they were at the fork. Until then missing pages must raise SIGBUS.
fn start_of(old: &Process, passed: &Passed, heap: &heap::Found) -> Start {
    let platform = old.manager.platform();
    let has_all = passed.received.len() == passed.wanted.len()
        && passed.wanted.len() < descriptors::OTHERS_MAX
        && platform.source().descriptor().is_none();
    let is_plain = passed.files.is_empty() && passed.regions.inherited.is_empty();
    let is_local = !passed.reads_server(old);
    let is_free = passed.devices.is_none() && !gate::may_be_restricted();
    let signals = platform.delivery(SPACE) == Delivery::InThread;
    let is_whole = matches!(heap, heap::Found::Whole(_));
    let can_wait = has_all && is_plain && is_local && is_free && signals && is_whole;
    if can_wait { Start::AtNeed } else { Start::Now }
}

/// A child that is served when it first needs a manager.
struct Waiting {
    old: &'static Process,
    passed: Passed,
    site: Site,
    pid: u32,
}

/// Set in a child, before [`later::put_off`]; taken by the one thread that then serves it.
struct WaitingCell(UnsafeCell<Option<Waiting>>);

// SAFETY: as said above.
unsafe impl Sync for WaitingCell {}

static WAITING: WaitingCell = WaitingCell(UnsafeCell::new(None));

/// Lets the child run on. The parent's manager in this process is never touched or freed again: its
/// threads do not exist here, and its locks may be held.
fn go_on(
    old: &'static Process,
    saved: Saved,
    heap: &heap::Found,
    blocked: &Blocked,
) -> Result<(), String> {
    // First of all: another mapping could get the addresses that the range left free.
    let (base, pages) = old.extent();
    let Saved { frozen, mut passed, .. } = saved;
    let inherited = sharing::inherited(&frozen);
    let parts = sharing::without(&passed.regions.own_parts(Vpn(pages)), &inherited);
    parts.iter().try_for_each(|part| reserve(base, *part)).map_err(|error| error.to_string())?;
    let pid = std::process::id();
    if start_of(old, &passed, heap) == Start::AtNeed
        && let Ok(uffd) = old.manager.platform().register_ahead(SPACE, &parts, &inherited)
    {
        let by = descriptors::raise(uffd).into_raw_fd();
        passed.received = passed.received.into_iter().map(descriptors::raise).collect();
        let received = passed.received.iter().map(AsRawFd::as_raw_fd);
        descriptors::guard_others(&received.chain([by]).collect::<Vec<_>>());
        let site = Site::Registered { address: base, by };
        // SAFETY: the child's only thread.
        unsafe { *WAITING.0.get() = Some(Waiting { old, passed, site, pid }) };
        let first = base as usize;
        later::put_off(first..first + pages as usize * PAGE_SIZE, serve_waiting);
        start::put_off_child();
        return Ok(());
    }
    let site = Site::At { address: base, parts, inherited };
    start::publish(be_served(Waiting { old, passed, site, pid }, blocked)?);
    Ok(())
}

/// Serves a child that waited. This may run in a child of vfork, which has the same memory.
fn serve_waiting(blocked: &Blocked) {
    // SAFETY: later.rs calls this in one thread, once after each `put_off`.
    let waiting = unsafe { (*WAITING.0.get()).take() }.expect("a child waits");
    let pid = waiting.pid;
    if pid != std::process::id() && !helper::shares_memory(pid) {
        end_unserved("it was made past the C library");
    }
    start::withdraw();
    descriptors::release_others();
    match be_served(waiting, blocked) {
        Ok(process) => start::publish(process),
        Err(reason) => end_unserved(&reason),
    }
}

/// Starts a helper of the child's own.
fn be_served(waiting: Waiting, blocked: &Blocked) -> Result<&'static Process, String> {
    let Waiting { old, mut passed, site, pid } = waiting;
    let received = mem::take(&mut passed.received);
    let here: Vec<RawFd> = received.iter().map(AsRawFd::as_raw_fd).collect();
    let registered = match site {
        Site::Registered { by, .. } => Some(by),
        Site::At { .. } | Site::Anywhere => None,
    };
    let all: Vec<RawFd> = here.iter().copied().chain(registered).collect();
    let above = passed.wanted.iter().max().map_or(3, |most| most + 1);
    let process = helper::start(blocked, pid, &all, above, move |program| {
        let site = match site {
            Site::Registered { address, by } => {
                Site::Registered { address, by: highwater_os::helper::lift(by, above) }
            }
            site => site,
        };
        take_descriptors(here, &passed).map_err(|error| format!("descriptors: {error}"))?;
        make_child(old, passed, program, site)
    });
    // The helper has copies.
    let received = received.into_iter().map(IntoRawFd::into_raw_fd);
    received.chain(registered).for_each(descriptors::close_raw);
    process
}

/// In the child's helper: gives the parent's descriptors the numbers that they have in the parent's
/// helper. They are `here`, or still only in the parent's helper.
fn take_descriptors(mut here: Vec<RawFd>, saved: &Passed) -> io::Result<()> {
    if here.len() != saved.wanted.len() {
        let taken = |fd: &RawFd| highwater_os::helper::descriptor_of(saved.helper, *fd);
        here = saved.wanted.iter().map(taken).collect::<io::Result<_>>()?;
    }
    let numbers: Vec<_> = here.into_iter().zip(saved.wanted.iter().copied()).collect();
    highwater_os::helper::renumber(&numbers)
}

/// In the child's helper: makes a manager over the parent's devices and the child's own.
fn make_child(
    old: &Process,
    saved: Passed,
    program: Program,
    site: Site,
) -> Result<Process, String> {
    let platform = old.manager.platform();
    let shared = match &site {
        Site::At { inherited, .. } => inherited.clone(),
        // They are registered already.
        Site::Registered { .. } | Site::Anywhere => Vec::new(),
    };
    let theirs = platform.devices().fixed().into_iter().skip(saved.left);
    let inherited = (0..).zip(theirs).map(|(place, device)| {
        let mut device = device?.inherit();
        // The child's manager makes records up to the last slot that the child can read.
        device.info_mut().pages = saved.snapshot.slots_of(place).max(1);
        Some(device)
    });
    let inherited = inherited.collect();
    let opened = saved.devices;
    opened.iter().flatten().flatten().for_each(|device| device.resume());
    // SAFETY: the copy of this process, at its number in the parent's helper.
    let source = platform.source().descriptor().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let delivery = platform.delivery(SPACE);
    // The parent may have ended since, and another process may have its entry of the budget.
    let parent = old.share.as_ref().filter(|_| is_alive(saved.helper)).map(|share| share.index());
    let Passed { snapshot, regions, protected, files, holds, registered, .. } = saved;
    // The owner of these descriptors is the parent's, and is never dropped here.
    mem::forget((saved.read, saved.hold));
    let plan = Plan {
        settings: old.settings.clone(),
        program,
        inherited,
        opened,
        source: Source::of(source, platform.source().faults()),
        placement: Placement { site, delivery },
        pages: old.pages,
        regions,
        holds,
        forked: Forked {
            pages: snapshot.resident().iter().map(|range| range.end.0 - range.first.0).sum(),
            parent,
        },
    };
    let child = Process::serve(plan, |manager| {
        registered.set();
        manager.restore_snapshot(SPACE, &snapshot)
    })?;
    child.shares.store(!snapshot.resident().is_empty(), Release);
    if platform.is_guarded() {
        child.reporter.unpaged.begin_guard(SPACE, &shared);
    }
    snapshot.resident().iter().for_each(|range| child.dump.include(*range));
    let protect = |(first, end, bits): &(Vpn, Vpn, i32)| {
        child.manager.platform().protect(SPACE, *first, *end, *bits)
    };
    let taken = files.iter().try_for_each(|mapped| child.take_over(mapped));
    let guarded = protected.iter().try_for_each(protect);
    guarded.map_err(|error| format!("pages cannot be protected: {error}"))?;
    // They own descriptors of the parent's.
    mem::forget(files);
    taken.map_err(|error| format!("a file cannot be mapped: {error}"))?;
    child.heed_inheritance();
    Ok(child)
}

fn is_alive(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Maps pages of the range at `base`, which were not inherited.
fn reserve(base: u64, (first, end): (Vpn, Vpn)) -> io::Result<()> {
    let address = (base + first.0 * PAGE_SIZE as u64) as *mut u8;
    let len = (end.0 - first.0) as usize * PAGE_SIZE;
    // SAFETY: nothing lies there.
    unsafe { sys::map_closed(address, len) }.map(drop)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// fork(2). Refused if memory and swap could not hold the child's pages.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn fork() -> libc::pid_t {
    unsafe extern "C" {
        fn __fork() -> libc::pid_t;
    }
    if process::running().is_some_and(|process| !process.can_fork()) {
        // SAFETY: errno is the thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return -1;
    }
    let here = 0u8;
    // On this stack the child would return without having its pages yet, and the parent would write
    // to locked pages.
    let apart = process::holding((&raw const here).addr()).and_then(|_| stack::call_apart(__fork));
    // SAFETY: the C library's fork, which runs the handlers above.
    apart.unwrap_or_else(|| unsafe { __fork() })
}
