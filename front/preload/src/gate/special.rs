//! Calls that the table cannot describe: the meaning of an argument depends on another one.
//!
//! Calls whose structures contain pointers are in vectors.rs, exec.rs and filters.rs.

use super::access::{self, Access, accessible};
use super::copied::{Arguments, in_place as touched, kind_of, once};
use super::mask::Mask;
use super::range::is_paged;
use super::table::Argument::{self, In, InOut, Int, Number, Out, String};
use super::table::Len::{Bits, Bytes, Of, Result, Window};
use super::{filters, state, vectors};

const FAULT: isize = -(libc::EFAULT as isize);

/// Makes a call; `None`: nothing is known about its pointers.
pub(super) fn make(number: usize, arguments: Arguments) -> Option<isize> {
    if let Some(result) = vectors::make(number, arguments) {
        return Some(result);
    }
    let kinds = match number as libc::c_long {
        libc::SYS_fcntl => fcntl(arguments[1] as i32),
        libc::SYS_ioctl => return ioctl(number, arguments),
        libc::SYS_madvise => {
            let [address, len, advice, ..] = arguments;
            return Some(state::advise(address, len, advice as i32));
        }
        libc::SYS_seccomp => return Some(filters::make(arguments)),
        libc::SYS_setsockopt => return Some(filters::set_option(arguments)),
        libc::SYS_getsockopt => return Some(filters::option(arguments)),
        libc::SYS_prctl if filters::is_set_by(arguments[0]) => {
            return Some(filters::by_prctl(arguments));
        }
        libc::SYS_prctl => prctl(arguments[0] as i32)?,
        libc::SYS_arch_prctl => arch_prctl(arguments[0]),
        libc::SYS_syslog => kernel_log(arguments[0] as i32),
        libc::SYS_shmctl | libc::SYS_msgctl => ipc(arguments[1] as i32),
        libc::SYS_semctl => return semctl(arguments),
        libc::SYS_ptrace => return trace(arguments),
        libc::SYS_pselect6 => return Some(pselect6(arguments)),
        libc::SYS_rt_sigsuspend => return Some(suspend(arguments)),
        // The C library falls back to clone, whose arguments are in registers.
        libc::SYS_clone3 => return Some(-(libc::ENOSYS as isize)),
        libc::SYS_mq_notify => [Number, In(Bytes(64)), NONE, NONE, NONE, NONE],
        _ => return None,
    };
    Some(once(number, &kinds, arguments))
}

/// Whether an operation of futex may wait.
pub(super) fn may_wait(operation: usize) -> bool {
    const WAKE: usize = libc::FUTEX_WAKE as usize;
    const REQUEUE: usize = libc::FUTEX_REQUEUE as usize;
    const CMP_REQUEUE: usize = libc::FUTEX_CMP_REQUEUE as usize;
    const WAKE_OP: usize = libc::FUTEX_WAKE_OP as usize;
    let operation = operation & libc::FUTEX_CMD_MASK as usize;
    !matches!(operation, WAKE | REQUEUE | CMP_REQUEUE | WAKE_OP)
}

/// futex: the kernel needs the word at its place, but a time can be copied.
pub(super) fn in_place(number: usize, mut arguments: Arguments) -> isize {
    let has_time = number == libc::SYS_futex as usize && may_wait(arguments[1]);
    let time;
    if has_time && is_paged(arguments[3]) {
        let Some(given) = access::read::<[u64; 2]>(arguments[3]) else { return FAULT };
        time = given;
        arguments[3] = (&raw const time) as usize;
    }
    touched(number, arguments)
}

/// The kinds of six arguments.
type Kinds = [Argument; 6];
const NONE: Argument = Number;

const fn third(kind: Argument) -> Kinds {
    [NONE, NONE, kind, NONE, NONE, NONE]
}

fn fcntl(command: i32) -> Kinds {
    const GET_RW_HINT: i32 = 1035;
    const SET_FILE_RW_HINT: i32 = 1038;
    third(match command {
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => In(Bytes(32)),
        libc::F_GETLK | libc::F_OFD_GETLK => InOut(Bytes(32)),
        // F_SETOWN_EX, F_GETOWN_EX.
        15 | 16 => InOut(Bytes(8)),
        GET_RW_HINT..=SET_FILE_RW_HINT => InOut(Bytes(8)),
        _ => Number,
    })
}

/// Lists network interfaces.
pub(super) const SIOCGIFCONF: u32 = 0x8912;

