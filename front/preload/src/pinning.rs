//! Functions of the C library after which a program may have pages pinned for I/O (pins.rs).
//!
//! ```text
//! open, ioctl, ... --- look: do the arguments say so? --> pins::expect
//!      \-------------- all arguments ------------------> the next function of that name
//! ```
//! - A descriptor with O_DIRECT: open and its relatives, fcntl.
//! - Buffers that are registered with an io_uring, or rings in the program's memory: the system
//!   calls, and liburing's functions, which make system calls of their own. Without them a ring
//!   copies, as read and write do.
//! - ioctl of a kind whose drivers pin memory: RDMA, VFIO, GPUs, cameras, disks. The descriptor of
//!   such a device may have been received from another process; it pins nothing before an ioctl.
//! - A socket of a family whose buffers are pinned.
//! - All of these through `syscall`.
//!
//! The functions may run in signal handlers, in children of vfork, and with any arguments: until
//! pins are expected they neither allocate nor lock, except for system calls that change mappings,
//! and the only memory of the program that they read is a `struct open_how` and a `struct
//! io_uring_params`. They continue by a jump: the next function returns to the caller, and a thread
//! that is cancelled there unwinds no frame of this library.

use crate::by_number;
use crate::gate;
use crate::next::{Next, looks};
use crate::pins::expect;
use libc::{c_int, c_long, c_ulong};
use std::mem::offset_of;

/// An argument that is not looked at.
type Any = usize;

/// syscall(2): all of the above by number; calls that change mappings (by_number.rs), and those
/// that the gate makes (gate/wrappers.rs).
pub(crate) mod system_call {
    use super::*;

    pub(super) static NEXT: Next = Next::new(b"syscall\0");

    extern "C" fn look(
        number: c_long,
        first: usize,
        second: usize,
        third: usize,
        fourth: usize,
    ) -> usize {
        // SAFETY: the arguments of a system call, which points to memory that it names.
        if unsafe { may_pin(number, [first, second, third, fourth]) } {
            expect();
        }
        by_number::function_for(number)
            .or_else(|| gate::function_for(number, [first, second, third]))
            .unwrap_or_else(|| NEXT.get())
    }

    looks!(syscall, look);
}

/// ioctl(2), and requests that the gate makes.
pub(crate) mod control {
    use super::*;

    pub(super) static NEXT: Next = Next::new(b"ioctl\0");

    extern "C" fn look(_: Any, request: c_ulong) -> usize {
        if is_of_pinning_driver(request) {
            expect();
        }
        gate::function_for_request(request).unwrap_or_else(|| NEXT.get())
    }

    looks!(ioctl, look);
}

/// Defines functions, each with a condition on its first arguments under which it may lead to pins.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) $may:block)*) => {
        /// Looks the next functions up when the library is loaded: a later call may be in a signal
        /// handler or in a child of vfork.
        pub(crate) fn learn() {
            $($name::NEXT.learn();)*
            system_call::NEXT.learn();
            control::NEXT.learn();
            // Functions that no library has are no error of the program.
            // SAFETY: the thread's own.
            unsafe { libc::dlerror() };
        }

        $(mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            extern "C" fn look($($argument: $kind),*) -> usize {
                if $may {
                    expect();
                }
                NEXT.get()
            }

            looks!($name, look);
        })*
    };
}

functions! {
    open(_path: Any, flags: c_int) { is_direct(flags) }
    open64(_path: Any, flags: c_int) { is_direct(flags) }
    __open_2(_path: Any, flags: c_int) { is_direct(flags) }
    __open64_2(_path: Any, flags: c_int) { is_direct(flags) }
    openat(_directory: Any, _path: Any, flags: c_int) { is_direct(flags) }
    openat64(_directory: Any, _path: Any, flags: c_int) { is_direct(flags) }
    __openat_2(_directory: Any, _path: Any, flags: c_int) { is_direct(flags) }
    __openat64_2(_directory: Any, _path: Any, flags: c_int) { is_direct(flags) }
    openat2(_directory: Any, _path: Any, how: *const libc::open_how, len: usize) {
        // SAFETY: the caller's structure, of this length.
        unsafe { is_direct_how(how, len) }
    }
    open_by_handle_at(_mount: Any, _handle: Any, flags: c_int) { is_direct(flags) }
    mkostemp(_template: Any, flags: c_int) { is_direct(flags) }
    mkostemp64(_template: Any, flags: c_int) { is_direct(flags) }
    mkostemps(_template: Any, _suffix: Any, flags: c_int) { is_direct(flags) }
    mkostemps64(_template: Any, _suffix: Any, flags: c_int) { is_direct(flags) }
    fcntl(_file: Any, command: c_int, flags: c_int) { sets_direct(command, flags) }
    fcntl64(_file: Any, command: c_int, flags: c_int) { sets_direct(command, flags) }
    socket(family: c_int) { has_pinned_buffers(family) }
    io_uring_setup(_entries: Any, parameters: *const u32) {
        // SAFETY: the caller's structure.
        unsafe { has_own_rings(parameters) }
    }
    io_uring_queue_init_params(_entries: Any, _ring: Any, parameters: *const u32) {
        // SAFETY: the caller's structure.
        unsafe { has_own_rings(parameters) }
    }
    io_uring_queue_init_mem() { true }
    io_uring_register(_ring: Any, operation: u32) { registers_memory(operation) }
    io_uring_register_buffers() { true }
    io_uring_register_buffers_tags() { true }
    io_uring_register_buffers_update_tag() { true }
    io_uring_register_buf_ring() { true }
    io_uring_register_ifq() { true }
    io_uring_register_region() { true }
    io_uring_register_wait_reg() { true }
}

