//! What this kernel lets us do with userfaultfd.
//!
//! ```text
//! /dev/userfaultfd ---\
//!                      descriptor --- UFFDIO_API ---> features
//! userfaultfd(2) -----/  \-- refused: for user-mode faults alone? -> Denied
//! ```

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The `userfaultfd.h` of Linux, as far as it is asked here.
const USERFAULTFD_IOC_NEW: u64 = 0xAA00;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: i32 = 1;
pub(crate) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub(crate) const FEATURE_MOVE: u64 = 1 << 16;

/// By which door we got a descriptor that serves kernel-mode faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// /dev/userfaultfd, by its permissions.
    Device,
    /// The system call: root, or vm.unprivileged_userfaultfd=1.
    SystemCall,
}

/// A userfaultfd that serves kernel-mode faults too is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Userfaultfd {
    pub(crate) way: Way,
    features: u64,
}

impl Userfaultfd {
    /// UFFDIO_MOVE: pages change hands without a copy (Linux 6.8).
    pub(crate) fn can_move(&self) -> bool {
        self.features & FEATURE_MOVE != 0
    }

    /// Write protection of anonymous memory (Linux 5.7), which the COPY fall-back needs.
    pub(crate) fn can_write_protect(&self) -> bool {
        self.features & FEATURE_PAGEFAULT_FLAG_WP != 0
    }

    #[cfg(test)]
    pub(crate) fn with_features(features: u64) -> Userfaultfd {
        Userfaultfd { way: Way::Device, features }
    }
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The kernel was built without it.
    NotInKernel,
    /// Only user-mode faults may be served by this user.
    UserModeOnly,
    /// Not even those: a seccomp filter, as that of containers.
    Filtered,
    /// Another error, by number.
    Error(i32),
}

/// Asks the kernel, by the device first: it may be granted where the system call is not.
pub(crate) fn userfaultfd() -> Result<Userfaultfd, Denied> {
    let (way, fd) = match from_device() {
        Ok(fd) => (Way::Device, fd),
        Err(_) => (Way::SystemCall, from_system_call(0).map_err(|error| denied(&error))?),
    };
    let features = features(&fd).map_err(|error| Denied::Error(number(&error)))?;
    Ok(Userfaultfd { way, features })
}

/// Tells why the system call was refused, with one more call.
fn denied(error: &io::Error) -> Denied {
    match number(error) {
        libc::ENOSYS => Denied::NotInKernel,
        libc::EPERM => match from_system_call(UFFD_USER_MODE_ONLY).map_err(|e| number(&e)) {
            // EINVAL: kernels before 5.11 know no such flag, and refuse for want of privilege.
            Ok(_) | Err(libc::EINVAL) => Denied::UserModeOnly,
            Err(_) => Denied::Filtered,
        },
        number => Denied::Error(number),
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn from_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty())?;
    // SAFETY: the request takes its flags by value and returns a descriptor.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, libc::O_CLOEXEC) })
}

fn from_system_call(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes its flags by value and returns a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) };
    owned(fd as RawFd)
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The features this kernel has: asking for none returns all.
fn features(fd: &OwnedFd) -> io::Result<u64> {
    #[repr(C)]
    struct UffdioApi {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    let mut request = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    // SAFETY: `request` has the layout of struct uffdio_api and outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &mut request) } {
        0 => Ok(request.features),
        _ => Err(io::Error::last_os_error()),
    }
}
