//! The userfaultfd interface of the kernel: structures and ioctls of <linux/userfaultfd.h>.
//!
//! Kernel documentation: admin-guide/mm/userfaultfd. MOVE needs Linux 6.8, POISON 6.6, write
//! protection 5.7.

use crate::descriptor::Descriptor;
use rustix::io::Errno;
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How this kernel lets pages be taken out of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// UFFDIO_MOVE (Linux 6.8): pages that are pinned for I/O can be told apart from others.
    /// Scattered pages are dropped together, if the kernel can (6.13).
    Move,
    /// Neither: Linux 5.7 to 6.7.
    Copy,
}

/// Features of UFFDIO_API.
pub mod feature {
    /// Faults of write-protected pages are reported.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// A missing page raises SIGBUS in the thread instead of a message.
    pub const SIGBUS: u64 = 1 << 7;
    /// UFFDIO_POISON exists.
    pub const POISON: u64 = 1 << 14;
    /// UFFDIO_MOVE exists.
    pub const MOVE: u64 = 1 << 16;
}

/// A flag of userfaultfd(2).
const USER_MODE_ONLY: u32 = 1;

const API: u64 = 0xaa;
const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WP: u64 = 1 << 1;
const COPY_DONTWAKE: u64 = 1 << 0;
const COPY_WP: u64 = 1 << 1;
const WRITEPROTECT_WP: u64 = 1 << 0;
const WRITEPROTECT_DONTWAKE: u64 = 1 << 1;
const MOVE_DONTWAKE: u64 = 1 << 0;

const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1 << 0;
const FLAG_WP: u64 = 1 << 1;

#[repr(C)]
struct ApiArgs {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArgs {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArgs {
    range: RangeArgs,
    mode: u64,
    ioctls: u64,
}

/// COPY and MOVE share a layout: the last word is the number of bytes done, or minus an error.
#[repr(C)]
struct TransferArgs {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct ProtectArgs {
    range: RangeArgs,
    mode: u64,
}

/// The last word is the number of bytes done, or minus an error.
#[repr(C)]
struct PoisonArgs {
    range: RangeArgs,
    mode: u64,
    done: i64,
}

/// `_IOWR(0xaa, number, size)`, or `_IOR` for WAKE.
const fn request(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xaa << 8 | number
}

const READ: u64 = 2;
const READ_WRITE: u64 = 3;
const IO_API: u64 = request(READ_WRITE, 0x3f, size_of::<ApiArgs>());
const IO_REGISTER: u64 = request(READ_WRITE, 0x00, size_of::<RegisterArgs>());
const IO_WAKE: u64 = request(READ, 0x02, size_of::<RangeArgs>());
const IO_COPY: u64 = request(READ_WRITE, 0x03, size_of::<TransferArgs>());
const IO_MOVE: u64 = request(READ_WRITE, 0x05, size_of::<TransferArgs>());
const IO_WRITEPROTECT: u64 = request(READ_WRITE, 0x06, size_of::<ProtectArgs>());
const IO_POISON: u64 = request(READ_WRITE, 0x08, size_of::<PoisonArgs>());
/// `_IO(0xaa, 0)` on /dev/userfaultfd.
const IO_NEW: u64 = request(0, 0x00, 0);

/// A message in the kernel's layout: 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// The event of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// An address in the page.
        address: u64,
        /// Whether the access is a store.
        write: bool,
    },
    /// An event that no feature asked for.
    Other,
}

impl Message {
    /// The event.
    pub fn event(&self) -> Event {
        match self.event {
            EVENT_PAGEFAULT => Event::Fault {
                address: self.address,
                write: self.flags & (FLAG_WRITE | FLAG_WP) != 0,
            },
            _ => Event::Other,
        }
    }
}

/// The result of a transfer; an error comes with the bytes done before it.
pub type Partial = Result<(), (usize, i32)>;

/// System calls for pages, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// UFFDIO_COPY.
    pub copies: u64,
    /// UFFDIO_WRITEPROTECT that protects.
    pub protects: u64,
    /// UFFDIO_WRITEPROTECT that allows writes again.
    pub allows: u64,
    /// UFFDIO_MOVE.
    pub moves: u64,
    /// UFFDIO_WAKE.
    pub wakes: u64,
    /// process_madvise or madvise, to drop pages.
    pub drops: u64,
}

impl Calls {
    /// All together.
    pub fn total(&self) -> u64 {
        self.copies + self.protects + self.allows + self.moves + self.wakes + self.drops
    }

    /// System calls that make other CPUs flush their TLBs.
    pub fn flushing(&self) -> u64 {
        self.protects + self.moves + self.drops
    }

    pub(crate) fn add(&mut self, uffd: &Userfaultfd) {
        let counts = uffd.counts.each_ref().map(|count| count.load(Relaxed));
        let [copies, protects, allows, moves, wakes] = counts;
        self.copies += copies;
        self.allows += allows;
        self.protects += protects;
        self.moves += moves;
        self.wakes += wakes;
    }
}

/// A kind of counted call.
#[derive(Clone, Copy, Debug)]
enum Count {
    Copy,
    Protect,
    Allow,
    Move,
    Wake,
}

