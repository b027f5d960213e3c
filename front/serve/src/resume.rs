//! Returns from a signal handler to the interrupted code without a system call.
//!
//! ```text
//! handler --- resume --> xrstor: vector registers;  mov: general registers
//!                        iretq: rip, cs, flags, rsp, ss at once --> interrupted code
//! ```
//! sigreturn(2) enters and leaves the kernel, which reads and checks the whole frame: this takes a
//! fifth of the time of an empty handler. [`resume`] does not restore the signal mask and the
//! alternate stack, so it is for handlers that changed neither. Frames of these kinds are left to
//! sigreturn(2):
//!
//! - Shadow stacks are on: a return to the interrupted code has to remove the kernel's token from
//!   the shadow stack.
//! - The frame has no XSAVE area, or its code and stack segments are not those of 64-bit programs.
//! - The program has set the flag NT, with which iretq fails.
//! - The alternate stack has SS_AUTODISARM: the kernel disarmed it when it delivered the signal.

use std::arch::asm;

/// The kernel's description of an XSAVE area in a signal's frame (`struct _fpx_sw_bytes` of
/// <asm/sigcontext.h>).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct XsaveArea {
    magic: u32,
    /// Its length in bytes, including the marker at its end.
    pub len: u32,
    /// The components of the processor's state that it contains.
    pub components: u64,
}

/// The XSAVE area in the vector state of a signal's frame; `None`: the state is an FXSAVE area.
///
/// # Safety
/// The state was written by the kernel or is a copy of such a state. It has at least the 512 bytes
/// of FXSAVE.
pub unsafe fn xsave_area(vectors: *const u8) -> Option<XsaveArea> {
    /// Offset of the field of an FXSAVE area that tells whether an XSAVE area follows.
    const OFFSET: usize = 464;
    const MAGIC: u32 = 0x4650_5853;
    // SAFETY: as the caller says.
    let area = unsafe { vectors.add(OFFSET).cast::<XsaveArea>().read_unaligned() };
    (area.magic == MAGIC).then_some(area)
}

/// Bits of `uc_flags`: the frame has an XSAVE area; the frame has the stack segment.
const UC_FP_XSTATE: u64 = 1 << 0;
const UC_SIGCONTEXT_SS: u64 = 1 << 1;

const SS_AUTODISARM: i32 = i32::MIN;

/// The flag NT of the processor: nested task.
const FLAG_NT: i64 = 1 << 14;

/// Offset of a general register in the frame's `gregs`.
const fn at(register: i32) -> usize {
    register as usize * size_of::<libc::greg_t>()
}

/// Offsets in `gregs` of the code and stack segment selectors, 16 bits each.
const CS: usize = at(libc::REG_CSGSFS);
const SS: usize = at(libc::REG_CSGSFS) + 6;

/// What [`resume`] needs of an ordinary frame.
struct Frame {
    registers: *const libc::greg_t,
    vectors: *const u8,
    /// The components of the processor's state that the XSAVE area contains. The processor may have
    /// more, and some of them (AMX) have to be requested: in a program that has not requested them,
    /// xrstor with a mask of ones would fault.
    components: u64,
}

/// Continues the interrupted code with its registers as they were. Returns if the frame is not an
/// ordinary one: sigreturn(2) then has to be called, which happens when the handler returns.
///
/// # Safety
/// `context` is the ucontext of the running handler, which was installed with SA_NODEFER and an
/// empty mask and without SA_ONSTACK, and which has changed neither the signal mask nor the
/// alternate stack. Nothing in the callers' frames is dropped.
pub(crate) unsafe fn resume(context: *const libc::c_void) {
    // SAFETY: by contract of this function, a live ucontext.
    let Some(frame) = (unsafe { ordinary(&*context.cast::<libc::ucontext_t>()) }) else { return };
    // SAFETY: the kernel wrote the frame on this signal's delivery; mask and alternate stack are as
    // they were, by contract. The pushes write below the frame, which lies below the red zone of
    // the interrupted code.
    unsafe { leave(frame) }
}