fn is_direct(flags: c_int) -> bool {
    flags & libc::O_DIRECT != 0
}

/// # Safety
/// `how` is null, or points to a structure of `len` bytes.
unsafe fn is_direct_how(how: *const libc::open_how, len: usize) -> bool {
    if how.is_null() || len < size_of::<libc::open_how>() {
        return false;
    }
    // SAFETY: as the caller says.
    let flags =
        unsafe { how.byte_add(offset_of!(libc::open_how, flags)).cast::<u64>().read_unaligned() };
    is_direct(flags as c_int)
}

/// Whether an io_uring's queues are in the program's memory, which the kernel then pins.
///
/// # Safety
/// `parameters` is null or a `struct io_uring_params`.
unsafe fn has_own_rings(parameters: *const u32) -> bool {
    const FLAGS_INDEX: usize = 2;
    const SETUP_NO_MMAP: u32 = 1 << 14;
    // SAFETY: as the caller says: the third word has the flags.
    !parameters.is_null()
        && unsafe { parameters.add(FLAGS_INDEX).read_unaligned() } & SETUP_NO_MMAP != 0
}

/// Whether an operation of io_uring_register(2) may pin memory, by its number; unknown later
/// operations may.
fn registers_memory(operation: u32) -> bool {
    const USE_REGISTERED_RING: u32 = 1 << 31;
    const BUFFERS: u32 = 0;
    const BUFFERS2: u32 = 15;
    const BUFFERS_UPDATE: u32 = 16;
    const BUFFER_RING: u32 = 22;
    const CLONE_BUFFERS: u32 = 30;
    const RECEIVE_QUEUE: u32 = 32;
    const MEMORY_REGION: u32 = 34;
    const LAST_KNOWN: u32 = 35;
    match operation & !USE_REGISTERED_RING {
        BUFFERS | BUFFERS2 | BUFFERS_UPDATE | BUFFER_RING => true,
        CLONE_BUFFERS | RECEIVE_QUEUE | MEMORY_REGION => true,
        other => other > LAST_KNOWN,
    }
}

fn sets_direct(command: c_int, flags: c_int) -> bool {
    command == libc::F_SETFL && is_direct(flags)
}

fn has_pinned_buffers(family: c_int) -> bool {
    matches!(family, libc::AF_ALG | libc::AF_XDP)
}

/// Whether an ioctl is of a driver that lets devices write to a program's memory, by the letter
/// that the kernel's list has for it (Documentation/userspace-api/ioctl/ioctl-number.rst). Letters
/// of old drivers without structures, such as those of consoles, are used twice.
fn is_of_pinning_driver(request: c_ulong) -> bool {
    const RDMA: u8 = 0x1b;
    const VHOST: u8 = 0xaf;
    const FPGA: u8 = 0xb6;
    const TEE: u8 = 0xa4;
    const SG_IO: u32 = 0x2285;
    let request = request as u32;
    let has_structure = request >> 16 & 0x3fff != 0;
    match (request >> 8) as u8 {
        RDMA | VHOST | FPGA | TEE => true,
        // VFIO and iommufd.
        b';' => true,
        // DRM and accelerators; NVIDIA; AMD's KFD; video capture; NVMe.
        b'd' | b'F' | b'K' | b'V' | b'N' => has_structure,
        _ => request == SG_IO,
    }
}

