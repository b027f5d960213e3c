//! fork(2): parent and child both keep right contents.
//!
//! ```text
//! prepare   last of all handlers: signals blocked, contents saved to slots (a snapshot) by the
//!           helper, which hands over what a child's helper needs open; heap closed, devices
//!           paused, allocator held
//! parent    keeps the snapshot's slots until the pipe says that nobody reads them any more
//! child     a helper and a manager of its own at the same addresses: the parent's devices to read,
//!           new ones to write, every page of the snapshot swapped out, and protected as it was
//! ```
//! A handler of a signal that interrupted malloc is at the heap, or at the allocator, itself: it
//! waits for neither. The child's heap is given up then (heap::abandon).
//!
//! Files that are served here are opened anew in the child, and served there.
//! Nothing of range or arena is inherited (MADV_DONTFORK), but what the program has mapped over
//! pages of the range: a child made past the C library faults instead of reading zeros. In the
//! child the range is out of reach until its pages are registered, and fork returns in the parent
//! after that: another process that reads the child finds an error or its contents, never zeros.
//! The budget of a child is its own. The helpers of the child and of its children hold the pipe's
//! end open; ended or having become another program, they close it.

use crate::files::Mapped;
use crate::process::{self, Plan, Process, SPACE};
use crate::regions::Regions;
use crate::signals::Blocked;
use crate::{descriptors, heap, helper, memory, report};
use highwater_devices::Device;
use highwater_mm::{Manager, Snapshot};
use highwater_os::helper::Program;
use highwater_os::sys;
use highwater_uffd::api::Source;
use highwater_uffd::{Site, Uffd};
use highwater_units::{PAGE_SIZE, Vpn};
use rustix::pipe::PipeFlags;
use std::cell::UnsafeCell;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is carried from before a fork to after it.
struct Passage {
    process: &'static Process,
    blocked: Blocked,
    saved: Result<Saved, String>,
    heap: heap::Found,
    allocator: memory::ForkLock,
}

struct Saved {
    snapshot: Snapshot,
    /// The snapshot by the numbers of the child's devices.
    childs: Snapshot,
    /// How many of the parent's devices, the oldest, the child does not inherit.
    left: usize,
    /// The child's own devices, of a process that has given privileges up: the child could not open
    /// them.
    devices: Option<Vec<Box<dyn Device>>>,
    regions: Regions,
    /// What is protected otherwise than read and write, with PROT_ bits.
    protected: Vec<(Vpn, Vpn, i32)>,
    /// Mappings of files that the child is to serve, too.
    files: Vec<Arc<Mapped>>,
    /// The end of the pipe that the parent's helper reads.
    read: OwnedFd,
    /// The end that the child's helper holds open; the parent's own, until the child has its copy.
    hold: Option<OwnedFd>,
    /// That and the ends for older ancestors: their numbers in the parent's helper.
    holds: Vec<RawFd>,
    /// The parent's helper.
    helper: i32,
    /// What the child's helper needs open: the number in the parent's helper, ...
    wanted: Vec<RawFd>,
    /// ... and in the program; nothing if it had no room.
    received: Vec<OwnedFd>,
    registered: Registered,
}

/// A word that parent and child share: set when the child's pages are registered.
struct Registered(*const AtomicU32);

// SAFETY: an address of shared memory.
unsafe impl Send for Registered {}

/// How long a parent waits for its child to register: one that is stopped, by a debugger for
/// instance, is not waited for.
const REGISTERED_MAX: Duration = Duration::from_secs(1);

