//! The seccomp filter: traps system calls with a pointer into the range.
//!
//! ```text
//! architecture, number --- tree of comparisons ---> which arguments are pointers
//!   none ----------------------------------------------------------> allow
//!   a set: is the upper half of one of them in the range? -- no ----> allow
//!     madvise: is it an advice that drops pages? -- no -------------> allow
//!     yes: is the instruction the one of page.rs? -- yes -----------> allow
//!                                                    no ------------> SIGSYS
//! ```
//! The kernel remembers which numbers are always allowed, so that they cost nothing. The others
//! take about 15 instructions.

use super::calls::TABLE;
use super::page::{self, PAGE};
use super::range::RANGE;
use super::table::{Argument, Call, Way};
use crate::bpf::{AUDIT_ARCH, EQUALS, LOAD, RETURN, branch, op};
use highwater_os::sys::MADV_DONTNEED_LOCKED;
use highwater_units::PAGE_SIZE;
use libc::{c_long, c_ulong, sock_filter, sock_fprog};
use std::io;
use std::mem::offset_of;

/// Arguments that may be pointers: a bit each; and [`REFUSED`], [`DROPPING`].
type Pointers = u8;

const ALL: Pointers = 0b11_1111;
/// The call fails with ENOSYS, without a signal: the C library makes it while signals are blocked.
const REFUSED: Pointers = 0b100_0000;
/// Only calls whose third argument is an advice that drops pages.
const DROPPING: Pointers = 0b1000_0000;

/// Advice after which pages read as zeros: those that are swapped out, too.
const DROPS: [u32; 3] =
    [libc::MADV_DONTNEED as u32, libc::MADV_FREE as u32, MADV_DONTNEED_LOCKED as u32];

const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;

const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Length of [`Program::trap`].
const TRAP_LEN: u8 = 7;

/// The pointers that the filter has to look at.
fn pointers(call: &Call) -> Pointers {
    match call.way {
        Way::Passed => 0,
        Way::Copied => {
            let is_pointer = |(at, argument): (usize, &Argument)| {
                u8::from(!matches!(argument, Argument::Number | Argument::Int)) << at
            };
            call.arguments.iter().enumerate().map(is_pointer).sum()
        }
        Way::Absent if c_long::from(call.number) == libc::SYS_rseq => 1 | REFUSED,
        Way::Absent => ALL | REFUSED,
        Way::Special if c_long::from(call.number) == libc::SYS_madvise => 1 | DROPPING,
        Way::Unknown => ALL,
        Way::InPlace | Way::Special => of_special(call),
    }
}

/// The pointers of a call that the table does not describe. Registers beyond a call's arguments may
/// contain anything, and must not be checked.
fn of_special(call: &Call) -> Pointers {
    let pointers: &[u8] = match c_long::from(call.number) {
        libc::SYS_rt_sigaction | libc::SYS_rt_sigprocmask => &[1, 2],
        libc::SYS_ioctl | libc::SYS_fcntl | libc::SYS_shmctl | libc::SYS_msgctl => &[2],
        libc::SYS_seccomp => &[2],
        libc::SYS_setsockopt => &[3],
        libc::SYS_getsockopt => &[3, 4],
        libc::SYS_semctl => &[3],
        libc::SYS_readv | libc::SYS_writev | libc::SYS_preadv | libc::SYS_pwritev => &[1],
        libc::SYS_preadv2 | libc::SYS_pwritev2 | libc::SYS_vmsplice => &[1],
        libc::SYS_sendmsg | libc::SYS_recvmsg | libc::SYS_sendmmsg => &[1],
        libc::SYS_mq_notify | libc::SYS_arch_prctl | libc::SYS_process_madvise => &[1],
        libc::SYS_recvmmsg => &[1, 4],
        libc::SYS_execve => &[0, 1, 2],
        libc::SYS_execveat => &[1, 2, 3],
        libc::SYS_ptrace | libc::SYS_fsconfig => &[2, 3],
        libc::SYS_syslog => &[1],
        libc::SYS_rt_sigsuspend | libc::SYS_perf_event_open | libc::SYS_clone3 => &[0],
        libc::SYS_sigaltstack => &[0, 1],
        libc::SYS_prctl => &[1, 4],
        libc::SYS_pselect6 => &[1, 2, 3, 4, 5],
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => &[1, 3],
        libc::SYS_futex => &[0, 3, 4],
        libc::SYS_futex_waitv => &[0, 3],
        // futex_wait, futex_wake, futex_requeue.
        454 | 456 => &[0],
        455 => &[0, 4],
        // setxattrat, getxattrat.
        463 | 464 => &[1, 3, 4],
        _ => &[0, 1, 2, 3, 4, 5],
    };
    pointers.iter().map(|at| 1 << at).sum()
}

/// The numbers from which on another set of pointers applies, with that set.
fn steps() -> Vec<(u32, Pointers)> {
    let mut steps = vec![(0, ALL)];
    let mut next = 0;
    for call in TABLE {
        let number = u32::from(call.number);
        if number > next {
            steps.push((next, ALL));
        }
        steps.push((number, pointers(call)));
        next = number + 1;
    }
    steps.push((next, ALL));
    steps.dedup_by(|later, earlier| {
        if later.0 == earlier.0 {
            earlier.1 = later.1;
        }
        later.0 == earlier.0 || later.1 == earlier.1
    });
    steps
}

/// A program under construction. Jumps to leaves are resolved at the end.
#[derive(Default)]
struct Program {
    code: Vec<sock_filter>,
    /// Jumps, and the set whose leaf they lead to.
    open: Vec<(usize, Pointers)>,
}