/// ioctl: the number of a request does not always tell how long its structure is. So as many bytes
/// are copied in as most structures have, and bytes that the kernel has changed are copied back;
/// the call fails if the kernel accesses more. `None`: the structure has pointers.
fn ioctl(number: usize, arguments: Arguments) -> Option<isize> {
    const WINDOW: u32 = 4096;
    const SIOCETHTOOL: u32 = 0x8946;
    let request = arguments[1] as u32;
    if request == SIOCGIFCONF {
        return Some(interfaces(number, arguments));
    }
    match (request >> 8) as u8 {
        // Disks, SCSI, graphics, cameras, virtual machines, RDMA.
        b'N' | 0x22 | b'd' | b'F' | b'K' | b'V' | 0xaf | 0x1b if is_device(arguments[0]) => {
            return None;
        }
        _ if request == SIOCETHTOOL => return None,
        _ => {}
    }
    if let Some(len) = counted(request, arguments[2]) {
        return Some(once(number, &third(InOut(Bytes(len))), arguments));
    }
    let least = (request >> 16 & 0x3fff).max(size_of::<i32>() as u32);
    let whole = accessible(arguments[2], least as usize, Access::Write) == least as usize;
    let kind = if whole { InOut(Window(WINDOW.max(least))) } else { InOut(Bytes(least)) };
    Some(once(number, &third(kind), arguments))
}

/// The length of a structure that ends in as many items as it says; `None`: it is another
/// structure, or longer than the kernel takes.
fn counted(request: u32, address: usize) -> Option<u32> {
    const FIEMAP: u32 = 0xc020_660b;
    const DEDUPE_RANGE: u32 = 0xc018_9436;
    const GET_FS_MAP: u32 = 0xc0c0_583b;
    let word = |at: usize| access::read::<u32>(address.checked_add(at)?);
    let (head, size, count) = match request {
        FIEMAP => (32, 56, word(24)?),
        DEDUPE_RANGE => (24, 32, word(16)? & 0xffff),
        GET_FS_MAP => (192, 64, word(8)?),
        _ => return None,
    };
    count.checked_mul(size)?.checked_add(head)
}

/// Whether a driver serves a file.
fn is_device(file: usize) -> bool {
    matches!(kind_of(file), Some(libc::S_IFCHR | libc::S_IFBLK))
}

/// SIOCGIFCONF: `struct ifconf` has the length and the address of a buffer.
fn interfaces(number: usize, arguments: Arguments) -> isize {
    let Some([len, buffer]) = access::read::<[usize; 2]>(arguments[2]) else { return FAULT };
    let mut list = vec![0u8; (len & 0xffff_ffff).min(INTERFACES_LEN)];
    let to = if buffer == 0 { 0 } else { list.as_mut_ptr() as usize };
    let mut configuration = [list.len(), to];
    let mut given = arguments;
    given[2] = (&raw mut configuration) as usize;
    let result = once(number, &third(InOut(Bytes(16))), given);
    let [len, _] = configuration;
    let len = len & 0xffff_ffff;
    // SAFETY: the list has as many bytes.
    let copied = buffer == 0 || unsafe { access::copy_out(buffer, list.as_ptr(), len) } == len;
    if result < 0 || copied && access::write(arguments[2], &(len as u32)) { result } else { FAULT }
}

/// The longest list of network interfaces.
const INTERFACES_LEN: usize = 256 << 10;

fn prctl(option: i32) -> Option<Kinds> {
    const SET_VMA: i32 = 0x5356_4d41;
    const GET_AUXV: i32 = 0x4155_5856;
    let second = |kind| [NONE, kind, NONE, NONE, NONE, NONE];
    Some(match option {
        libc::PR_SET_NAME => second(String),
        libc::PR_GET_NAME => second(Out(Bytes(16))),
        libc::PR_GET_PDEATHSIG | libc::PR_GET_UNALIGN | libc::PR_GET_FPEMU => second(Out(Bytes(4))),
        libc::PR_GET_TSC | libc::PR_GET_ENDIAN | libc::PR_GET_FPEXC => second(Out(Bytes(4))),
        libc::PR_GET_CHILD_SUBREAPER => second(Out(Bytes(4))),
        libc::PR_GET_TID_ADDRESS => second(Out(Bytes(8))),
        GET_AUXV => second(InOut(Of(2))),
        // Names a range; the name is a string.
        SET_VMA => [NONE, NONE, NONE, NONE, String, NONE],
        libc::PR_SET_MM => return None,
        // Numbers, some of which may look like an address.
        _ => [NONE; 6],
    })
}

fn arch_prctl(code: usize) -> Kinds {
    const GET_FS: usize = 0x1003;
    const GET_GS: usize = 0x1004;
    let kind = if matches!(code, GET_FS | GET_GS) { Out(Bytes(8)) } else { Number };
    [NONE, kind, NONE, NONE, NONE, NONE]
}

/// syslog(2): the results of other actions, such as the length of the log, do not count bytes
/// written.
fn kernel_log(action: i32) -> Kinds {
    /// SYSLOG_ACTION_READ, READ_ALL and READ_CLEAR.
    const READS: std::ops::RangeInclusive<i32> = 2..=4;
    let kind = if READS.contains(&action) { Out(Result(2)) } else { Number };
    [Number, kind, Int, NONE, NONE, NONE]
}

/// shmctl and msgctl: structures of at most 120 bytes.
fn ipc(command: i32) -> Kinds {
    third(match command & 0xff {
        libc::IPC_RMID => Number,
        libc::IPC_SET => In(Bytes(120)),
        _ => InOut(Bytes(120)),
    })
}