impl Registered {
    fn new() -> Result<Registered, String> {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let none = ptr::null_mut::<u8>();
        // SAFETY: a new mapping.
        match unsafe { libc::syscall(libc::SYS_mmap, none, PAGE_SIZE, access, flags, -1, 0usize) } {
            -1 => Err(io::Error::last_os_error().to_string()),
            address => Ok(Registered(ptr::with_exposed_provenance(address as usize))),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page of zeros, mapped as long as this lives.
        unsafe { &*self.0 }
    }

    fn set(&self) {
        self.word().store(1, Release);
        // SAFETY: an aligned live word. Waiters are in another process.
        unsafe { libc::syscall(libc::SYS_futex, self.0, libc::FUTEX_WAKE, i32::MAX) };
    }

    fn wait(&self) {
        let until = Instant::now() + REGISTERED_MAX;
        while self.word().load(Acquire) == 0 && Instant::now() < until {
            let period = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            // SAFETY: an aligned live word, and a time.
            unsafe {
                libc::syscall(libc::SYS_futex, self.0, libc::FUTEX_WAIT, 0, &raw const period)
            };
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { sys::unmap(self.0.cast_mut().cast(), PAGE_SIZE) };
    }
}

/// The passage of the fork under way. Only the thread that set [`FORKING`] touches it.
struct PassageCell(UnsafeCell<Option<Passage>>);

// SAFETY: see above: FORKING is a lock around it.
unsafe impl Sync for PassageCell {}

static PASSAGE: PassageCell = PassageCell(UnsafeCell::new(None));

/// A lock that is taken in one process and given back in two.
static FORKING: AtomicBool = AtomicBool::new(false);

/// Registers the handlers, first of all when the library is loaded: the first registered is the
/// last to prepare, and so sees what the others did to memory; and the first in a child, so that
/// the others find it. For that the library is initialised before all others (build.rs), and
/// nothing before this may ask another malloc for memory: that would register its own.
pub(crate) fn register() {
    // SAFETY: the handlers are plain functions that keep to what is allowed around a fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

extern "C" fn prepare() {
    let Some(process) = process::running() else { return };
    let blocked = Blocked::now();
    memory::step_aside();
    let mut attempt = 0;
    while FORKING.compare_exchange(false, true, Acquire, Relaxed).is_err() {
        highwater_os::relax(attempt);
        attempt += 1;
    }
    // What a thread unmaps or moves is here or there, in the snapshot and in the regions.
    let still = process.changes.stop();
    let saved = process.in_helper(|| save(process)).and_then(|mut saved| {
        // A program without room for them: the child's helper asks the parent's.
        saved.received = helper::receive(saved.wanted.len()).unwrap_or_default();
        Ok(saved)
    });
    drop(still);
    // Before devices pause: who is at the heap may have to wait for a page of its stack.
    let heap = heap::close();
    // With the allocator free: what is waited for may allocate.
    process.manager.platform().devices().pause();
    let allocator = memory::lock_for_fork(&blocked);
    // SAFETY: this thread set FORKING.
    unsafe { *PASSAGE.0.get() = Some(Passage { process, blocked, saved, heap, allocator }) };
}

/// Devices of ancestors that a process reads from, at most, before it copies what it needs of them
/// for its next child: descriptors and time of a fork must not grow with the generations.
const INHERITED_MAX: usize = 3;

/// In the helper: saves what a child is to find, and sends what its helper needs open.
fn save(process: &Process) -> Result<Saved, String> {
    let inherited = process.inherited.min(usize::from(u8::MAX)) as u8;
    if process.inherited > INHERITED_MAX {
        // What cannot be copied is read where it is, by the child as well.
        let _ = process.manager.leave_devices(SPACE, inherited);
    }
    let snapshot = process.manager.snapshot(SPACE).map_err(|error| error.to_string())?;
    let own = snapshot.without_devices(inherited);
    let saved = match own.filter(|_| process.inherited > INHERITED_MAX) {
        Some(own) => save_rest(process, snapshot.clone(), own, process.inherited),
        None => save_rest(process, snapshot.clone(), snapshot.clone(), 0),
    };
    if saved.is_err() {
        process.manager.release_snapshot(&snapshot);
    }
    saved
}

/// Whether a program has other rights to open files than its helper.
fn has_given_up(program: Program) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(format!("/proc/{}", program.pid));
    owner.is_ok_and(|found| found.uid() != rustix::process::geteuid().as_raw())
}

/// `left`: how many of the process's devices, the oldest, the child does not inherit.
fn save_rest(
    process: &Process,
    snapshot: Snapshot,
    childs: Snapshot,
    left: usize,
) -> Result<Saved, String> {
    let program = helper::program().ok_or("no program")?;
    let regions = process.regions();
    // While the regions are as they are: a mapping leaves the table after them.
    let files = process.files.all();
    let protected = process.protected(&regions);
    let regions = regions.clone();
    let (read, hold) = pipe().map_err(|error| format!("no pipe: {error}"))?;
    let platform = process.manager.platform();
    let own =
        has_given_up(program).then(|| process::open_devices(&process.settings)).transpose()?;
    let devices = platform.devices().fixed()[left..].iter().chain(own.iter().flatten());
    let devices = devices.flat_map(|device| device.descriptors());
    let source = platform.source().descriptor();
    let mapped = files.iter().map(|mapped| mapped.descriptor());
    let holds = if left > 0 { Vec::new() } else { process.holds.clone() };
    let holds: Vec<RawFd> = holds.into_iter().chain([hold.as_raw_fd()]).collect();
    let wanted: Vec<RawFd> =
        devices.chain(source).chain(mapped).chain(holds.iter().copied()).collect();
    process.calls.send(&wanted).map_err(|error| format!("descriptors: {error}"))?;
    Ok(Saved {
        snapshot,
        childs,
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

/// Takes the passage, and lets go of the allocator.
fn arrive() -> Option<(&'static Process, Blocked, Result<Saved, String>, heap::Found)> {
    // SAFETY: the thread that forked, in parent or child, before FORKING is given back.
    let passage = unsafe { (*PASSAGE.0.get()).take()? };
    drop(passage.allocator);
    Some((passage.process, passage.blocked, passage.saved, passage.heap))
}

extern "C" fn parent() {
    let Some((process, blocked, saved, heap)) = arrive() else { return };
    drop(heap);
    process.manager.platform().devices().resume();
    memory::step_back();
    FORKING.store(false, Release);
    if let Ok(Saved { snapshot, devices, read, hold, received, registered, .. }) = saved {
        drop(received);
        registered.wait();
        process.in_helper(|| {
            // The child's helper has copies.
            drop((hold, devices));
            process.reporter.children().add(read, snapshot);
        });
    }
    drop(blocked);
}

extern "C" fn child() {
    let Some((old, blocked, saved, heap)) = arrive() else { return process::forget_start() };
    process::withdraw();
    descriptors::close_guarded();
    match saved.and_then(|saved| be_served(old, saved, &blocked)) {
        Ok(process) => {
            process::publish(process);
            match heap {
                heap::Found::Interrupted => heap::abandon(),
                whole @ heap::Found::Whole(_) => {
                    drop(whole);
                    heap::inherit();
                }
            }
        }
        Err(reason) => report::end(&format!("a forked child cannot be served: {reason}")),
    }
    FORKING.store(false, Release);
    drop(blocked);
}

/// Has a helper of the child's own serve it. What the parent's manager holds in this process is
/// never touched again, nor freed: its threads do not exist here, and its locks may be held for
/// ever.
fn be_served(
    old: &'static Process,
    mut saved: Saved,
    blocked: &Blocked,
) -> Result<&'static Process, String> {
    // First of all: a mapping made before would be given the addresses that the range left free.
    let (base, pages) = old.extent();
    let parts = saved.regions.own_parts(Vpn(pages));
    parts.iter().try_for_each(|part| reserve(base, *part)).map_err(|error| error.to_string())?;
    let received = mem::take(&mut saved.received);
    let here: Vec<RawFd> = received.iter().map(AsRawFd::as_raw_fd).collect();
    let passed = here.clone();
    let above = saved.wanted.iter().max().map_or(3, |most| most + 1);
    let process = helper::start(blocked, &passed, above, move |program| {
        take_descriptors(here, &saved).map_err(|error| format!("descriptors: {error}"))?;
        make_child(old, saved, program, parts)
    });
    // The helper has copies.
    received.into_iter().for_each(|fd| descriptors::close_raw(fd.into_raw_fd()));
    process
}

/// In the child's helper: gives the parent's descriptors, which are `here` or else still only its
/// own, the numbers that they have there.
fn take_descriptors(mut here: Vec<RawFd>, saved: &Saved) -> io::Result<()> {
    if here.len() != saved.wanted.len() {
        let taken = |fd: &RawFd| highwater_os::helper::descriptor_of(saved.helper, *fd);
        here = saved.wanted.iter().map(taken).collect::<io::Result<_>>()?;
    }
    let numbers: Vec<_> = here.into_iter().zip(saved.wanted.iter().copied()).collect();
    highwater_os::helper::renumber(&numbers)
}

/// In the child's helper: a manager over the parent's devices and own ones.
fn make_child(
    old: &Process,
    saved: Saved,
    program: Program,
    parts: Vec<(Vpn, Vpn)>,
) -> Result<Process, String> {
    let platform = old.manager.platform();
    let theirs = &platform.devices().fixed()[saved.left..];
    let mut devices: Vec<_> = theirs.iter().map(|device| device.inherit()).collect();
    let inherited = devices.len();
    devices.extend(saved.devices.map_or_else(|| process::open_devices(&old.settings), Ok)?);
    if devices.len() > usize::from(u8::MAX) {
        return Err("255 generations of processes hold swapped pages".into());
    }
    // SAFETY: the copy of this process, under the number that the parent's helper has for it.
    let source = platform.source().descriptor().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (base, pages) = old.extent();
    let Saved { childs, regions, protected, files, holds, registered, .. } = saved;
    // What owns these descriptors is the parent's, and is never dropped here.
    mem::forget((saved.read, saved.hold));
    let plan = Plan {
        settings: old.settings.clone(),
        program,
        devices,
        inherited,
        source: Source::of(source),
        site: Site::At { address: base, parts },
        pages,
        regions,
        holds,
    };
    let child = Process::serve(plan, |manager| {
        manager.restore_snapshot(SPACE, &childs);
        registered.set();
    })?;
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

/// Maps pages of the range, which lies at `base`: they were not inherited.
fn reserve(base: u64, (first, end): (Vpn, Vpn)) -> io::Result<()> {
    let address = (base + first.0 * PAGE_SIZE as u64) as *mut u8;
    let len = (end.0 - first.0) as usize * PAGE_SIZE;
    // SAFETY: nothing lies there.
    unsafe { sys::map_closed(address, len) }.map(drop)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// A pipe that says when a forked child and its children have ended, and what they may read.
type Child = (File, Snapshot);

/// Forked children that may still read this process's slots.
#[derive(Default)]
pub(crate) struct Children(Mutex<Vec<Child>>);

impl Children {
    fn lock(&self) -> MutexGuard<'_, Vec<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, pipe: OwnedFd, snapshot: Snapshot) {
        self.lock().push((File::from(pipe), snapshot));
    }

    /// Gives the slots back that nobody reads any more.
    pub(crate) fn release_ended(&self, manager: &Manager<Uffd>) {
        // Nothing is ever written: 0 bytes say that the other end is closed everywhere.
        let ended = |(pipe, _): &mut Child| matches!(pipe.read(&mut [0u8]), Ok(0));
        let mut children = self.lock();
        let gone: Vec<_> = children.extract_if(.., ended).collect();
        drop(children);
        gone.iter().for_each(|(_, snapshot)| manager.release_snapshot(snapshot));
    }
}

/// fork(2), refused while memory and swap could not hold what the child is to see.
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
    // SAFETY: the C library's fork, which runs the handlers above.
    unsafe { __fork() }
}
