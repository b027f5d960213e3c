//! Serves the system calls of a program whose threads are none of the C library's.
//!
//! ```text
//! site --> enter: signals blocked, LOCK taken, FS and stack of this library --> answer
//! site <-- result in RAX, all other registers but RCX and R11 as before <---------/
//! ```
//! Signals are blocked before FS changes: Go's handlers find their thread by it. LOCK protects the
//! stack and the C library's block of the first thread. A thread that finds it taken yields:
//! mappings are rare.

use crate::errno::errno;
use crate::mapping::{Call, map_memory, unmap_memory};
use crate::stack;
use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// 1 while a thread is in [`enter`].
static LOCK: AtomicU32 = AtomicU32::new(0);
/// FS of the first thread, as the C library has set it.
static BLOCK: AtomicUsize = AtomicUsize::new(0);
/// End of the stack that calls are served on.
static STACK: AtomicUsize = AtomicUsize::new(0);
/// A mask of all signals.
static ALL: AtomicU64 = AtomicU64::new(u64::MAX);

const ARCH_SET_FS: i32 = 0x1002;
const ARCH_GET_FS: i32 = 0x1003;

/// Notes the block of this thread, the first of the process; returns the address of [`enter`].
///
/// # Errors
/// There is no memory for a stack.
pub(super) fn entry() -> Result<usize, String> {
    let stack = stack::map().ok_or("no memory for a stack")?;
    STACK.store(stack.wrapping_add(stack::LEN).expose_provenance(), Relaxed);
    // SAFETY: writes the static.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, BLOCK.as_ptr()) };
    Ok(enter as *const () as usize)
}

/// What [`enter`] has pushed.
#[repr(C)]
struct Frame {
    signal_mask: u64,
    fs: usize,
    /// Number of the system call; its result after the call.
    number: usize,
    rbx: usize,
    /// In the order of the system call's arguments, the last one first.
    arguments: [usize; 6],
}

/// Makes a system call of the program's.
///
/// # Safety
/// The caller is a site: the call's number is in EAX and its arguments are in the usual registers.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!(
        "push rdi; push rsi; push rdx; push r10; push r8; push r9; push rbx; push rax",
        "sub rsp, 16",
        "mov rbx, rsp",
        // rt_sigprocmask(SIG_SETMASK, ALL, &frame.signal_mask, 8)
        "mov eax, {mask}",
        "mov edi, {set}",
        "lea rsi, [rip + {all}]",
        "mov rdx, rbx",
        "mov r10d, 8",
        "syscall",
        "2:",
        "mov ecx, 1",
        "xchg ecx, dword ptr [rip + {lock}]",
        "test ecx, ecx",
        "jz 3f",
        "mov eax, {sched_yield}",
        "syscall",
        "jmp 2b",
        "3:",
        // arch_prctl(ARCH_GET_FS, &frame.fs); arch_prctl(ARCH_SET_FS, BLOCK)
        "mov eax, {prctl}",
        "mov edi, {get_fs}",
        "lea rsi, [rbx + 8]",
        "syscall",
        "mov eax, {prctl}",
        "mov edi, {set_fs}",
        "mov rsi, qword ptr [rip + {block}]",
        "syscall",
        "mov rsp, qword ptr [rip + {stack}]",
        "mov rdi, rbx",
        "call {answer}",
        "mov qword ptr [rbx + 16], rax",
        "mov eax, {prctl}",
        "mov edi, {set_fs}",
        "mov rsi, qword ptr [rbx + 8]",
        "syscall",
        "mov rsp, rbx",
        "mov dword ptr [rip + {lock}], 0",
        "mov eax, {mask}",
        "mov edi, {set}",
        "mov rsi, rbx",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "add rsp, 16",
        "pop rax; pop rbx; pop r9; pop r8; pop r10; pop rdx; pop rsi; pop rdi",
        "ret",
        mask = const libc::SYS_rt_sigprocmask,
        set = const libc::SIG_SETMASK,
        sched_yield = const libc::SYS_sched_yield,
        prctl = const libc::SYS_arch_prctl,
        get_fs = const ARCH_GET_FS,
        set_fs = const ARCH_SET_FS,
        all = sym ALL,
        lock = sym LOCK,
        block = sym BLOCK,
        stack = sym STACK,
        answer = sym answer,
    )
}

/// The result of a system call, as the kernel returns it. Vector registers may change: the code of
/// Go's runtime around its system calls has none in use.
extern "C" fn answer(frame: &Frame) -> isize {
    let [offset, fd, flags, access, len, address] = frame.arguments;
    let failed = || -(errno() as isize);
    if frame.number == libc::SYS_munmap as usize {
        return if unmap_memory(address, len) == 0 { 0 } else { failed() };
    }
    let [access, flags, fd] = [access, flags, fd].map(|value| value as i32);
    let call = Call { address, len, access, flags, fd, offset: offset as i64 };
    match map_memory(call) {
        libc::MAP_FAILED => failed(),
        mapped => mapped.addr() as isize,
    }
}
