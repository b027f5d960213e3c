//! Creates processes and threads without the C library, and waits for them.
//!
//! A new task starts in [`Task::entry`] on the stack of a [`Block`], which also holds its
//! thread-local variables. Only raw system calls create it.

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

/// The clone flags of each kind of task.
pub(super) mod flags {
    use libc::*;

    /// Shares memory; its parent waits until it ends. Its end sends no signal.
    pub(crate) const STARTER: c_int = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED;
    /// A guardian or a helper. Shares the starter's descriptors, which are a copy of the program's.
    /// Its end sends no signal: where the program ignores SIGCHLD, so does the guardian, and the
    /// kernel would drop the status of a child that sends one.
    pub(crate) const PROCESS: c_int =
        CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_UNTRACED | CLONE_SETTLS;
    pub(crate) const THREAD: c_int =
        PROCESS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
}

/// Stack and thread-local variables of a task. Unmapped when dropped, after the task's end.
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
        // The first page catches stack overflows. A forked child of the program has helpers of its
        // own, and does not need this mapping.
        // SAFETY: nothing uses the mapping yet.
        unsafe {
            sys::protect(base, page, libc::PROT_NONE)?;
            sys::advise(base, len, Advice::LinuxDontFork)?;
        }
        let stack_top = base.wrapping_add(page + stack);
        let thread_pointer = stack_top.wrapping_add(below);
        // SAFETY: the memory around the thread pointer that the layout requires is mapped.
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

/// The code of a new task; the result of `entry` is its exit status.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) entry: extern "C" fn(*mut c_void) -> c_int,
    pub(super) argument: *mut c_void,
}

/// Words of memory that the kernel writes.
pub(super) struct Words {
    /// Cleared when the task ends; the kernel then wakes its waiters.
    pub(super) ended: Option<*mut u32>,
}

impl Words {
    pub(super) fn none() -> Words {
        Words { ended: None }
    }
}

/// Creates a task; returns its id.
///
/// # Errors
/// The system's error number.
///
/// # Safety
/// The block and the target of the task's argument live as long as the task.
pub(super) unsafe fn clone(
    flags: c_int,
    block: &Block,
    task: Task,
    words: Words,
) -> Result<i32, i32> {
    let stack = block.stack_top.cast::<usize>();
    let ended = words.ended.unwrap_or(ptr::null_mut());
    // SAFETY: the top of a stack that no task uses yet; the caller vouches for the rest.
    let made = unsafe {
        let stack = stack.sub(2);
        stack.write(task.entry as usize);
        stack.add(1).write(task.argument as usize);
        raw(flags as c_long, stack.cast(), ptr::null_mut(), ended, block.thread_pointer)
    };
    if made < 0 { Err(-made as i32) } else { Ok(made as i32) }
}

/// clone(2) with the kernel's arguments. The new task pops its entry and argument from its stack.
///
/// # Safety
/// `stack` is the top of the new task's stack, with these two words there.
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
    /// Another thread collected its status.
    Unknown,
}

/// Waits for a child made by [`clone`].
pub(super) fn wait(child: i32) -> Ended {
    // Also children whose end sends no SIGCHLD.
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
        // Not Flags::PRIVATE: at the end of a thread the kernel wakes shared waiters.
        let _ = futex::wait(word, futex::Flags::empty(), value, None);
    }
}

/// Waits until one of two processes has ended.
pub(super) fn wait_for_either(one: RawFd, other: RawFd) {
    let ended = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [ended(one), ended(other)];
    // Signals are blocked, so nothing interrupts it.
    // SAFETY: an array of two for the call.
    unsafe { libc::poll(both.as_mut_ptr(), 2, -1) };
}

/// Waits until a process has ended, or for some milliseconds.
pub(super) fn wait_a_while(pidfd: RawFd, milliseconds: c_int) {
    let mut ended = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
    // SAFETY: an array of one for the call.
    unsafe { libc::poll(&raw mut ended, 1, milliseconds) };
}

/// The first steps of a new task: sets its floating-point modes, its name, and its thread id and
/// rseq area where the C library looks for them.
pub(super) fn begin(name: &CStr) {
    sys::reset_float_modes();
    tls::set_number();
    // The kernel cuts the name at 15 bytes.
    let _ = set_name(name);
    tls::register_rseq();
}

/// Leaves the program's process group, because its signals are not for the helper. It stays in the
/// program's session: the scheduler divides CPUs among sessions (sched_autogroup), and with a
/// session of its own a fault took three times as long.
pub(super) fn leave_group() {
    let _ = setpgid(None, None);
}

/// Ends all threads of the helper.
pub(super) fn end_process(status: c_int) -> ! {
    loop {
        // SAFETY: ends the helper, not the program.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}
