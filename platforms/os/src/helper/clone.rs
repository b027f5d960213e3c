//! Makes processes and threads past the C library, and waits for them.
//!
//! A new task begins in [`Task::entry`] on the stack of a [`Block`], with the thread-local
//! variables in the same block. Only raw system calls are used to make it.

use super::tls;
use crate::sys::{self, Advice};
use libc::{c_int, c_long, c_void};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, setpgid, waitpid};
use rustix::thread::{futex, set_name};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Acquire};

/// What each kind of task shares with the one that makes it.
pub(super) mod flags {
    use libc::*;

    /// Shares memory, and the maker waits until it ends. Its end is no signal.
    pub(crate) const STARTER: c_int = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED;
    /// Shares the starter's descriptors, which are a copy of the program's.
    pub(crate) const GUARDIAN: c_int =
        CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_UNTRACED | CLONE_SETTLS;
    pub(crate) const HELPER: c_int = GUARDIAN | SIGCHLD;
    pub(crate) const THREAD: c_int =
        GUARDIAN | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
}

/// Stack and thread-local variables of a task, unmapped when dropped: the task has ended.
///
/// ```text
/// guard page | stack -->  <-- | static TLS | thread control block | dtv
///                         top              thread pointer
/// ```
pub(super) struct Block {
    base: *mut u8,
    len: usize,
    stack_top: *mut u8,
    thread_pointer: *mut u8,
}

impl Block {
    pub(super) fn new(stack: usize) -> io::Result<Block> {
        let layout = tls::layout().ok_or(io::ErrorKind::Unsupported)?;
        let page = highwater_units::PAGE_SIZE;
        let below = layout.below().next_multiple_of(page);
        let len = page + stack + below + tls::CONTROL_BYTES + tls::DTV_BYTES;
        let base = sys::map_anonymous(len)?;
        // SAFETY: nobody uses it yet. The first page catches a stack that overflows; a forked child
        // of the program has helpers of its own.
        unsafe {
            sys::protect(base, page, libc::PROT_NONE)?;
            sys::advise(base, len, Advice::LinuxDontFork)?;
        }
        let stack_top = base.wrapping_add(page + stack);
        let thread_pointer = stack_top.wrapping_add(below);
        // SAFETY: as much is mapped around the thread pointer as the layout asks for.
        unsafe { layout.fill(thread_pointer) };
        Ok(Block { base, len, stack_top, thread_pointer })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; its task has ended.
        unsafe { sys::unmap(self.base, self.len) };
    }
}

/// What a new task does; the result of `entry` is its exit status.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) entry: extern "C" fn(*mut c_void) -> c_int,
    pub(super) argument: *mut c_void,
}

/// Words of memory that the kernel writes.
pub(super) struct Words {
    /// Cleared, and waiters woken, when the task ends.
    pub(super) ended: Option<*mut u32>,
}

impl Words {
    pub(super) fn none() -> Words {
        Words { ended: None }
    }
}

/// Makes a task; returns its number.
///
/// # Errors
/// The number of the system's error.
///
/// # Safety
/// The block and what the task's argument points at live as long as the task.
pub(super) unsafe fn clone(
    flags: c_int,
    block: &Block,
    task: Task,
    words: Words,
) -> Result<i32, i32> {
    let stack = block.stack_top.cast::<usize>();
    let ended = words.ended.unwrap_or(ptr::null_mut());
    // SAFETY: the top of a stack that no task uses yet; the rest is the caller's promise.
    let made = unsafe {
        let stack = stack.sub(2);
        stack.write(task.entry as usize);
        stack.add(1).write(task.argument as usize);
        raw(flags as c_long, stack.cast(), ptr::null_mut(), ended, block.thread_pointer)
    };
    if made < 0 { Err(-made as i32) } else { Ok(made as i32) }
}

/// clone(2) with the arguments that the kernel takes; the new task takes its entry and argument
/// from its stack.
///
/// # Safety
/// `stack` is the top of a stack of the new task's, with these two words there.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn raw(
    flags: c_long,
    stack: *mut u8,
    parent: *mut i32,
    ended: *mut u32,
    thread_pointer: *mut u8,
) -> c_long {
    naked_asm!(
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "xor ebp, ebp",
        "pop rax",
        "pop rdi",
        "call rax",
        "mov edi, eax",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        clone = const libc::SYS_clone,
        exit = const libc::SYS_exit,
    )
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Status(i32),
    Killed,
    /// Another has waited for it.
    Unknown,
}

/// Waits for a child made by [`clone`].
pub(super) fn wait(child: i32) -> Ended {
    // Also children whose end is no SIGCHLD.
    let any_clone = WaitOptions::from_bits_retain(libc::__WALL as u32);
    loop {
        match waitpid(Pid::from_raw(child), any_clone) {
            Err(Errno::INTR) => {}
            Err(_) | Ok(None) => return Ended::Unknown,
            Ok(Some((_, status))) => {
                return status.exit_status().map_or(Ended::Killed, Ended::Status);
            }
        }
    }
}

/// Waits until the kernel has cleared a thread's word.
pub(super) fn wait_until_cleared(word: &AtomicU32) {
    loop {
        let value = word.load(Acquire);
        if value == 0 {
            return;
        }
        // The kernel wakes waiters of the shared kind, so not with Flags::PRIVATE.
        let _ = futex::wait(word, futex::Flags::empty(), value, None);
    }
}

/// Waits until one of two processes has ended.
pub(super) fn wait_for_either(one: RawFd, other: RawFd) {
    let ended = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [ended(one), ended(other)];
    // SAFETY: two descriptions, for the call. Signals are blocked, so nothing interrupts it.
    unsafe { libc::poll(both.as_mut_ptr(), 2, -1) };
}

/// Waits for a process to end, so many milliseconds at most.
pub(super) fn wait_a_while(pidfd: RawFd, milliseconds: c_int) {
    let mut ended = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one description, for the call.
    unsafe { libc::poll(&raw mut ended, 1, milliseconds) };
}

/// First of all in a new task: its name, and where the C library looks for them its number and that
/// of its CPU.
pub(super) fn begin(name: &CStr) {
    tls::set_number();
    // The kernel cuts the name at 15 bytes.
    let _ = set_name(name);
    tls::register_rseq();
}

/// Leaves the program's process group: signals to it are not for the helper. Not its session: the
/// scheduler shares CPUs out by sessions (sched_autogroup), and a fault handler that waits for the
/// share of another one makes a fault take three times as long.
pub(super) fn leave_group() {
    let _ = setpgid(None, None);
}

/// Ends all threads of the helper.
pub(super) fn end_process(status: c_int) -> ! {
    loop {
        // SAFETY: ends this process, not the program.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}