/// A userfaultfd whose features are negotiated.
pub struct Userfaultfd {
    fd: Descriptor,
    /// Indexed by [`Count`].
    counts: [AtomicU64; 5],
}

thread_local! {
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread made a call without a usable userfaultfd since this was last asked: the
/// program has closed its copy, or may not use it.
pub fn take_lost() -> bool {
    LOST.replace(false)
}

/// Whether the error says that a descriptor is not a userfaultfd, or must not be used as one.
fn is_lost(error: &io::Error) -> bool {
    let lost = [libc::EBADF, libc::ENOTTY, libc::EPERM, libc::EACCES, libc::ENOSYS];
    error.raw_os_error().is_some_and(|number| lost.contains(&number))
}

/// Whose faults a userfaultfd serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// The program's faults, and the kernel's faults in system calls. Needs privileges.
    All,
    /// The program's faults only. System calls that access a missing page fail with EFAULT (Linux
    /// 5.11).
    UserMode,
}

impl Faults {
    /// The flags of a new userfaultfd.
    fn flags(self) -> UserfaultfdFlags {
        match self {
            Faults::All => UserfaultfdFlags::CLOEXEC,
            Faults::UserMode => {
                UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY)
            }
        }
    }
}

/// Where userfaultfds come from: /dev/userfaultfd, kept open so that it still works when the
/// process has dropped its privileges, or the system call.
pub struct Source {
    device: Option<OwnedFd>,
    faults: Faults,
}

