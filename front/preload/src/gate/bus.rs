//! SIGBUS: serves the fault of this thread, or passes the signal on to the program.
//!
//! The handler runs on the thread's signal stack: a coroutine's stack may be paged, and too small.
//! Other signals wait until it returns: their handlers could touch a page whose entry this thread
//! holds, or leave by longjmp.

use super::range::is_paged;
use super::{actions, stacks};
use crate::end::end;
use crate::errno::{errno, set_errno};
use crate::signals;
use highwater_os::helper;
use highwater_serve::{By, Signalled, serve};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the program has set filters for system calls: one might kill a thread that serves a
/// fault.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// The program is about to set a filter for system calls.
pub(super) fn expect_filters() {
    FILTERED.store(true, Relaxed);
}

/// Signals that the processor raises.
const RAISED: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGSYS];

/// Installs the handler.
pub(super) fn install() {
    // SAFETY: zeros are a valid sigaction; the handler takes the three arguments of SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        for signal in RAISED {
            libc::sigdelset(&mut action.sa_mask, signal);
        }
        actions::set_action(libc::SIGBUS, &action);
    }
}

/// The threads that serve a fault of this one.
fn by() -> By {
    // In the middle of the library a thread may hold locks that serving takes.
    let alone = !signals::are_blocked() && !FILTERED.load(Relaxed);
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
    if !helper::is_inside() && stacks::add() {
        // The thread's own stack may be too small: the access is to fault again, on this one. The
        // kernel takes it from here when the handler returns.
        context.uc_stack = stacks::ours();
        return Signalled::Served;
    }
    if is_paged(context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize) {
        actions::expect_coroutines();
    }
    // SAFETY: the arguments of the handler.
    unsafe { serve(info, (&raw mut *context).cast(), by()) }
}
