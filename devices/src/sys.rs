//! System calls that must not go through the C library.
//!
//! The library that serves a program replaces mmap, munmap and madvise: called from here by name
//! they would come back to the manager. preadv and pwritev are raw for another reason: in the C
//! library they are points at which a thread can be cancelled, in the middle of a fault.

use highwater_platform::{Direction, IoError};
use libc::{c_int, c_long, iovec};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

// preadv takes its offset in one register only there.
const _: () = assert!(usize::BITS == 64, "written for 64-bit systems");

/// Anonymous private memory, backed as it is touched, in pages of the base size.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, valid from any thread until dropped.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives the address only; its users synchronise accesses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeros.
    ///
    /// # Errors
    /// The system's error number: ENOMEM when overcommit or a limit forbids it.
    pub(crate) fn new(len: usize) -> Result<Mapping, i32> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (protection, flags) = (c_long::from(protection), c_long::from(flags));
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = check(unsafe {
            libc::syscall(libc::SYS_mmap, 0usize, len, protection, flags, c_long::from(-1), 0usize)
        })?;
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut(base as usize));
        let mapping = Mapping { base: base.ok_or(libc::ENOMEM)?, len };
        // Kernels without huge pages refuse the advice and need none.
        let _ = mapping.advise(0, len, libc::MADV_NOHUGEPAGE);
        // What is swapped out is not for core files, and would be all of a device there.
        let _ = mapping.advise(0, len, libc::MADV_DONTDUMP);
        Ok(mapping)
    }

    /// The address of the byte at `offset`, which lies within.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "within the mapping");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gives memory to whole pages that may have none yet. Where touching them could only end the
    /// process, this is refused. Kernels before 5.14 do nothing: a touch will fault the pages in.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), i32> {
        loop {
            match self.advise(offset, len, libc::MADV_POPULATE_WRITE) {
                Err(libc::EINTR | libc::EAGAIN) => std::thread::yield_now(),
                Ok(()) | Err(libc::EINVAL) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Gives the memory of whole pages back; they hold zeros then.
    ///
    /// # Safety
    /// Nobody uses the range meanwhile, or counts on its contents.
    pub(crate) unsafe fn give_back(&self, offset: usize, len: usize) {
        // On locked memory it is refused; it then stays, which does no harm.
        let _ = self.advise(offset, len, libc::MADV_DONTNEED);
    }

    /// madvise on `len` bytes from `offset`. Without `unsafe` only for advice that keeps contents.
    ///
    /// # Errors
    /// The system's error number.
    fn advise(&self, offset: usize, len: usize, advice: c_int) -> Result<(), i32> {
        assert!(len <= self.len - offset, "within the mapping");
        let (address, advice) = (self.at(offset), c_long::from(advice));
        // SAFETY: the range is ours, and the advice keeps its contents or the caller drops them.
        check(unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) }).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody has a reference to it any more.
        unsafe { libc::syscall(libc::SYS_munmap, self.base.as_ptr(), self.len) };
    }
}

/// One preadv or pwritev: the bytes moved.
///
/// # Errors
/// The system's error number.
///
/// # Safety
/// The vectors name memory that nobody else touches meanwhile.
pub(crate) unsafe fn transfer(
    direction: Direction,
    file: BorrowedFd<'_>,
    vectors: &[iovec],
    offset: u64,
) -> Result<usize, i32> {
    let number = match direction {
        Direction::Read => libc::SYS_preadv,
        Direction::Write => libc::SYS_pwritev,
    };
    let (file, high) = (c_long::from(file.as_raw_fd()), 0usize);
    // SAFETY: the caller vouches for the memory; the descriptor is borrowed, so open.
    let moved = check(unsafe {
        libc::syscall(number, file, vectors.as_ptr(), vectors.len(), offset, high)
    })?;
    Ok(moved as usize)
}

/// Takes blocks for a part of a file that lies within its length (fallocate).
///
/// # Errors
/// The system's error number: there are none, or the file system does not know how.
pub(crate) fn take_room(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), i32> {
    let (file, mode) = (c_long::from(file.as_raw_fd()), c_long::from(0));
    // SAFETY: numbers only; the descriptor is borrowed, so open.
    check(unsafe { libc::syscall(libc::SYS_fallocate, file, mode, offset, len) }).map(drop)
}

/// What a failed transfer means to the manager. ENOMEM on a write: the file lives in memory (or is
/// cached there) and a limit was reached.
pub(crate) fn io_error(direction: Direction, errno: i32) -> IoError {
    match (direction, errno) {
        (Direction::Write, libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => IoError::Full,
        (_, errno) => IoError::Failed(errno),
    }
}

/// The error number of the system call that just failed.
pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn check(returned: c_long) -> Result<c_long, i32> {
    if returned == -1 { Err(last_errno()) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_reads_zero_and_leaves_nothing() {
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
