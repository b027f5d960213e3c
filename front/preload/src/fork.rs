//! fork(2): parent and child both keep right contents.
//!
//! ```text
//! prepare   last of all handlers: signals blocked, contents saved to slots (a snapshot),
//!           heap closed, devices paused, allocator held
//! parent    keeps the snapshot's slots until the pipe says that nobody reads them any more
//! child     a manager of its own at the same addresses: the parent's devices to read, new ones to
//!           write, every page of the snapshot swapped out, and protected as it was
//! ```
//! A handler of a signal that interrupted malloc is at the heap, or at the allocator, itself: it
//! waits for neither. The child's heap is given up then (heap::abandon).
//!
//! Files that are served here are opened anew in the child, and served there.
//! Nothing of range or arena is inherited (MADV_DONTFORK), but what the program has mapped over
//! pages of the range: a child made past the C library faults instead of reading zeros. The budget
//! of a child is its own. The child and its children hold the pipe's end open; ended or having
//! become another program, they close it.

use crate::files::Mapped;
use crate::process::{self, Process, SPACE};
use crate::regions::Regions;
use crate::signals::Blocked;
use crate::{descriptors, heap, memory, report};
use highwater_mm::{FaultError, Manager, Snapshot};
use highwater_os::sys;
use highwater_uffd::api::raise;
use highwater_uffd::{Site, Uffd};
use highwater_units::{PAGE_SIZE, Vpn};
use std::cell::UnsafeCell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is carried from before a fork to after it.
struct Passage {
    process: &'static Process,
    blocked: Blocked,
    saved: Result<Saved, FaultError>,
    heap: heap::Found,
    allocator: memory::ForkLock,
}

struct Saved {
    snapshot: Snapshot,
    regions: Regions,
    /// What is protected otherwise than read and write, with PROT_ bits.
    protected: Vec<(Vpn, Vpn, i32)>,
    /// Mappings of files that the child is to serve, too.
    files: Vec<Arc<Mapped>>,
    /// Those that it is not, and that are still open.
    unmapped: Vec<Arc<Mapped>>,
    /// The parent's other children, none of which is given up meanwhile.
    children: MutexGuard<'static, Vec<Child>>,
    /// Read by the parent, held open by the children; or why there is none.
    pipe: Result<(OwnedFd, OwnedFd), i32>,
}

/// The passage of the fork under way. Only the thread that set [`FORKING`] touches it.
struct PassageCell(UnsafeCell<Option<Passage>>);

// SAFETY: see above: FORKING is a lock around it.
unsafe impl Sync for PassageCell {}

static PASSAGE: PassageCell = PassageCell(UnsafeCell::new(None));

/// A lock that is taken in one process and given back in two.
static FORKING: AtomicBool = AtomicBool::new(false);

/// Registers the handlers when the library is loaded: the first registered is the last to prepare,
/// and so sees what the others did to memory; and the first in a child, so that the others find it.
/// For that the library is initialised before all others (build.rs).
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
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
    let saved = process.manager.snapshot(SPACE).map(|snapshot| {
        let regions = process.regions();
        // While the regions are as they are: a mapping leaves the table after them.
        let (files, unmapped) = (process.files.all(), process.files.kept());
        let protected = process.protected(&regions);
        let pipe = pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE));
        let (regions, children) = (regions.clone(), process.reporter.children().lock());
        Saved { snapshot, regions, protected, files, unmapped, children, pipe }
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

/// Takes the passage, and lets go of the allocator.
fn arrive() -> Option<(&'static Process, Blocked, Result<Saved, FaultError>, heap::Found)> {
    // SAFETY: the thread that forked, in parent or child, before FORKING is given back.
    let passage = unsafe { (*PASSAGE.0.get()).take()? };
    drop(passage.allocator);
    Some((passage.process, passage.blocked, passage.saved, passage.heap))
}

extern "C" fn parent() {
    let Some((process, blocked, saved, heap)) = arrive() else { return };
    drop(heap);
    process.manager.platform().devices().resume();
    if let Ok(Saved { snapshot, pipe, children, .. }) = saved {
        drop(children);
        match pipe {
            Ok((read, _)) => process.reporter.children().add(read, snapshot),
            Err(_) => process.manager.release_snapshot(&snapshot),
        }
    }
    memory::step_back();
    FORKING.store(false, Release);
    drop(blocked);
}

