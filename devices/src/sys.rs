//! Memory and system calls that bypass the C library.
//!
//! The preload library replaces mmap, munmap and madvise of the program: calls by name from here
//! would recurse into the manager. It also replaces syscall(2): the gate for the program's system
//! calls would check the vectors of each transfer with madvise. In the C library preadv and pwritev
//! are also cancellation points, and a thread must not be cancelled in the middle of a fault. So
//! calls are made by rustix, without the C library.

use crate::own_area::map_own;
use highwater_platform::{Direction, IoError};
use libc::iovec;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, preadv, pwritev};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};

const _: () = assert!(usize::BITS == 64, "written for 64-bit systems");

/// The contents of a mapping in a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inheritance {
    /// A copy.
    Contents,
    /// Zeros.
    Zeros,
}

/// Anonymous private memory, populated when it is touched, in pages of the base size.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, valid from any thread until dropped.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives only the address; its users synchronise accesses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeros.
    ///
    /// # Errors
    /// The system's error number: ENOMEM when overcommit or a limit forbids it.
    pub(crate) fn new(len: usize) -> Result<Mapping, i32> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE);
        let flags = flags | MapFlags::PRIVATE;
        // SAFETY: a new mapping replaces nothing.
        let base =
            map_own(len, |at, more| unsafe { mmap_anonymous(at, len, access, flags | more) });
        let mapping = Mapping::at_base(base, len).map_err(Errno::raw_os_error)?;
        // Kernels without huge pages refuse the advice, and do not need it.
        let _ = mapping.advise(0, len, Advice::LinuxNoHugepage);
        // Core files should not contain a whole swap device.
        let _ = mapping.advise(0, len, Advice::LinuxDontDump);
        Ok(mapping)
    }

    /// Maps `len` bytes of a file, shared with the kernel.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn shared(file: &OwnedFd, len: usize, offset: u64) -> Result<Mapping, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping replaces nothing.
        let base =
            map_own(len, |at, more| unsafe { mmap(at, len, access, flags | more, file, offset) });
        Mapping::at_base(base, len)
    }

    fn at_base(base: Result<*mut c_void, Errno>, len: usize) -> Result<Mapping, Errno> {
        let base = NonNull::new(base?.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { base, len })
    }

    /// The address of the byte at `offset`.
    ///
    /// # Panics
    /// If it lies outside.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "within the mapping");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Populates whole pages. If memory is short this fails with an error, whereas a touch would
    /// kill the process. Kernels before 5.14 do nothing: a touch then faults the pages in.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), i32> {
        loop {
            match self.advise(offset, len, Advice::LinuxPopulateWrite) {
                Err(libc::EINTR | libc::EAGAIN) => std::thread::yield_now(),
                Ok(()) | Err(libc::EINVAL) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Frees the memory of whole pages; they hold zeros then.
    ///
    /// # Safety
    /// No thread uses the range meanwhile, or needs its contents.
    pub(crate) unsafe fn give_back(&self, offset: usize, len: usize) {
        // Refused for locked memory, which then stays.
        let _ = self.advise(offset, len, Advice::LinuxDontNeed);
    }

    /// Keeps the memory out of the kernel's swap, if the limit on locked memory permits that.
    pub(crate) fn lock(&self) {
        // SAFETY: a range of this mapping, whose contents stay.
        let _ = unsafe { mlock(self.base.as_ptr().cast(), self.len) };
    }

    /// Chooses what a forked child finds here.
    pub(crate) fn set_inheritance(&self, what: Inheritance) {
        let advice = match what {
            Inheritance::Contents => Advice::LinuxKeepOnFork,
            Inheritance::Zeros => Advice::LinuxWipeOnFork,
        };
        // Kernels before 4.14 do not know this advice.
        let _ = self.advise(0, self.len, advice);
    }

    /// madvise on `len` bytes from `offset`. Callers use advice that keeps contents, or vouch for
    /// its loss.
    ///
    /// # Errors
    /// The system's error number.
    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), i32> {
        assert!(len <= self.len - offset, "within the mapping");
        // SAFETY: a range of this mapping; the advice keeps its contents, or the caller gives them
        // up.
        unsafe { madvise(self.at(offset).cast(), len, advice) }.map_err(Errno::raw_os_error)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and there are no references to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// One preadv or pwritev; returns the bytes transferred.
///
/// # Errors
/// The system's error number.
///
/// # Safety
/// The vectors name memory that no other thread touches meanwhile.
pub(crate) unsafe fn transfer(
    direction: Direction,
    file: BorrowedFd<'_>,
    vectors: &mut [iovec],
    offset: u64,
) -> Result<usize, i32> {
    let (first, count) = (vectors.as_mut_ptr(), vectors.len());
    // SAFETY: slices for I/O have the layout of iovec; the caller vouches for the memory.
    let moved = unsafe {
        match direction {
            Direction::Read => {
                preadv(file, from_raw_parts_mut(first.cast::<IoSliceMut<'_>>(), count), offset)
            }
            Direction::Write => {
                pwritev(file, from_raw_parts(first.cast::<IoSlice<'_>>(), count), offset)
            }
        }
    };
    moved.map_err(Errno::raw_os_error)
}

/// Takes blocks for a part of a file that lies within its length.
///
/// # Errors
/// The system's error number: there are no free blocks, or the file system cannot preallocate.
pub(crate) fn take_room(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), i32> {
    fallocate(file, FallocateFlags::empty(), offset, len).map_err(Errno::raw_os_error)
}

/// Locks of a range of a file, for its open file description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// No other description holds a lock.
    Exclusive,
    /// No other description holds an exclusive lock.
    Shared,
    None,
}

/// Sets the lock of a range. Waits for a shared lock, because exclusive locks in its way are held
/// only briefly.
///
/// # Errors
/// The system's error number: EAGAIN if other locks forbid an exclusive one.
pub(crate) fn set_lock(
    file: BorrowedFd<'_>,
    lock: Lock,
    from: u64,
    length: u64,
) -> Result<(), i32> {
    let command = match lock {
        Lock::Shared => libc::F_OFD_SETLKW,
        Lock::Exclusive | Lock::None => libc::F_OFD_SETLK,
    };
    file_lock(file, command, lock, from, length).map(drop)
}

/// The range of a lock that forbids an exclusive one; `None`: there is none.
pub(crate) fn find_lock(file: BorrowedFd<'_>, from: u64, length: u64) -> Option<Range<u64>> {
    let found = file_lock(file, libc::F_OFD_GETLK, Lock::Exclusive, from, length).ok()?;
    let start = found.l_start as u64;
    (i32::from(found.l_type) != libc::F_UNLCK).then_some(start..start + found.l_len as u64)
}

fn file_lock(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    lock: Lock,
    from: u64,
    length: u64,
) -> Result<libc::flock, i32> {
    let kind = match lock {
        Lock::Exclusive => libc::F_WRLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::None => libc::F_UNLCK,
    };
    let mut range = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: from as i64,
        l_len: length as i64,
        l_pid: 0,
    };
    // SAFETY: the kernel reads and writes the one value.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), command, &raw mut range) };
    match done {
        0 => Ok(range),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// The error of a failed transfer for the manager. ENOMEM on a write: the file is in memory (or
/// cached there), and a limit was reached.
pub(crate) fn io_error(direction: Direction, errno: i32) -> IoError {
    match (direction, errno) {
        (Direction::Write, libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => IoError::Full,
        (_, errno) => IoError::Failed(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_reads_as_zeros_and_an_absurd_one_is_refused() {
        let mapping = Mapping::new(1 << 20).unwrap();
        // SAFETY: both within the mapping.
        unsafe { mapping.at(4096).write(7) };
        // SAFETY: as above.
        let bytes = unsafe { [mapping.at(4096).read(), mapping.at(4097).read()] };
        assert_eq!(bytes, [7, 0]);
        let absurd = Mapping::new(1 << 60).unwrap_err();
        assert_eq!(absurd, libc::ENOMEM);
    }
}
