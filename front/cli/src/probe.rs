//! Which features of userfaultfd this kernel allows.
//!
//! ```text
//! for all faults         /dev/userfaultfd, or userfaultfd(2) --\
//!                                                               UFFDIO_API --> features
//! for those of user mode userfaultfd(2), or /dev/userfaultfd --/
//!                        refused --> Denied
//! ```

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The part of Linux's `userfaultfd.h` that is used here.
const USERFAULTFD_IOC_NEW: u64 = 0xAA00;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: i32 = 1;
/// `Seccomp` in /proc/PID/status.
const SECCOMP_MODE_FILTER: u32 = 2;
pub(crate) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub(crate) const FEATURE_MOVE: u64 = 1 << 16;

/// How a descriptor was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By /dev/userfaultfd, which its permissions allow.
    Device,
    /// By the system call.
    SystemCall,
}

/// Whose faults a descriptor serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    /// All faults, including those of the kernel: as root, with vm.unprivileged_userfaultfd=1, or
    /// by the device.
    All,
    /// Faults of user mode only (Linux 5.11).
    UserMode,
}

impl Faults {
    /// The flags of a new descriptor.
    fn flags(self) -> i32 {
        match self {
            Faults::All => libc::O_CLOEXEC,
            Faults::UserMode => libc::O_CLOEXEC | UFFD_USER_MODE_ONLY,
        }
    }
}

/// A userfaultfd is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Userfaultfd {
    pub(crate) way: Way,
    pub(crate) faults: Faults,
    features: u64,
}

impl Userfaultfd {
    /// UFFDIO_MOVE: pages are moved without a copy (Linux 6.8).
    pub(crate) fn can_move(&self) -> bool {
        self.features & FEATURE_MOVE != 0
    }

    /// Write protection of anonymous memory (Linux 5.7), which COPY needs.
    pub(crate) fn can_write_protect(&self) -> bool {
        self.features & FEATURE_PAGEFAULT_FLAG_WP != 0
    }

    #[cfg(test)]
    pub(crate) fn with_features(features: u64) -> Userfaultfd {
        Userfaultfd { way: Way::Device, faults: Faults::All, features }
    }

    /// Reads the features of a descriptor.
    fn of(way: Way, faults: Faults, fd: &OwnedFd) -> Result<Userfaultfd, Denied> {
        let features = features(fd).map_err(|error| Denied::Error(number(&error)))?;
        Ok(Userfaultfd { way, faults, features })
    }
}

/// Why no userfaultfd is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The kernel was built without it.
    NotInKernel,
    /// This user may only serve user-mode faults.
    UserModeOnly,
    /// This user may serve no faults, or only those of user mode, which are not enough before Linux
    /// 5.14.
    Unprivileged,
    /// Faults of user mode alone are not enough for copies: the kernel is older than 5.14.
    UserModeUnknown,
    /// Refused altogether, for instance by a container's seccomp filter.
    Filtered,
    /// Another error number.
    Error(i32),
}

/// A userfaultfd for faults of user mode. It is of use only where system calls can get copies. The
/// kernel permits the system call to every user; if a filter refuses it, the device may still be
/// allowed.
pub(crate) fn userfaultfd_of_user_mode() -> Result<Userfaultfd, Denied> {
    if !can_populate() {
        return Err(Denied::UserModeUnknown);
    }
    let faults = Faults::UserMode;
    let refused = match from_system_call(faults) {
        Ok(fd) => return Userfaultfd::of(Way::SystemCall, faults, &fd),
        Err(error) => error,
    };
    match from_device(faults) {
        Ok(fd) => Userfaultfd::of(Way::Device, faults, &fd),
        Err(_) => Err(match number(&refused) {
            libc::ENOSYS => missing(),
            libc::EPERM => Denied::Filtered,
            // Kernels before 5.11 do not know the flag.
            libc::EINVAL => Denied::UserModeUnknown,
            number => Denied::Error(number),
        }),
    }
}

/// Whether the kernel has MADV_POPULATE_READ (Linux 5.14). It shows, before a copy is made, whether
/// the memory may be accessed.
fn can_populate() -> bool {
    // SAFETY: the advice is checked, and concerns no page.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_READ) == 0 }
}

/// Tries the device first: it may be allowed where the system call is not.
pub(crate) fn userfaultfd() -> Result<Userfaultfd, Denied> {
    let faults = Faults::All;
    match from_device(faults) {
        Ok(fd) => Userfaultfd::of(Way::Device, faults, &fd),
        Err(_) => {
            let fd = from_system_call(faults).map_err(|error| denied(&error))?;
            Userfaultfd::of(Way::SystemCall, faults, &fd)
        }
    }
}

/// Finds out by another call why the system call was refused.
fn denied(error: &io::Error) -> Denied {
    match number(error) {
        libc::ENOSYS => missing(),
        libc::EPERM => match from_system_call(Faults::UserMode) {
            Ok(_) if can_populate() => Denied::UserModeOnly,
            // Kernels before 5.11 do not know the flag, and refuse for lack of privileges first.
            _ if !can_populate() && !is_filtered() => Denied::Unprivileged,
            _ => Denied::Filtered,
        },
        number => Denied::Error(number),
    }
}

/// Why the system call failed with ENOSYS: the kernel lacks it, or a filter returns this error.
fn missing() -> Denied {
    if is_filtered() { Denied::Filtered } else { Denied::NotInKernel }
}

/// Whether a seccomp filter checks the system calls of this process.
fn is_filtered() -> bool {
    let status = procfs::process::Process::myself().and_then(|own| own.status());
    status.is_ok_and(|status| status.seccomp == Some(SECCOMP_MODE_FILTER))
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn from_device(faults: Faults) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty())?;
    // SAFETY: the request takes its flags by value and returns a descriptor.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, faults.flags()) })
}

fn from_system_call(faults: Faults) -> io::Result<OwnedFd> {
    // SAFETY: the call takes its flags by value and returns a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, faults.flags()) };
    owned(fd as RawFd)
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The features of this kernel: a request for none returns all.
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
