//! The served mappings of files of a process.

use highwater_mm::Range;
use highwater_session::MapFiles;
use highwater_units::{PAGE_SIZE, SpaceId};
use libc::{c_int, c_void, off_t};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Maximum number of mapped files; further ones stay the kernel's.
pub(crate) const PLACES: usize = 128;

/// A served mapping.
pub(crate) struct Mapped {
    pub(crate) space: SpaceId,
    /// The file, to map it from.
    pub(crate) file: OwnedFd,
    pub(crate) wanted: Wanted,
}

/// Where a file is mapped, and from which offset.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Pages of the paged range.
    pub(crate) range: Range,
    /// MAP_PRIVATE or MAP_SHARED.
    pub(crate) kind: c_int,
    /// Offset of the first page in the file.
    pub(crate) offset: off_t,
}

/// All served mappings of a process.
pub(crate) struct Files {
    which: MapFiles,
    table: RwLock<BTreeMap<u16, Arc<Mapped>>>,
    /// Indexed by space.
    gates: Vec<RwLock<()>>,
    /// The program's number in /proc.
    pub(crate) in_proc: i32,
}

impl Files {
    pub(crate) fn new(which: MapFiles, in_proc: i32) -> Files {
        Files {
            which,
            table: RwLock::default(),
            gates: (0..=u8::MAX).map(|_| RwLock::new(())).collect(),
            in_proc,
        }
    }

    /// Whether mappings of files are served at all.
    pub(crate) fn are_served(&self) -> bool {
        self.which != MapFiles::Off
    }

    /// Keeps the mapping of a space in place while the guard lives.
    pub(crate) fn enter(&self, space: SpaceId) -> RwLockReadGuard<'_, ()> {
        self.gates[usize::from(space.0)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Excludes all other users of a space's mapping.
    pub(crate) fn close_gate(&self, space: SpaceId) -> RwLockWriteGuard<'_, ()> {
        self.gates[usize::from(space.0)].write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, mapped: Mapped) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(mapped.space.0, Arc::new(mapped));
    }

    pub(crate) fn remove(&self, space: SpaceId) -> Option<Arc<Mapped>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&space.0)
    }

    pub(crate) fn get(&self, space: SpaceId) -> Option<Arc<Mapped>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(&space.0).cloned()
    }

    /// Whether a space belongs to a mapping.
    pub(crate) fn has(&self, space: SpaceId) -> bool {
        self.get(space).is_some()
    }

    /// All mappings.
    pub(crate) fn all(&self) -> Vec<Arc<Mapped>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.values().cloned().collect()
    }
}

impl Mapped {
    /// Lets the kernel map the file over the range's pages, for reading.
    pub(crate) fn map_over(&self, base: u64) -> std::io::Result<()> {
        let Wanted { range, kind, offset, .. } = self.wanted;
        let address = base + range.first.0 * PAGE_SIZE as u64;
        let len = (range.end.0 - range.first.0) as usize * PAGE_SIZE;
        map_file(address, len, kind, self.file.as_raw_fd(), offset)
    }

    /// The descriptor to map the file from.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

pub(crate) fn map_file(
    address: u64,
    len: usize,
    kind: c_int,
    fd: RawFd,
    at: off_t,
) -> std::io::Result<()> {
    let flags = MapFlags::from_bits_retain(kind as u32) | MapFlags::FIXED;
    // SAFETY: open for the call; pages of the paged range that are a region of the program's, at
    // its request.
    unsafe {
        let file = BorrowedFd::borrow_raw(fd);
        mmap(address as usize as *mut c_void, len, ProtFlags::READ, flags, file, at as u64)?;
    }
    Ok(())
}
