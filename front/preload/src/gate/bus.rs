//! SIGBUS: serves the fault of this thread, or passes the signal on to the program.
//!
//! The handler runs on the thread's signal stack: a coroutine's stack may be paged, and too small.
//! Other signals wait until it returns: their handlers could touch a page whose entry this thread
//! holds, or leave by longjmp.

use super::mask::{self, Mask};
use super::range::is_paged;
use super::{actions, stacks};
use crate::end::end;
use crate::errno::{errno, set_errno};
use crate::{later, signals};
use highwater_os::helper;
use highwater_serve::{By, Signalled, serve};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the program may have restricted its threads, by a filter for system calls or by
/// PR_SET_TSC: a thread that serves a fault might be killed.
static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// Whether the program may have restricted its threads.
pub(crate) fn may_be_restricted() -> bool {
    RESTRICTED.load(Relaxed)
}

/// The program is about to restrict its threads.
pub(super) fn expect_restrictions() {
    RESTRICTED.store(true, Relaxed);
}

/// Installs the handler.
pub(super) fn install() {
    // SAFETY: zeros are a valid sigaction; the handler takes the three arguments of SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        // Not by sigfillset, which leaves out the C library's own signals: one cancels threads.
        (&raw mut action.sa_mask).cast::<Mask>().write(mask::without(Mask::MAX));
        actions::take_over(libc::SIGBUS, &action);
    }
}

/// Which threads serve a fault of this thread.
fn by() -> By {
    // In the middle of the library a thread may hold locks that serving takes. A stack of the
    // program's, on which its signal handler faults, may be too small.
    let alone = !signals::are_blocked() && !RESTRICTED.load(Relaxed) && stacks::is_on_ours();
    if helper::is_inside() || alone { By::ThisThread } else { By::Helper }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let saved = errno();
    // SAFETY: the kernel passes a siginfo and a ucontext that live while the handler runs.
    let (info, context) = unsafe { (&mut *info, &mut *context.cast::<libc::ucontext_t>()) };
    match take(info, context) {
        Signalled::Served => {}
        Signalled::Elsewhere if !helper::is_inside() => actions::pass_on(signal, info, context),
        Signalled::Elsewhere | Signalled::Nested => {
            // SAFETY: the kernel's structure.
            let address = unsafe { info.si_addr() };
            end(&format!("the memory manager cannot access {address:?}"));
        }
    }
    set_errno(saved);
}

fn take(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> Signalled {
    if info.si_code <= 0 {
        // A process has sent it.
        return Signalled::Elsewhere;
    }
    if !helper::is_inside() && stacks::give(context) {
        // The stack that this runs on may be too small: the access is to fault again, on the stack
        // that was just set.
        return Signalled::Served;
    }
    if is_paged(context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize) {
        actions::expect_coroutines();
    }
    // SAFETY: the kernel's structure.
    if later::holds(unsafe { info.si_addr() } as usize) {
        // The access is to fault again, once this process is served.
        later::begin();
        return Signalled::Served;
    }
    // SAFETY: the arguments of the handler.
    unsafe { serve(info, (&raw mut *context).cast(), by()) }
}
