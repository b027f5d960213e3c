//! A descriptor used by two processes that share memory: the helper, which opened it, and the
//! program, whose copy has another number.

use highwater_os::{helper, sys};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// A descriptor, and the number of the other process's copy.
pub(crate) struct Descriptor {
    own: OwnedFd,
    /// Whether the helper opened it, if there is one.
    is_helpers: bool,
    /// The number of the other process's copy; negative: there is none.
    copy: AtomicI32,
    /// Device and inode.
    identity: (u64, u64),
}

impl Descriptor {
    /// A descriptor of this process, without a copy in the other.
    pub(crate) fn new(own: OwnedFd) -> Descriptor {
        let identity = helper::identity_of(own.as_fd()).unwrap_or_default();
        Descriptor { own, is_helpers: helper::is_inside(), copy: AtomicI32::new(-1), identity }
    }

    pub(crate) fn into_owned(self) -> OwnedFd {
        self.own
    }

    /// Reads from the file at an offset; returns the number of bytes, 0 on error. The program may
    /// close its copy without the C library. The number may then become another file's, but never
    /// this file's again: so the copy's identity is checked after the read.
    pub(crate) fn read_at(&self, to: &mut [u8], offset: u64) -> usize {
        let Ok(file) = self.here() else { return 0 };
        let got = sys::read_at(file, to, offset);
        if !self.is_own_here() && helper::identity_of(file) != Some(self.identity) {
            return 0;
        }
        got
    }

    /// Whether this thread belongs to the process that opened the descriptor.
    fn is_own_here(&self) -> bool {
        self.is_helpers == helper::is_inside()
    }

    /// The number in the process that opened it.
    pub(crate) fn own(&self) -> RawFd {
        self.own.as_raw_fd()
    }

    /// Sets the number of the other process's copy. It must stay open there.
    pub(crate) fn set_copy(&self, copy: RawFd) {
        self.copy.store(copy, Relaxed);
    }

    /// The descriptor in the process of this thread.
    ///
    /// # Errors
    /// EBADF: that process has none.
    pub(crate) fn here(&self) -> Result<BorrowedFd<'_>, Errno> {
        let number = if self.is_own_here() { self.own() } else { self.copy.load(Relaxed) };
        if number < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: `own` is open as long as this lives, and so is a copy, as `set_copy` requires.
        Ok(unsafe { BorrowedFd::borrow_raw(number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn each_process_uses_its_own_number() {
        let open = || OwnedFd::from(File::open("/dev/null").expect("a file"));
        let mut descriptor = Descriptor::new(open());
        let number = descriptor.own();
        assert_eq!(descriptor.here().map(|fd| fd.as_raw_fd()), Ok(number));
        // As if the helper had opened it: this thread is not the helper's.
        descriptor.is_helpers = true;
        assert_eq!(descriptor.here().map(|fd| fd.as_raw_fd()), Err(Errno::BADF));
        let copy = open();
        descriptor.set_copy(copy.as_raw_fd());
        assert_eq!(descriptor.here().map(|fd| fd.as_raw_fd()), Ok(copy.as_raw_fd()));
        // If another file gets the number, it is not read.
        let other = OwnedFd::from(File::open("/dev/zero").expect("a file"));
        descriptor.set_copy(other.as_raw_fd());
        assert_eq!(descriptor.read_at(&mut [0; 8], 0), 0);
        let zeros = Descriptor::new(other);
        assert_eq!(zeros.read_at(&mut [1; 8], 0), 8);
    }
}