/// The frame, if it is an ordinary one.
///
/// # Safety
/// The kernel wrote the context when it delivered the signal that is being handled.
unsafe fn ordinary(context: &libc::ucontext_t) -> Option<Frame> {
    let (flags, vectors) = (context.uc_flags, context.uc_mcontext.fpregs.cast::<u8>().cast_const());
    let has_both = flags & (UC_FP_XSTATE | UC_SIGCONTEXT_SS) == UC_FP_XSTATE | UC_SIGCONTEXT_SS;
    if !has_both || vectors.is_null() || has_shadow_stack() {
        return None;
    }
    let registers = &context.uc_mcontext.gregs;
    let segments = registers[libc::REG_CSGSFS as usize] as u64;
    let same_segments = (segments as u16, (segments >> 48) as u16) == own_segments();
    let nested = registers[libc::REG_EFL as usize] & FLAG_NT != 0;
    let disarmed = context.uc_stack.ss_flags & SS_AUTODISARM != 0;
    if !same_segments || nested || disarmed {
        return None;
    }
    // SAFETY: by contract, the kernel's.
    let area = unsafe { xsave_area(vectors) };
    area.map(|area| Frame { registers: registers.as_ptr(), vectors, components: area.components })
}

/// Whether this thread has a shadow stack. Without one, the instruction leaves its operand
/// unchanged.
pub fn has_shadow_stack() -> bool {
    let pointer: u64;
    // SAFETY: reads a register of the thread; on processors without shadow stacks it does nothing.
    unsafe {
        asm!(
            "xor {0:e}, {0:e}",
            "rdsspq {0}",
            out(reg) pointer,
            options(nomem, nostack),
        );
    }
    pointer != 0
}

/// The code and stack segment selectors that the kernel gave to the handler.
fn own_segments() -> (u16, u16) {
    let (code, stack): (u16, u16);
    // SAFETY: reads two registers.
    unsafe {
        asm!(
            "mov {0:x}, cs",
            "mov {1:x}, ss",
            out(reg) code,
            out(reg) stack,
            options(nomem, nostack, preserves_flags),
        );
    }
    (code, stack)
}

/// Loads all registers.
///
/// # Safety
/// The frame is an ordinary one of the running handler, and the other state that sigreturn(2)
/// restores besides registers has not changed.
unsafe fn leave(frame: Frame) -> ! {
    // SAFETY: by contract. The vector registers are loaded from what the kernel saved, and no
    // compiled code runs between that and iretq.
    unsafe {
        asm!(
            "xrstor64 [{vectors}]",
            "mov rax, {registers}",
            "movzx ecx, word ptr [rax + {ss}]",
            "push rcx",
            "push qword ptr [rax + {rsp}]",
            "push qword ptr [rax + {flags}]",
            "movzx ecx, word ptr [rax + {cs}]",
            "push rcx",
            "push qword ptr [rax + {rip}]",
            "mov r8, [rax + {r8}]",
            "mov r9, [rax + {r9}]",
            "mov r10, [rax + {r10}]",
            "mov r11, [rax + {r11}]",
            "mov r12, [rax + {r12}]",
            "mov r13, [rax + {r13}]",
            "mov r14, [rax + {r14}]",
            "mov r15, [rax + {r15}]",
            "mov rdi, [rax + {rdi}]",
            "mov rsi, [rax + {rsi}]",
            "mov rbp, [rax + {rbp}]",
            "mov rbx, [rax + {rbx}]",
            "mov rdx, [rax + {rdx}]",
            "mov rcx, [rax + {rcx}]",
            "mov rax, [rax + {rax}]",
            "iretq",
            vectors = in(reg) frame.vectors,
            registers = in(reg) frame.registers,
            in("eax") frame.components as u32,
            in("edx") (frame.components >> 32) as u32,
            ss = const SS,
            cs = const CS,
            rsp = const at(libc::REG_RSP),
            flags = const at(libc::REG_EFL),
            rip = const at(libc::REG_RIP),
            r8 = const at(libc::REG_R8),
            r9 = const at(libc::REG_R9),
            r10 = const at(libc::REG_R10),
            r11 = const at(libc::REG_R11),
            r12 = const at(libc::REG_R12),
            r13 = const at(libc::REG_R13),
            r14 = const at(libc::REG_R14),
            r15 = const at(libc::REG_R15),
            rdi = const at(libc::REG_RDI),
            rsi = const at(libc::REG_RSI),
            rbp = const at(libc::REG_RBP),
            rbx = const at(libc::REG_RBX),
            rdx = const at(libc::REG_RDX),
            rcx = const at(libc::REG_RCX),
            rax = const at(libc::REG_RAX),
            options(noreturn),
        )
    }
}