/// semctl: the fourth argument.
fn semctl(arguments: Arguments) -> Option<isize> {
    const STAT_ANY: i32 = 20;
    let number = libc::SYS_semctl as usize;
    let fourth = |kind| [NONE, NONE, NONE, kind, NONE, NONE];
    let kind = match arguments[2] as i32 & 0xff {
        libc::IPC_STAT | libc::IPC_SET => InOut(Bytes(104)),
        libc::IPC_INFO | libc::SEM_INFO => Out(Bytes(40)),
        libc::SEM_STAT | STAT_ANY => Out(Bytes(104)),
        // Of as many semaphores as the set has.
        libc::GETALL | libc::SETALL => InOut(Bytes(2 * semaphores(arguments[0])?)),
        _ => Number,
    };
    Some(once(number, &fourth(kind), arguments))
}

/// How many semaphores a set has.
fn semaphores(set: usize) -> Option<u32> {
    const COUNT_AT: usize = 80;
    let mut found = [0u8; 104];
    let arguments = [set, 0, libc::IPC_STAT as usize, found.as_mut_ptr() as usize, 0, 0];
    let kinds = [NONE, NONE, NONE, Out(Bytes(104)), NONE, NONE];
    let result = once(libc::SYS_semctl as usize, &kinds, arguments);
    let count = u64::from_ne_bytes(found[COUNT_AT..COUNT_AT + 8].try_into().ok()?);
    (result >= 0).then_some(count as u32)
}

/// ptrace: addresses of the traced process are numbers. `None`: nothing is known about the request.
fn trace(arguments: Arguments) -> Option<isize> {
    const GET_FILTER: libc::c_uint = 0x420c;
    const OTHERS: [libc::c_uint; 4] =
        [libc::PTRACE_PEEKSIGINFO, libc::PTRACE_GETREGSET, libc::PTRACE_SETREGSET, GET_FILTER];
    let request = arguments[0] as libc::c_uint;
    let data = match request {
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => Out(Bytes(8)),
        libc::PTRACE_GETREGS => Out(Bytes(216)),
        libc::PTRACE_SETREGS => In(Bytes(216)),
        libc::PTRACE_GETFPREGS => Out(Bytes(512)),
        libc::PTRACE_SETFPREGS => In(Bytes(512)),
        libc::PTRACE_GETEVENTMSG | libc::PTRACE_GETSIGMASK => Out(Bytes(8)),
        libc::PTRACE_SETSIGMASK => In(Bytes(8)),
        libc::PTRACE_GETSIGINFO => Out(Bytes(128)),
        libc::PTRACE_SETSIGINFO => In(Bytes(128)),
        libc::PTRACE_GET_SYSCALL_INFO => Out(Of(2)),
        other if OTHERS.contains(&other) => return None,
        // Signals, options, and what is stored in the other process.
        _ => Number,
    };
    Some(once(libc::SYS_ptrace as usize, &[NONE, NONE, NONE, data, NONE, NONE], arguments))
}

/// pselect6: the last argument is a structure of a mask's address and its length.
fn pselect6(arguments: Arguments) -> isize {
    let mask = match arguments[5] {
        0 => None,
        place => match access::read::<[usize; 2]>(place) {
            Some([0, _]) => None,
            Some([_, len]) if len != size_of::<Mask>() => return -(libc::EINVAL as isize),
            Some([mask, _]) => match access::read_mask(mask) {
                Some(mask) => Some(mask),
                None => return FAULT,
            },
            None => return FAULT,
        },
    };
    pselect(arguments, mask)
}

/// Makes a call with the program's mask, without the gate's signals; null: with none. The kernel's
/// mask is the first word of the C library's.
pub(super) fn with_mask(mask: usize, call: impl FnOnce(Option<Mask>) -> isize) -> isize {
    match mask {
        0 => call(None),
        mask => access::read_mask(mask).map_or(FAULT, |mask| call(Some(mask))),
    }
}

/// pselect6 with a mask of ours in place of the last argument.
pub(super) fn pselect(mut arguments: Arguments, mask: Option<Mask>) -> isize {
    let sets = InOut(Bits(0));
    let kinds = [Int, sets, sets, sets, InOut(Bytes(16)), In(Bytes(16))];
    let place = mask.as_ref().map(|mask| [(&raw const *mask) as usize, size_of::<Mask>()]);
    arguments[5] = place.as_ref().map_or(0, |place| (&raw const *place) as usize);
    once(libc::SYS_pselect6 as usize, &kinds, arguments)
}

pub(super) fn suspend(arguments: Arguments) -> isize {
    let Some(mask) = access::read_mask(arguments[0]) else { return FAULT };
    let kinds = [In(Of(1)), Number, NONE, NONE, NONE, NONE];
    let arguments = [(&raw const mask) as usize, arguments[1], 0, 0, 0, 0];
    once(libc::SYS_rt_sigsuspend as usize, &kinds, arguments)
}
