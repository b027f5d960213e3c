//! SIGBUS: serves the fault of this thread, or passes the signal on to the program.
//!
//! The handler runs on the thread's signal stack: a coroutine's stack may be paged, and too small.
//! Other signals wait until it returns: their handlers could touch a page whose entry this thread
//! holds, or leave by longjmp.

use super::mask::{self, Mask};
use super::range::is_paged;
use super::{actions, probe, stacks};
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
        Signalled::Lost | Signalled::Elsewhere if !is_sent(info) && probe::refuse(context) => {}
        Signalled::Lost if may_pass_on(info) => {
            set_lost(info);
            actions::pass_on(signal, info, context);
        }
        Signalled::Elsewhere if may_pass_on(info) => actions::pass_on(signal, info, context),
        Signalled::Elsewhere | Signalled::Lost | Signalled::Nested => {
            // SAFETY: the kernel's structure.
            let address = unsafe { info.si_addr() };
            end(&format!("the memory manager cannot access {address:?}"));
        }
    }
    set_errno(saved);
}

/// Whether the program's handler may run: it may leave by longjmp, so this thread must not be
/// inside the manager, where it may hold locks. A signal that a process has sent can wait for none.
fn may_pass_on(info: &libc::siginfo_t) -> bool {
    !helper::is_inside() && (is_sent(info) || !signals::are_blocked())
}

/// Whether a process has sent the signal.
fn is_sent(info: &libc::siginfo_t) -> bool {
    info.si_code <= 0
}

/// Has the signal say that a page is lost, as the kernel says it of memory that has failed.
fn set_lost(info: &mut libc::siginfo_t) {
    /// Where siginfo_t has `si_addr_lsb`.
    const LSB_AT: usize = 24;
    if info.si_code == libc::BUS_MCEERR_AR {
        return;
    }
    info.si_code = libc::BUS_MCEERR_AR;
    // SAFETY: a field of the kernel's structure, for signals with an address.
    unsafe {
        (&raw mut *info).byte_add(LSB_AT).cast::<i16>().write(highwater_units::PAGE_SHIFT as i16);
    }
}

fn take(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> Signalled {
    if is_sent(info) {
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
