//! The parts of an export (extents), which the processes of a run share.
//!
//! ```text
//! slots     | segment of 512 | segment | ...                  of a device of a process
//! map       segment -> extent                                 taken when one is written first
//! export    label, unused to 256 KiB | extent of 2 MiB | extent | ...
//! file      a byte for each extent: locked by the process that has it
//! ```
//! A lock of an open file description (fcntl(2)) marks an extent as taken. The kernel releases the
//! lock when the last process that has a copy of the description ends, however it ends; a forked
//! child that reads its parent's pages has a copy. The locks lie beyond the end of the file, at
//! offsets that belong to the export: any file can be used, and one file serves several exports.
//!
//! Locks of another description, which each process has to itself, mark that the process needs the
//! contents, and that it uses the export. The last process that ends gives the contents back to the
//! server, and says in the label that the export is not in use.
//!
//! Locks: `state`, for a segment that gets an extent or loses it; no system call made under it
//! waits.

use crate::array::Array;
use crate::remote::server::hash;
use crate::remote::window::SEGMENT;
use crate::slot_set::SlotSet;
use crate::sys::{Lock, find_lock, set_lock};
use highwater_platform::IoError;
use highwater_units::{Bytes, PAGE_SIZE};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of an extent.
pub(super) const EXTENT: usize = SEGMENT as usize * PAGE_SIZE;
/// Where the first extent begins.
const FIRST: u64 = 256 << 10;
/// The smallest size with an extent.
pub(crate) const SIZE_MIN: Bytes = Bytes(FIRST + EXTENT as u64);

/// Locks of an export begin at a multiple of this.
const PER_EXPORT: u64 = 1 << 32;
const EXPORTS: u64 = 1 << 24;
/// Locks of holders begin here.
const HOLDERS: u64 = 1 << 62;

pub(super) struct Extents {
    /// The file that the extents' locks are on.
    file: Arc<OwnedFd>,
    /// The place of the first extent's lock.
    base: u64,
    count: u32,
    /// For each segment the number of its extent plus one; 0: none.
    map: Arc<Array<AtomicU64>>,
    /// The extents that this process has.
    taken: Arc<SlotSet>,
    /// The place of the holders' locks.
    holders: u64,
    state: Mutex<State>,
}

struct State {
    /// The extent to try next.
    next: u32,
    /// The description that has this holder's locks.
    hold: Option<OwnedFd>,
}

