//! Trapped calls are made on the thread's own stack, not in the handler of SIGSYS.
//!
//! ```text
//! program --- system call ---> SIGSYS: handler, on the thread's signal stack
//!                                 |  writes a Frame below the red zone, returns from the signal
//! the thread's stack              v
//! | program | red zone | vector state, Frame | enter --- run --- make::make
//! program <--- registers as a system call leaves them --- enter
//! ```
//! A garbage collector stops a thread by a signal, whose handler takes its own stack pointer for
//! the top of the thread's stack. From there the collector reads up to the stack's base. If the
//! thread were stopped on its signal stack, the collector would read whatever lies between the two
//! stacks. So the handler of SIGSYS blocks signals: they arrive once it has returned to the
//! thread's own stack.
//!
//! A stack is used if it is the thread's own: if there is no gap between the stack pointer and the
//! place where the thread began. Memory below other stacks may be the program's. So calls of
//! coroutines on paged stacks are made on a stack for them (call_stack.rs); calls in threads of a
//! raw clone, and calls where little of the stack is left, are made in the handler.
//!
//! Locks: none; what is known of a stack belongs to its thread.

use super::access::{Access, accessible};
use super::call_stack::{self, RED_ZONE};
use super::copied::Arguments;
use super::range::is_paged;
use super::{make, page, stacks};
use crate::errno::{errno, set_errno};
use highwater_os::helper;
use highwater_units::PAGE_SIZE;
use std::arch::x86_64::__cpuid_count;
use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes below the stack pointer that a call has to find: our functions take a few KiB.
const ROOM: usize = 64 << 10;

/// The longest stretch of stack that one call checks. The first thread's stack would grow by as
/// much.
const FAR: usize = 8 << 20;

/// How far above [`begin`]'s frame the body of a thread may begin. The C library's record of the
/// thread lies there, on the same stack.
const ABOVE: usize = 1 << 10;

/// The parts of an XSAVE area before those of cpuid.
const LEGACY_LEN: usize = 512;
const HEADER_LEN: usize = 64;

/// Components of the processor's state that our functions do not change: protection keys, and the
/// tiles of AMX, which are large, and are not every program's.
const UNCHANGED: u64 = 1 << 9 | 1 << 17 | 1 << 18;

/// The components that are saved around a call; 0: calls are made in the handler.
static COMPONENTS: AtomicU64 = AtomicU64::new(0);
/// Length of an XSAVE area with them.
static VECTORS_LEN: AtomicUsize = AtomicUsize::new(0);

/// The bounds of a thread's stack, as far as they are known.
#[derive(Clone, Copy)]
struct Stack {
    /// Above all frames of the thread; 0: nothing is known.
    top: usize,
    /// From here to `top` all can be accessed.
    low: usize,
    /// The stack ends here, or further up.
    floor: usize,
}

thread_local! {
    static STACK: Cell<Stack> = const { Cell::new(Stack { top: 0, low: 0, floor: 0 }) };
}

/// Prepares the process, in its first thread.
pub(super) fn learn() {
    if let Some((components, len)) = vector_state() {
        VECTORS_LEN.store(len, Relaxed);
        COMPONENTS.store(components, Relaxed);
    }
    // SAFETY: looks a number up. The kernel puts these bytes above the first frame.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    keep(top, 0);
}

/// A thread begins, on a stack of `len` bytes at most.
pub(super) fn begin(len: usize) {
    let here = 0u8;
    let here = (&raw const here) as usize;
    keep(here + ABOVE, here.saturating_sub(len));
}

fn keep(top: usize, floor: usize) {
    STACK.set(Stack { top, low: top & !(PAGE_SIZE - 1), floor });
}

/// The components to save, and the length of their area. `None`: the processor has no XSAVE.
fn vector_state() -> Option<(u64, usize)> {
    if !is_x86_feature_detected!("xsave") {
        return None;
    }
    let (low, high): (u32, u32);
    // SAFETY: reads a register that exists, as the system uses XSAVE.
    unsafe {
        std::arch::asm!(
            "xgetbv",
            in("ecx") 0,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags),
        );
    }
    let components = (u64::from(high) << 32 | u64::from(low)) & !UNCHANGED;
    let ends = (2..63).filter(|index| components >> index & 1 == 1).map(|index| {
        let leaf = __cpuid_count(0xd, index);
        (leaf.eax + leaf.ebx) as usize
    });
    Some((components, ends.fold(LEGACY_LEN + HEADER_LEN, usize::max)))
}

/// Whether the pointer is in this thread's own stack, with [`ROOM`] below.
fn has_room(pointer: usize) -> bool {
    let mut stack = STACK.get();
    let Some(end) = pointer.checked_sub(ROOM) else { return false };
    if stacks::is_ours(pointer) || pointer > stack.top {
        return false;
    }
    if end < stack.low {
        stack = look_down(stack, end & !(PAGE_SIZE - 1));
        STACK.set(stack);
    }
    end >= stack.low
}

/// Looks for the stack's end, as far down as `end`.
fn look_down(mut stack: Stack, end: usize) -> Stack {
    if stack.low - end > FAR {
        return stack;
    }
    while stack.low > end && end >= stack.floor {
        let next = end.max(stack.low - ROOM);
        if grow(next) && accessible(next, stack.low - next, Access::Read) == stack.low - next {
            stack.low = next;
        } else {
            stack.floor = next + PAGE_SIZE;
        }
    }
    stack
}