/// # Safety
/// The arguments are those of a system call.
unsafe fn may_pin(number: c_long, arguments: [usize; 4]) -> bool {
    let [first, second, third, fourth] = arguments;
    match number {
        // SAFETY: as the caller says.
        libc::SYS_io_uring_setup => unsafe { has_own_rings(second as _) },
        libc::SYS_io_uring_register => registers_memory(second as u32),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => is_direct(second as c_int),
        libc::SYS_openat | libc::SYS_open_by_handle_at => is_direct(third as c_int),
        // SAFETY: as the caller says.
        libc::SYS_openat2 => unsafe { is_direct_how(third as _, fourth) },
        libc::SYS_fcntl => sets_direct(second as c_int, third as c_int),
        libc::SYS_ioctl => is_of_pinning_driver(second as c_ulong),
        libc::SYS_socket => has_pinned_buffers(first as c_int),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctls_of_pinning_drivers_are_recognised() {
        for (request, expected, name) in [
            (0xc018_1b01, true, "RDMA_VERBS_IOCTL"),
            (0x3b71, true, "VFIO_IOMMU_MAP_DMA"),
            (0xc018_6473, true, "DRM_IOCTL_I915_GEM_USERPTR"),
            (0xffff_ffff_c020_464d, true, "NVIDIA, sign extended"),
            (0xc028_4b16, true, "AMDKFD_IOC_ALLOC_MEMORY_OF_GPU"),
            (0xc058_560f, true, "VIDIOC_QBUF"),
            (0xc048_4e43, true, "NVME_IOCTL_IO_CMD"),
            (0x2285, true, "SG_IO"),
            (0x4b44, false, "KDGKBMODE"),
            (0x5603, false, "VT_GETSTATE"),
            (0x4600, false, "FBIOGET_VSCREENINFO"),
            (0x5413, false, "TIOCGWINSZ"),
            (0x541b, false, "FIONREAD"),
            (0x8008_6603, false, "FS_IOC_GETFLAGS"),
            (0xae80, false, "KVM_RUN"),
        ] {
            assert_eq!(is_of_pinning_driver(request), expected, "{name}");
        }
    }

    #[test]
    fn system_calls_are_looked_at_by_their_arguments() {
        let direct = libc::O_DIRECT as usize;
        let how = |flags| [flags, 0, 0u64];
        let (plain, wanted) = (how(libc::O_RDWR as u64), how(libc::O_DIRECT as u64));
        let [plain, wanted] = [&plain, &wanted].map(|how| how.as_ptr() as usize);
        let (shared_rings, own_rings) = ([0u32; 30], [0, 0, 1u32 << 14, 0]);
        let [shared_rings, own_rings] =
            [&shared_rings[..], &own_rings].map(|parameters| parameters.as_ptr() as usize);
        for (number, arguments, expected) in [
            (libc::SYS_openat, [0, 0, direct, 0], true),
            (libc::SYS_openat, [direct, direct, 0, direct], false),
            (libc::SYS_openat2, [0, 0, wanted, 24], true),
            (libc::SYS_openat2, [0, 0, plain, 24], false),
            (libc::SYS_openat2, [0, 0, wanted, 8], false),
            (libc::SYS_openat2, [0, 0, 0, 24], false),
            (libc::SYS_fcntl, [0, libc::F_SETFL as usize, direct, 0], true),
            (libc::SYS_fcntl, [0, libc::F_SETFD as usize, direct, 0], false),
            (libc::SYS_ioctl, [0, 0x3b71, 0, 0], true),
            (libc::SYS_socket, [libc::AF_XDP as usize, 0, 0, 0], true),
            (libc::SYS_socket, [libc::AF_INET as usize, 0, 0, 0], false),
            (libc::SYS_io_uring_setup, [1, 0, 0, 0], false),
            (libc::SYS_io_uring_setup, [1, shared_rings, 0, 0], false),
            (libc::SYS_io_uring_setup, [1, own_rings, 0, 0], true),
            (libc::SYS_io_uring_register, [0, 0, 0, 0], true),
            (libc::SYS_io_uring_register, [0, 0x8000_0016, 0, 0], true),
            (libc::SYS_io_uring_register, [0, 2, 0, 0], false),
            (libc::SYS_io_uring_register, [0, 99, 0, 0], true),
            (libc::SYS_read, [direct; 4], false),
        ] {
            // SAFETY: structures of their lengths, or null.
            assert_eq!(unsafe { may_pin(number, arguments) }, expected, "{number} {arguments:?}");
        }
    }
}