impl Extents {
    /// No extents yet, of the first `size` bytes of an export. `path` is a file that all processes
    /// of the run use; `None`: this process is alone.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(
        path: Option<&Path>,
        export: &str,
        size: Bytes,
        slots: u32,
    ) -> Result<Extents, i32> {
        let alone = || memfd_create("highwater-extents", MemfdFlags::CLOEXEC);
        let count = (size.0.saturating_sub(FIRST) / EXTENT as u64) as u32;
        let shared = path.map(|path| open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()));
        let (file, count) = match shared {
            None => (alone(), count),
            // The run has ended, or this process has dropped its privileges: it takes no extents.
            Some(Err(Errno::NOENT | Errno::ACCESS | Errno::PERM)) => (alone(), 0),
            Some(opened) => (opened, count),
        };
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty()).map_err(Errno::raw_os_error)?;
        let id = u64::from_ne_bytes(id);
        let extents = Extents {
            file: Arc::new(file.map_err(Errno::raw_os_error)?),
            base: hash(export) % EXPORTS * PER_EXPORT,
            count,
            map: Arc::new(Array::new(slots.div_ceil(SEGMENT) as usize)?),
            taken: Arc::new(SlotSet::new(count.max(1))?),
            holders: HOLDERS | id >> 8,
            // Not at the extents to which a process that was killed has just written.
            state: Mutex::new(State { next: path.map_or(0, |_| id as u32), hold: None }),
        };
        extents.hold();
        Ok(extents)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offset in the export of a slot whose segment has an extent.
    pub(super) fn offset(&self, slot: u32) -> Option<u64> {
        let extent = self.map[(slot / SEGMENT) as usize].load(Relaxed).checked_sub(1)?;
        let inside = (slot % SEGMENT) as usize * PAGE_SIZE;
        Some(start(extent as u32) + inside as u64)
    }

    /// Takes extents for slots that are stored from now on.
    ///
    /// # Errors
    /// `Full`: other processes have all.
    pub(super) fn place(&self, slot: u32, pages: u32) -> Result<(), IoError> {
        let mut state = self.state();
        for segment in slot / SEGMENT..=(slot + pages - 1) / SEGMENT {
            let place = &self.map[segment as usize];
            if place.load(Relaxed) == 0 {
                let extent = self.claim(&mut state).ok_or(IoError::Full)?;
                place.store(u64::from(extent) + 1, Relaxed);
            }
        }
        Ok(())
    }

    /// Takes an extent that no process has.
    fn claim(&self, state: &mut State) -> Option<u32> {
        let mut tried = 0;
        while tried < self.count {
            let extent = state.next % self.count;
            let mut skip = 1;
            if self.taken.missing(extent, 1) == 1 {
                let place = self.base + u64::from(extent);
                match set_lock(self.file.as_fd(), Lock::Exclusive, place, 1) {
                    Ok(()) => {
                        state.next = extent + 1;
                        self.taken.insert(extent, 1);
                        return Some(extent);
                    }
                    // Another process has it, and perhaps the next ones, too.
                    Err(_) => {
                        let found = find_lock(self.file.as_fd(), place, 1);
                        let end = found.map_or(place, |found| found.end.max(place));
                        skip = (end - place).clamp(1, u64::from(self.count - extent)) as u32;
                    }
                }
            }
            (tried, state.next) = (tried + skip, extent + skip);
        }
        None
    }

    /// Gives up the extent of a segment that is not used.
    pub(super) fn release(&self, segment: u32, is_unused: impl Fn() -> bool) {
        if self.offset(segment * SEGMENT).is_some() {
            let _state = self.state();
            if is_unused() {
                self.give_up(segment as usize);
            }
        }
    }

    fn give_up(&self, segment: usize) {
        if let Some(extent) = self.map[segment].swap(0, Relaxed).checked_sub(1) {
            self.taken.remove(extent as u32, 1);
            // This can fail for lack of memory: then no process can use the extent until this one
            // ends.
            let place = self.base + extent;
            let _ = set_lock(self.file.as_fd(), Lock::None, place, 1);
        }
    }

    /// Gives up all extents.
    pub(super) fn release_all(&self) {
        let _state = self.state();
        (0..self.map.len()).for_each(|segment| self.give_up(segment));
    }

    /// The ranges of the export that this process has: offsets, and lengths in bytes. A forked
    /// child may list extents that its parent has given up since: those that another process has
    /// now are left out.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, usize)> {
        let is_own = |extent: &u32| {
            let place = self.base + u64::from(*extent);
            set_lock(self.file.as_fd(), Lock::Exclusive, place, 1).is_ok()
        };
        self.taken.members().filter(is_own).map(|extent| (start(extent), EXTENT))
    }

    /// Tells others that this process needs the contents, and uses the export.
    pub(super) fn hold(&self) {
        if self.count == 0 {
            return;
        }
        // A copy of a descriptor has the same description; opening its name in /proc gives a new
        // one. After privileges were dropped the file may open only for reading: then this process
        // never counts as the last.
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let opened = |access| open(&name, access | OFlags::CLOEXEC, Mode::empty());
        let held = opened(OFlags::RDWR).or_else(|_| opened(OFlags::RDONLY)).ok();
        let lock = |fd: &OwnedFd, place| set_lock(fd.as_fd(), Lock::Shared, place, 1);
        let held =
            held.filter(|fd| [self.holders, self.users()].map(|at| lock(fd, at)) == [Ok(()); 2]);
        // A descriptor of another process is only a number here: it is not closed.
        std::mem::forget(std::mem::replace(&mut self.state().hold, held));
    }

    /// This process does not need the contents any more; returns whether no other process does.
    pub(super) fn let_go(&self) -> bool {
        // The exclusive lock stays: no process waits for it.
        self.is_alone(self.holders)
    }

    /// This process does not use the export any more; returns whether no other of the run does.
    pub(super) fn leave(&self) -> bool {
        let is_last = self.is_alone(self.users());
        // The exclusive lock is released, because a process that starts needs a shared one. This
        // cannot fail: it needs no memory.
        self.set_hold(Lock::None, self.users());
        is_last
    }

    /// The place of the locks of all processes that use the export.
    fn users(&self) -> u64 {
        self.base + PER_EXPORT - 1
    }

    /// Gives up the shared lock at a place, and takes the exclusive one if no other process has a
    /// lock there. If several processes end at once, one of them gets it.
    fn is_alone(&self, place: u64) -> bool {
        self.set_hold(Lock::None, place) && self.set_hold(Lock::Exclusive, place)
    }

    fn set_hold(&self, lock: Lock, place: u64) -> bool {
        self.state().hold.as_ref().is_some_and(|fd| set_lock(fd.as_fd(), lock, place, 1).is_ok())
    }

    /// The parent's extents, in a forked child.
    pub(super) fn inherit(&self) -> Extents {
        Extents {
            file: self.file.clone(),
            base: self.base,
            count: self.count,
            map: self.map.clone(),
            taken: self.taken.clone(),
            holders: self.holders,
            state: Mutex::new(State { next: 0, hold: None }),
        }
    }

    /// The descriptor that a forked child needs a copy of.
    pub(super) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

fn start(extent: u32) -> u64 {
    FIRST + u64::from(extent) * EXTENT as u64
}

#[cfg(test)]
#[path = "extents_fuzz.rs"]
mod fuzz;