impl Source {
    /// For all faults, the device, or else the system call. Faults of user mode may be served
    /// without privileges: for them the device is used only if a filter, such as a container's,
    /// refuses the system call.
    pub fn find(faults: Faults) -> Source {
        let options = OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).to_owned();
        let device = || options.open("/dev/userfaultfd").ok().map(OwnedFd::from);
        let device = match faults {
            Faults::All => device(),
            Faults::UserMode if Source::open_call(faults).is_ok() => None,
            Faults::UserMode => device(),
        };
        Source { device, faults }
    }

    /// A source with a device that is open already.
    pub fn of(device: Option<OwnedFd>, faults: Faults) -> Source {
        Source { device, faults }
    }

    /// Whose faults are served.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// The device's descriptor.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.device.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// What this kernel can do for this process.
    ///
    /// # Errors
    /// As for [`Uffd::probe`](crate::uffd::Uffd::probe).
    pub fn probe(&self) -> io::Result<Mapping> {
        match self.open(feature::MOVE | feature::PAGEFAULT_FLAG_WP) {
            Ok(_) => Ok(Mapping::Move),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.open(feature::PAGEFAULT_FLAG_WP).map(|_| Mapping::Copy)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether this kernel has UFFDIO_POISON. It is older than UFFDIO_MOVE.
    pub(crate) fn can_poison(&self, mapping: Mapping) -> bool {
        mapping == Mapping::Move || self.open(feature::POISON).is_ok()
    }

    /// Opens a userfaultfd for faults in the memory of this process.
    ///
    /// # Errors
    /// EPERM: not permitted; ENOSYS: the kernel has no userfaultfd; EINVAL: it lacks a feature.
    pub fn open(&self, features: u64) -> io::Result<Userfaultfd> {
        let by_device = self.descriptor().map(|fd| Source::open_device(fd, self.faults));
        let fd = match by_device {
            Some(Ok(fd)) => fd,
            None | Some(Err(_)) => Source::open_call(self.faults)?,
        };
        let uffd = Userfaultfd::of(fd);
        let mut args = ApiArgs { api: API, features, ioctls: 0 };
        uffd.call(IO_API, &mut args)?;
        Ok(uffd)
    }

    fn open_device(device: RawFd, faults: Faults) -> io::Result<OwnedFd> {
        // SAFETY: the request takes flags by value and returns a new descriptor.
        match unsafe { libc::ioctl(device, IO_NEW as _, faults.flags().bits()) } {
            // SAFETY: just made, and not owned by anything else.
            made @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn open_call(faults: Faults) -> io::Result<OwnedFd> {
        // SAFETY: a userfaultfd has no effect before memory is registered with it.
        Ok(unsafe { userfaultfd(faults.flags()) }?)
    }
}

impl Userfaultfd {
    /// A userfaultfd that is open, in the process that opened or inherited it.
    pub(crate) fn of(fd: OwnedFd) -> Userfaultfd {
        Userfaultfd { fd: Descriptor::new(fd), counts: Default::default() }
    }

    pub(crate) fn into_owned(self) -> OwnedFd {
        self.fd.into_owned()
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.fd
    }

    fn call<T>(&self, request: u64, args: &mut T) -> io::Result<()> {
        let done = self.fd.here().map_err(io::Error::from).and_then(|fd| {
            // SAFETY: `args` is the structure of `request`, alive for the call. The callers below
            // vouch for the memory that it names.
            match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(args)) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
        if done.as_ref().is_err_and(is_lost) {
            LOST.set(true);
        }
        done
    }

    fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Relaxed);
    }

    /// Registers a range: the kernel reports its missing pages, and writes to protected ones.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn register(&self, address: u64, len: usize) -> io::Result<()> {
        let range = RangeArgs { start: address, len: len as u64 };
        let mode = REGISTER_MISSING | REGISTER_WP;
        self.call(IO_REGISTER, &mut RegisterArgs { range, mode, ioctls: 0 })
    }

    /// Wakes the threads that wait for pages of a range; they retry their accesses.
    pub fn wake(&self, address: u64, len: usize) {
        self.count(Count::Wake);
        // This fails only for ranges that are not registered any more: no thread waits there.
        let _ = self.call(IO_WAKE, &mut RangeArgs { start: address, len: len as u64 });
    }

    /// Waits for messages; returns how many were read.
    ///
    /// # Errors
    /// The descriptor was closed.
    pub fn read(&self, messages: &mut [Message]) -> io::Result<usize> {
        let (start, bytes) = (messages.as_mut_ptr().cast::<u8>(), size_of_val(messages));
        // SAFETY: the messages' own memory; any bytes make a valid Message.
        let buffer = unsafe { slice::from_raw_parts_mut(start, bytes) };
        loop {
            match rustix::io::read(self.fd.here()?, &mut *buffer) {
                Ok(got) => return Ok(got / size_of::<Message>()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Moves pages into holes without copying.
    ///
    /// # Errors
    /// Bytes done, and the error of the page after them.
    ///
    /// # Safety
    /// The caller controls the contents of both ranges.
    pub unsafe fn move_pages(&self, to: u64, from: u64, len: usize, wake: Wake) -> Partial {
        let mode = if wake == Wake::Now { 0 } else { MOVE_DONTWAKE };
        self.count(Count::Move);
        self.transfer(IO_MOVE, to, from, len, mode)
    }

    /// Copies pages into holes.
    ///
    /// # Errors
    /// Bytes done, and the error of the page after them.
    ///
    /// # Safety
    /// As for [`Userfaultfd::move_pages`]; `from` is readable.
    pub unsafe fn copy(
        &self,
        to: u64,
        from: u64,
        len: usize,
        access: Writes,
        wake: Wake,
    ) -> Partial {
        let protect = if access == Writes::Allowed { 0 } else { COPY_WP };
        let wait = if wake == Wake::Now { 0 } else { COPY_DONTWAKE };
        self.count(Count::Copy);
        self.transfer(IO_COPY, to, from, len, protect | wait)
    }

    fn transfer(&self, request: u64, to: u64, from: u64, len: usize, mode: u64) -> Partial {
        let mut done = 0;
        while done < len {
            let at = done as u64;
            let rest = (len - done) as u64;
            let mut args = TransferArgs { to: to + at, from: from + at, len: rest, mode, done: 0 };
            match self.call(request, &mut args).map_err(|error| error.raw_os_error()) {
                Ok(()) => done = len,
                Err(Some(libc::EAGAIN)) if args.done > 0 => done += args.done as usize,
                // The page is locked for a moment, or the address space is changing.
                Err(Some(libc::EAGAIN)) => std::hint::spin_loop(),
                Err(error) => return Err((done, error.unwrap_or(libc::EIO))),
            }
        }
        Ok(())
    }

    /// Poisons a hole: accesses to it raise SIGBUS (BUS_MCEERR_AR), and system calls fail with
    /// EFAULT, until it is dropped or mapped over. Wakes threads that wait for it.
    ///
    /// # Errors
    /// EEXIST: it is no hole, or poisoned; ENOENT: the range is not registered.
    pub fn poison(&self, address: u64, len: usize) -> io::Result<()> {
        loop {
            let range = RangeArgs { start: address, len: len as u64 };
            match self.call(IO_POISON, &mut PoisonArgs { range, mode: 0, done: 0 }) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::hint::spin_loop(),
                result => return result,
            }
        }
    }

    /// Write-protects mapped pages; or makes them writable, and wakes threads that wait for that.
    ///
    /// # Errors
    /// The system's refusal: the range is not registered.
    pub fn protect(&self, address: u64, len: usize, access: Writes, wake: Wake) -> io::Result<()> {
        let protect = if access == Writes::Allowed { 0 } else { WRITEPROTECT_WP };
        self.count(if access == Writes::Allowed { Count::Allow } else { Count::Protect });
        // The kernel refuses DONTWAKE together with WP, which wakes no thread anyway.
        let wait = match (access, wake) {
            (Writes::Allowed, Wake::Later) => WRITEPROTECT_DONTWAKE,
            _ => 0,
        };
        loop {
            let range = RangeArgs { start: address, len: len as u64 };
            let mut args = ProtectArgs { range, mode: protect | wait };
            match self.call(IO_WRITEPROTECT, &mut args) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::hint::spin_loop(),
                result => return result,
            }
        }
    }
}

/// When threads that wait for the pages are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// By this call.
    Now,
    /// By a later call that the caller makes.
    Later,
}

/// What happens to a write to the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The write goes through.
    Allowed,
    /// The write is a fault, reported as a message.
    Reported,
}
