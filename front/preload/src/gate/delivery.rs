//! The program's signal handlers run on the stack that the signal interrupts, paged or not.
//!
//! ```text
//! kernel --- signal ---> enter, on the thread's signal stack, with all signals blocked
//!                          |  place: copies the kernel's frame below the red zone
//! interrupted stack        v
//! | interrupted code | red zone | vector state, Frame | handler
//!                                                       |  returns
//! kernel <--- rt_sigreturn --- where the kernel said, if that stack is not paged;
//!                              or leave, which copies the frame to the signal stack again
//! ```
//! The kernel can neither write its frame to a missing page nor read it there. But a garbage
//! collector that stops a thread by a signal takes the handler's stack pointer for the top of the
//! thread's stack, and reads from there to the stack's base: if the handler ran on the signal
//! stack, the collector would read whatever lies between the two stacks. Programs with coroutines
//! on paged stacks have their handlers run this way (actions.rs), except on a signal stack that the
//! program has set.
//!
//! Locks: none. No frame is on the signal stack when a handler begins, so the next signal may use
//! it.

use super::call_stack::{self, Call, RED_ZONE};
use super::kept::kept;
use super::mask::{self, Mask};
use super::range::is_paged;
use super::stacks;
use highwater_serve::{has_shadow_stack, xsave_area};
use libc::c_int;
use std::mem::offset_of;
use std::ptr::{self, with_exposed_provenance_mut};

/// Alignment of the vector state.
const VECTORS_ALIGN: usize = 64;
/// Bytes of the signal stack for the part of a returning frame that the kernel needs. The vector
/// state has 11 KiB with the tiles of AMX.
const ROOM: usize = 32 << 10;

/// The kernel's frame of a signal (`struct rt_sigframe`), without the vector state.
#[repr(C)]
#[derive(Clone, Copy)]
struct Frame {
    return_to: usize,
    context: Context,
    info: [u64; 16],
}

/// `struct ucontext` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Context {
    flags: u64,
    link: usize,
    stack: libc::stack_t,
    registers: [libc::greg_t; 23],
    vectors: usize,
    reserved: [u64; 8],
    mask: Mask,
}

const _: () = assert!(size_of::<Context>() == 304 && size_of::<Frame>() == 440);

/// A frame on the interrupted stack.
#[repr(C)]
struct Placed {
    frame: Frame,
    /// For the return.
    call: Call,
}

impl Context {
    /// The interrupted code's stack pointer.
    fn pointer(&self) -> usize {
        self.registers[libc::REG_RSP as usize] as usize
    }

    /// Length of the vector state.
    ///
    /// # Safety
    /// The kernel wrote the context, or it is a copy.
    unsafe fn vectors_len(&self) -> usize {
        const FXSAVE_LEN: usize = 512;
        if self.vectors == 0 {
            return 0;
        }
        // SAFETY: as the caller says.
        let area = unsafe { xsave_area(with_exposed_provenance_mut::<u8>(self.vectors)) };
        area.map_or(FXSAVE_LEN, |area| area.len as usize)
    }

    /// Copies the vector state, of `len` bytes, to `at`.
    ///
    /// # Safety
    /// The context has such a state, and `at` room for it.
    unsafe fn move_vectors(&mut self, len: usize, at: usize) {
        if len > 0 {
            let from = with_exposed_provenance_mut::<u8>(self.vectors);
            // SAFETY: as the caller says.
            unsafe { ptr::copy_nonoverlapping(from, with_exposed_provenance_mut(at), len) };
            self.vectors = at;
        }
    }
}

/// The handler of the program's signals, for the kernel.
///
/// # Safety
/// Not to be called: the kernel's frame is at the stack pointer.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter() {
    std::arch::naked_asm!(
        "mov ebx, edi",
        "mov rsi, rsp",
        "sub rsp, 8",
        "call {place}",
        "mov rsp, rax",
        "mov edi, ebx",
        "mov rsi, rax",
        "sub rsp, 8",
        "call {begin}",
        "add rsp, 8",
        "mov edi, ebx",
        "lea rsi, [rsp + {info}]",
        "lea rdx, [rsp + {context}]",
        "mov rbx, [rsp + {rbx}]",
        "mov r11, rax",
        "xor eax, eax",
        "jmp r11",
        place = sym place,
        begin = sym begin,
        info = const offset_of!(Frame, info),
        context = const offset_of!(Frame, context),
        rbx = const offset_of!(Frame, context)
            + offset_of!(Context, registers)
            + libc::REG_RBX as usize * size_of::<libc::greg_t>(),
    );
}