extern "C" fn child() {
    let Some((old, blocked, saved, heap)) = arrive() else { return process::forget_start() };
    let failed = |reason: String| -> ! {
        report::end(&format!("a forked child cannot be served: {reason}"))
    };
    let saved = saved.unwrap_or_else(|error| failed(error.to_string()));
    match be_served(old, saved) {
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
        Err(reason) => failed(reason),
    }
    FORKING.store(false, Release);
    drop(blocked);
}

/// Builds the child's own manager. What the parent's holds in this process is never touched again,
/// nor freed: its threads do not exist here, and its locks may be held for ever.
fn be_served(old: &Process, saved: Saved) -> Result<Process, String> {
    process::withdraw();
    // First of all: a mapping made before would be given the addresses that the range left free.
    let (base, pages) = old.extent();
    let parts = saved.regions.own_parts(Vpn(pages));
    parts.iter().try_for_each(|part| reserve(base, *part)).map_err(|error| error.to_string())?;
    let (read, hold) = saved.pipe.map_err(|e| io::Error::from_raw_os_error(e).to_string())?;
    let theirs = old.manager.platform().devices().fixed();
    let mut devices: Vec<_> = theirs.iter().map(|device| device.inherit()).collect();
    close_parents(old, &saved.children);
    drop(read);
    let (files, unmapped) = (saved.files, saved.unmapped);
    files.iter().chain(&unmapped).for_each(|mapped| mapped.leave_device_to_parent());
    unmapped.iter().for_each(|mapped| mapped.close_in_child());
    devices.extend(process::open_devices(&old.settings)?);
    if devices.len() > usize::from(u8::MAX) {
        return Err("255 generations of processes hold swapped pages".into());
    }
    let settings = old.settings.clone();
    let snapshot = saved.snapshot;
    let mut holds = old.holds.clone();
    holds.push(hold.into_raw_fd());
    let site = Site::At { address: base, parts };
    let child = Process::serve(settings, devices, site, pages, saved.regions, holds, |manager| {
        manager.restore_snapshot(SPACE, &snapshot);
    })?;
    let taken = files.iter().try_for_each(|mapped| child.take_over(mapped));
    let protected = saved.protected.iter().try_for_each(|(first, end, bits)| {
        child.manager.platform().protect(SPACE, *first, *end, *bits)
    });
    protected.map_err(|error| format!("pages cannot be protected: {error}"))?;
    // What owns the descriptors is the parent's, and is never dropped here.
    std::mem::forget((files, unmapped, saved.children));
    taken.map_err(|error| format!("a file cannot be mapped: {error}"))?;
    child.heed_inheritance();
    Ok(child)
}

/// Closes this process's copies of what its parent has open for itself. The pipes that the parent
/// holds for its ancestors stay, so that these learn of this process too.
fn close_parents(old: &Process, children: &[Child]) {
    let own = descriptors::guarded().filter(|descriptor| !old.is_pipe(*descriptor));
    for descriptor in own.chain(children.iter().map(|(pipe, _)| pipe.as_raw_fd())) {
        // SAFETY: a descriptor that only the parent uses.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
    }
    // What is opened under these numbers now may be closed again.
    descriptors::guard(std::iter::empty());
}

/// Maps pages of the range, which lies at `base`: they were not inherited.
fn reserve(base: u64, (first, end): (Vpn, Vpn)) -> io::Result<()> {
    let address = (base + first.0 * PAGE_SIZE as u64) as *mut u8;
    // SAFETY: nothing lies there.
    unsafe { sys::map_anonymous(Some(address), (end.0 - first.0) as usize * PAGE_SIZE) }.map(drop)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the call fills two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let [read, hold] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((raise(read)?, raise(hold)?))
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
        // Closing a pipe asks whether it is one of the children's.
        drop(children);
        gone.iter().for_each(|(_, snapshot)| manager.release_snapshot(snapshot));
    }

    /// Whether a descriptor is one of the pipes.
    pub(crate) fn owns_descriptor(&self, descriptor: i32) -> bool {
        self.lock().iter().any(|(pipe, _)| pipe.as_raw_fd() == descriptor)
    }
}

/// fork(2), refused while memory and swap could not hold what the child is to see.
#[unsafe(no_mangle)]
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