/// Lets the first thread's stack grow down to an address, as an access does; `false`: there is no
/// memory. Uses a call that every program with a filter of its own allows.
fn grow(address: usize) -> bool {
    const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    /// Unlikely to be the word that is there; if it is, the wait ends at once all the same.
    const OTHER: usize = 0x9e37_79b9;
    let now = [0u64; 2];
    let arguments = [address, WAIT, OTHER, (&raw const now) as usize, 0, 0];
    // SAFETY: reads a word at most.
    unsafe { page::call(libc::SYS_futex as usize, arguments) != -(libc::EFAULT as isize) }
}

/// What [`enter`] needs. The XSAVE area is behind it.
#[repr(C, align(64))]
struct Frame {
    /// Where the program goes on, and with which stack pointer and flags.
    rip: usize,
    rsp: usize,
    flags: usize,
    components: u64,
    number: usize,
    /// In the registers rdi, rsi, rdx, r10, r8 and r9, which a system call leaves alone.
    arguments: Arguments,
}

// The unwind information of `enter` has them.
const _: () = assert!(offset_of!(Frame, rip) == 0 && offset_of!(Frame, rsp) == 8);

/// Has a trapped call made once the handler has returned, on the interrupted stack or, for a
/// coroutine, on the stack for its calls; `false`: the handler has to make it.
pub(super) fn divert(number: usize, arguments: &Arguments, context: &mut libc::ucontext_t) -> bool {
    /// Flags with which compiled code goes wrong: alignment check, direction, trap.
    const DISTURBING: i64 = 1 << 18 | 1 << 10 | 1 << 8;
    let components = COMPONENTS.load(Relaxed);
    let registers = &context.uc_mcontext.gregs;
    let [rip, rsp, flags] =
        [libc::REG_RIP, libc::REG_RSP, libc::REG_EFL].map(|at| registers[at as usize] as usize);
    // exec.rs tells by the handler's stack whether the memory of a call is still in use.
    let execs = matches!(number as libc::c_long, libc::SYS_execve | libc::SYS_execveat);
    if components == 0 || execs || helper::is_inside() {
        return false;
    }
    let end = match is_paged(rsp) {
        true => call_stack::begin(context, ROOM),
        false => has_room(rsp).then(|| rsp - RED_ZONE),
    };
    let Some(end) = end else { return false };
    let registers = &mut context.uc_mcontext.gregs;
    let len = size_of::<Frame>() + VECTORS_LEN.load(Relaxed);
    let at = (end - len) & !(align_of::<Frame>() - 1);
    let frame = std::ptr::with_exposed_provenance_mut::<Frame>(at);
    let arguments = *arguments;
    // SAFETY: on a stack that has room, and not in its red zone. XSAVE leaves most of the
    // header as it finds it, and XRSTOR refuses it unless it is zeroed.
    unsafe {
        frame.write(Frame { rip, rsp, flags, components, number, arguments });
        frame.add(1).byte_add(LEGACY_LEN).cast::<[u8; HEADER_LEN]>().write([0; HEADER_LEN]);
    }
    registers[libc::REG_RIP as usize] = enter as *const () as i64;
    registers[libc::REG_RSP as usize] = at as i64;
    registers[libc::REG_EFL as usize] &= !DISTURBING;
    true
}

/// Makes the call.
extern "C" fn run(frame: &Frame) -> isize {
    let saved = errno();
    let result = make::make(frame.number, frame.arguments, None);
    set_errno(saved);
    if is_paged(frame.rsp) {
        call_stack::end();
    }
    result
}

/// Where the thread goes on after the handler: makes the call, and goes on in the program with
/// registers as the kernel leaves them. The unwind information: the CFA is the word `rsp` of the
/// frame, the return address is in the word `rip`.
///
/// # Safety
/// The stack pointer is the address of a frame; all other registers but the flags are the
/// program's. Not to be called.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_signal_frame",
        ".cfi_escape 0x0f, 3, 0x77, 8, 0x06",
        ".cfi_escape 0x10, 16, 2, 0x77, 0",
        "mov eax, [rsp + {components}]",
        "mov edx, [rsp + {components} + 4]",
        "xsave64 [rsp + {vectors}]",
        "mov rdi, rsp",
        "call {run}",
        "mov rcx, rax",
        "mov eax, [rsp + {components}]",
        "mov edx, [rsp + {components} + 4]",
        "xrstor64 [rsp + {vectors}]",
        "mov rax, rcx",
        "mov rdi, [rsp + {arguments}]",
        "mov rsi, [rsp + {arguments} + 8]",
        "mov rdx, [rsp + {arguments} + 16]",
        "mov r10, [rsp + {arguments} + 24]",
        "mov r8, [rsp + {arguments} + 32]",
        "mov r9, [rsp + {arguments} + 40]",
        "mov rcx, [rsp + {rip}]",
        "mov r11, [rsp + {flags}]",
        "push r11",
        "popfq",
        "mov rsp, [rsp + {rsp}]",
        "jmp rcx",
        ".cfi_endproc",
        components = const offset_of!(Frame, components),
        vectors = const size_of::<Frame>(),
        arguments = const offset_of!(Frame, arguments),
        rip = const offset_of!(Frame, rip),
        rsp = const offset_of!(Frame, rsp),
        flags = const offset_of!(Frame, flags),
        run = sym run,
    );
}
