//! A stack for each thread on which trapped calls of coroutines are made, because it is not known
//! how much of a coroutine's own stack is left.
//!
//! ```text
//! | calls that handlers make | limit | the call that a signal has interrupted |   end
//! ```
//! Such a call may be interrupted by a signal, whose handler runs on the coroutine's stack
//! (delivery.rs) and may make calls, too. The handler's calls are made below the limit. A handler
//! that is left by siglongjmp leaves the limit where it is. Once no room is left below the limit,
//! or if it is not known whether a call has ended, calls are made in the handler of SIGSYS.
//!
//! Locks: none; all belongs to the thread.

use crate::stack::{LEN, map};
use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use std::cell::Cell;
use std::ptr;

/// The call that a thread makes on this stack, or made last.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Call {
    /// Whether it may still be running.
    is_running: bool,
    /// All of the stack above this address is in use.
    limit: usize,
    /// The coroutine's stack pointer.
    pub(super) pointer: usize,
    /// The coroutine's registers that functions of the C ABI preserve, for garbage collectors: the
    /// other copies of these are on a stack that a collector does not know.
    registers: [usize; 6],
}

const NO_CALL: Call = Call { is_running: false, limit: 0, pointer: 0, registers: [0; 6] };

/// Bytes below the stack pointer that belong to the interrupted function.
pub(super) const RED_ZONE: usize = 128;

/// The registers of [`Call`], in a signal's context.
const PRESERVED: [libc::c_int; 6] =
    [libc::REG_RBX, libc::REG_RBP, libc::REG_R12, libc::REG_R13, libc::REG_R14, libc::REG_R15];

thread_local! {
    /// The stack; null before its first use.
    static BASE: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    static CALL: Cell<Call> = const { Cell::new(NO_CALL) };
}

/// Begins a call of the interrupted coroutine; returns the end of a stack of `room` bytes for it.
/// `None`: there is none.
pub(super) fn begin(context: &libc::ucontext_t, room: usize) -> Option<usize> {
    if BASE.get().is_null() {
        let base = map()?;
        BASE.set(base);
        CALL.set(Call { limit: base as usize + LEN, ..NO_CALL });
    }
    let (call, low) = (CALL.get(), BASE.get() as usize + PAGE_SIZE);
    if call.is_running || call.limit < low + room {
        return None;
    }
    let register = |at: libc::c_int| context.uc_mcontext.gregs[at as usize] as usize;
    let (pointer, registers) = (register(libc::REG_RSP), PRESERVED.map(register));
    CALL.set(Call { is_running: true, pointer, registers, ..call });
    Some(call.limit)
}

/// The thread's call has been made.
pub(super) fn end() {
    CALL.set(Call { is_running: false, ..CALL.get() });
}

/// Whether the stack has a pointer.
fn holds(pointer: usize) -> bool {
    pointer.wrapping_sub(BASE.get() as usize) <= LEN
}

/// A signal interrupts the thread at a stack pointer, and its handler may make calls; returns the
/// argument for [`resume`], and whether the thread was making a call.
pub(super) fn interrupt(pointer: usize) -> (Call, bool) {
    let call = CALL.get();
    let makes_call = holds(pointer);
    if makes_call {
        CALL.set(Call { is_running: false, limit: pointer - RED_ZONE, ..call });
    }
    (call, makes_call)
}

/// The handler of a signal returns.
pub(super) fn resume(call: Call) {
    // Unless it returns in another thread.
    if holds(call.limit) {
        CALL.set(call);
    }
}

/// Frees the stack of a thread that ends.
pub(super) fn forget() {
    let base = BASE.replace(ptr::null_mut());
    let call = CALL.replace(NO_CALL);
    if !base.is_null() && !call.is_running && call.limit == base as usize + LEN {
        // SAFETY: mapped by `begin`, and not in use.
        unsafe { sys::unmap(base, LEN) };
    }
}