impl Program {
    /// Finds the step of the loaded number.
    fn tree(&mut self, steps: &[(u32, Pointers)]) {
        if let [(_, pointers)] = steps {
            self.open.push((self.code.len(), *pointers));
            return self.code.push(op(JUMP, 0));
        }
        let (left, right) = steps.split_at(steps.len() / 2);
        // At least: the jump that follows; else past it.
        self.code.push(branch(AT_LEAST, right[0].0, 0, 1));
        let jump = self.code.len();
        self.code.push(op(JUMP, 0));
        self.tree(left);
        self.code[jump].k = (self.code.len() - jump - 1) as u32;
        self.tree(right);
    }

    /// Checks the arguments of a set; jumps lead here.
    fn leaf(&mut self, pointers: Pointers) {
        let here = self.code.len();
        for (jump, _) in self.open.iter().filter(|(_, of)| *of == pointers) {
            self.code[*jump].k = (here - jump - 1) as u32;
        }
        if pointers & DROPPING != 0 {
            self.unless_dropping();
        }
        let (first, end) = ((RANGE.start >> 32) as u32, (RANGE.end >> 32) as u32);
        for argument in (0..6).filter(|at| pointers >> at & 1 != 0) {
            let upper = offset_of!(libc::seccomp_data, args) + argument * 8 + 4;
            self.code.push(op(LOAD, upper as u32));
            // Below the range, or past it: the next argument.
            self.code.push(branch(AT_LEAST, first, 0, TRAP_LEN + 1));
            self.code.push(branch(AT_LEAST, end, TRAP_LEN, 0));
            self.trap(pointers & REFUSED != 0);
        }
        self.code.push(op(RETURN, libc::SECCOMP_RET_ALLOW));
    }

    /// Allows the call, unless its third argument is one of [`DROPS`].
    fn unless_dropping(&mut self) {
        self.code.push(op(LOAD, (offset_of!(libc::seccomp_data, args) + 2 * 8) as u32));
        for (at, advice) in DROPS.into_iter().enumerate() {
            // Past the other comparisons and the return.
            self.code.push(branch(EQUALS, advice, (DROPS.len() - at) as u8, 0));
        }
        self.code.push(op(RETURN, libc::SECCOMP_RET_ALLOW));
    }

    /// Traps, unless the instruction is the one of page.rs: [`TRAP_LEN`] instructions.
    fn trap(&mut self, refused: bool) {
        let pointer = offset_of!(libc::seccomp_data, instruction_pointer) as u32;
        let (upper, lower) = ((PAGE >> 32) as u32, PAGE as u32);
        self.code.push(op(LOAD, pointer + 4));
        self.code.push(branch(EQUALS, upper, 0, 4));
        self.code.push(op(LOAD, pointer));
        self.code.push(branch(AT_LEAST, lower, 0, 2));
        self.code.push(branch(AT_LEAST, lower + PAGE_SIZE as u32, 1, 0));
        self.code.push(op(RETURN, libc::SECCOMP_RET_ALLOW));
        self.code.push(op(RETURN, if refused { ENOSYS } else { libc::SECCOMP_RET_TRAP }));
    }
}

/// Calls after which the kernel would use memory on its own. They fail with ENOSYS, as in
/// containers: programs do without them.
const ABSENT: [c_long; 2] = [libc::SYS_io_setup, libc::SYS_io_uring_setup];

fn program(traps_madvise: bool) -> Vec<sock_filter> {
    let mut steps = steps();
    if !traps_madvise {
        steps.iter_mut().filter(|step| step.1 & DROPPING != 0).for_each(|step| step.1 = 0);
    }
    let mut program = Program::default();
    program.code.push(op(LOAD, offset_of!(libc::seccomp_data, arch) as u32));
    // Programs of 32 bits have no pointers into the range.
    program.code.push(branch(EQUALS, AUDIT_ARCH, 1, 0));
    program.code.push(op(RETURN, libc::SECCOMP_RET_ALLOW));
    program.code.push(op(LOAD, offset_of!(libc::seccomp_data, nr) as u32));
    for number in ABSENT {
        program.code.push(branch(EQUALS, number as u32, 0, 1));
        program.code.push(op(RETURN, ENOSYS));
    }
    program.tree(&steps);
    let mut sets: Vec<Pointers> = steps.iter().map(|(_, pointers)| *pointers).collect();
    sets.sort_unstable();
    sets.dedup();
    sets.into_iter().for_each(|pointers| program.leaf(pointers));
    program.code
}

/// Loads the filter for all threads of this process, and for what it executes. `traps_madvise`:
/// also the advice after which pages read as zeros.
///
/// # Errors
/// The system's refusal.
pub(super) fn load(traps_madvise: bool) -> io::Result<()> {
    let mut code = program(traps_madvise);
    let program = sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    let load = || {
        let (set, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        let arguments = [set as usize, all as usize, (&raw const program) as usize, 0, 0, 0];
        // Not by the C library's function, which says that the program sets a filter.
        // SAFETY: a program that lives for the call; it allows whatever this process does until it
        // has paged memory.
        match unsafe { page::call(libc::SYS_seccomp as usize, arguments) } {
            0 => Ok(()),
            error @ ..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            thread => Err(io::Error::other(format!("thread {thread} has a filter of its own"))),
        }
    };
    load().or_else(|error| {
        if error.raw_os_error() != Some(libc::EACCES) {
            return Err(error);
        }
        let (on, none): (c_ulong, c_ulong) = (1, 0);
        // SAFETY: numbers.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, none, none, none) };
        load()
    })
}