/// Copies the kernel's frame to where the handler is to run; returns where it is.
///
/// # Safety
/// The kernel wrote the frame for a signal that is being delivered.
unsafe extern "C" fn place(signal: c_int, frame: *mut Frame) -> *mut Frame {
    // SAFETY: the kernel's frame.
    let mut new = unsafe { frame.read() };
    let interrupted = new.context.pointer();
    let is_movable = stacks::is_ours(frame.addr()) && !stacks::is_ours(interrupted);
    let stays = kept(signal).flags & libc::SA_ONSTACK as u64 != 0 && stacks::has_programs();
    if !is_movable || stays || has_shadow_stack() {
        return frame;
    }
    let (call, makes_call) = call_stack::interrupt(interrupted);
    let pointer = if makes_call { call.pointer } else { interrupted };
    // SAFETY: the kernel's frame.
    let len = unsafe { new.context.vectors_len() };
    let vectors = pointer.wrapping_sub(RED_ZONE + len) & !(VECTORS_ALIGN - 1);
    // The ABI of a function's beginning: 8 above a multiple of 16.
    let at = (vectors.wrapping_sub(size_of::<Placed>()) & !15).wrapping_sub(8);
    if is_paged(pointer) {
        new.return_to = leave as *const () as usize + NOP_LEN;
    }
    let at = with_exposed_provenance_mut::<Placed>(at);
    // SAFETY: below the red zone of the interrupted stack, where the kernel would have written. A
    // missing page is a fault of this thread, which it serves further down the signal stack.
    unsafe {
        new.context.move_vectors(len, vectors);
        at.write(Placed { frame: new, call });
    }
    at.cast()
}

/// Unblocks the signals that the program's handler does not block; returns the handler.
extern "C" fn begin(signal: c_int, frame: &Frame) -> usize {
    let kept = kept(signal);
    let is_blocked = kept.flags & libc::SA_NODEFER as u64 == 0;
    let own = if is_blocked { 1 << (signal - 1) } else { 0 };
    mask::set(frame.context.mask | kept.mask | own);
    kept.handler
}

/// Unwinders look for what lies before a return address.
const NOP_LEN: usize = 1;

/// Where a handler on a paged stack returns to, behind the first instruction. The unwind
/// information says where the interrupted code's registers are: the stack pointer is that of a
/// [`Context`].
///
/// # Safety
/// Not to be called.
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_signal_frame",
        ".cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06",
        ".cfi_escape 0x10, 0, 3, 0x77, 0x90, 0x01",
        ".cfi_escape 0x10, 1, 3, 0x77, 0x88, 0x01",
        ".cfi_escape 0x10, 2, 3, 0x77, 0x98, 0x01",
        ".cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x01",
        ".cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0x00",
        ".cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0x00",
        ".cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x00",
        ".cfi_escape 0x10, 8, 2, 0x77, 0x28",
        ".cfi_escape 0x10, 9, 2, 0x77, 0x30",
        ".cfi_escape 0x10, 10, 2, 0x77, 0x38",
        ".cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0x00",
        ".cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x00",
        ".cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x00",
        ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x00",
        ".cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x00",
        ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x01",
        "nop",
        "mov rbx, rsp",
        "call {close}",
        "mov rdi, rbx",
        "test rax, rax",
        "jz 2f",
        "lea rsp, [rax - {room}]",
        "call {copy_back}",
        "mov rdi, rax",
        "2:",
        "mov rsp, rdi",
        "xor edi, edi",
        "xor esi, esi",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "mov eax, {sigreturn}",
        "syscall",
        "ud2",
        ".cfi_endproc",
        close = sym close,
        room = const ROOM,
        copy_back = sym copy_back,
        sigreturn = const libc::SYS_rt_sigreturn,
    );
}

// The unwind information of `leave` has them.
const _: () = assert!(offset_of!(Context, registers) == 40);

/// Blocks signals, which would use the signal stack; returns its end, or 0 if there is none.
extern "C" fn close() -> usize {
    mask::set(Mask::MAX);
    stacks::end()
}

/// Copies the part of a frame that the kernel needs to the room on the signal stack, which is sure
/// to be present; returns where the context is.
///
/// # Safety
/// `context` is that of a frame that [`place`] has written, and nothing uses the signal stack.
unsafe extern "C" fn copy_back(context: *mut Context) -> *mut Context {
    /// Where the vector state begins.
    const VECTORS: usize = size_of::<Context>().next_multiple_of(VECTORS_ALIGN);
    // SAFETY: as the caller says. Missing pages are faults, served further down.
    let Placed { frame: Frame { context: mut new, .. }, call } =
        unsafe { context.byte_sub(offset_of!(Frame, context)).cast::<Placed>().read() };
    call_stack::resume(call);
    // SAFETY: a copy of the kernel's, which the program may have changed.
    let len = unsafe { new.vectors_len() };
    if VECTORS + len > ROOM {
        return context;
    }
    let at = stacks::end() - ROOM;
    // A coroutine may have moved to another thread.
    new.stack = stacks::current();
    let room = with_exposed_provenance_mut::<Context>(at);
    // SAFETY: above the stack pointer, at the end of the signal stack.
    unsafe {
        new.move_vectors(len, at + VECTORS);
        room.write(new);
    }
    room
}
