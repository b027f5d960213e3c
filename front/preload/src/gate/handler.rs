//! The handler of SIGSYS: it has the trapped call made on the thread's own stack (own_stack.rs).
//! Calls for which that is not possible are made in the handler.

use super::copied::Arguments;
use super::page::PAGE;
use super::range::{RANGE, is_paged};
use super::{actions, make, mask, own_stack, page, special, stacks};
use crate::caller;
use crate::errno::{errno, set_errno};
use highwater_units::PAGE_SIZE;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Of `si_code`: the signal comes from a filter.
const SYS_SECCOMP: i32 = 1;

/// Whether the call of [`is_trapped`] was trapped.
static TRAPPED: AtomicBool = AtomicBool::new(false);

/// An address that no process maps: the last byte before the end of the range.
const PROBE: usize = RANGE.end - 1;

/// Installs the handler. It runs on the thread's signal stack: a coroutine's stack may be paged,
/// and the kernel could not write the frame there. Signals wait until it returns, or unblocks them.
pub(super) fn install() {
    // SAFETY: zeros are a valid sigaction; the handler takes the three arguments of SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsys as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        // Not by sigfillset, which leaves out the C library's own signals.
        (&raw mut action.sa_mask).cast::<mask::Mask>().write(mask::without(mask::Mask::MAX));
        actions::take_over(libc::SIGSYS, &action);
    }
}

/// Whether a filter traps calls of this process already.
pub(super) fn is_trapped() -> bool {
    // SAFETY: fails: there is no path at this address. Not by page.rs, which the filter lets
    // through.
    unsafe { libc::syscall(libc::SYS_access, PROBE, 0) };
    TRAPPED.load(Relaxed)
}

/// The address behind the instruction that made a trapped call; 0: the signal is not of a filter.
fn origin(info: &libc::siginfo_t) -> usize {
    /// Where siginfo_t has `si_call_addr`.
    const CALL_AT: usize = 16;
    if info.si_code != SYS_SECCOMP {
        return 0;
    }
    // SAFETY: the signal is of a filter: the address is there.
    unsafe { (&raw const *info).byte_add(CALL_AT).cast::<usize>().read() }
}

/// Whether a call was trapped by our filter, and not by one of the program's. Ours lets calls from
/// the page of the gate through, and calls without a paged pointer.
fn is_ours(origin: usize, arguments: &Arguments) -> bool {
    let is_gate = (PAGE..=PAGE + PAGE_SIZE).contains(&origin);
    origin != 0 && !is_gate && arguments.iter().any(|at| is_paged(*at))
}

extern "C" fn on_sigsys(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a siginfo and a ucontext that live while the handler runs.
    let (info, context) = unsafe { (&mut *info, &mut *context.cast::<libc::ucontext_t>()) };
    let register = |at: i32| context.uc_mcontext.gregs[at as usize] as usize;
    let arguments =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(register);
    let (number, stack) = (register(libc::REG_RAX), register(libc::REG_RSP));
    let origin = origin(info);
    if !is_ours(origin, &arguments) {
        return actions::pass_on(signal, info, context);
    }
    if number == libc::SYS_madvise as usize && caller::is_own(origin) {
        // The manager drops pages where a filter refuses process_madvise.
        // SAFETY: the manager's call.
        let result = unsafe { page::call(number, arguments) };
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
        return;
    }
    let saved = errno();
    stacks::give(context);
    if arguments[0] == PROBE {
        TRAPPED.store(true, Relaxed);
    }
    if is_paged(stack) {
        actions::expect_coroutines();
    }
    let brief = is_brief(number, &arguments);
    if brief || !own_stack::divert(number, &arguments, context) {
        if !brief {
            unblock(context);
        }
        let result = make::make(number, arguments, Some(&mut *context));
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
    }
    set_errno(saved);
}

/// Whether a call is made in the handler, with signals blocked, because it waits for nothing. The
/// first three change state that the return from the signal restores. The others are frequent.
fn is_brief(number: usize, arguments: &Arguments) -> bool {
    match number as libc::c_long {
        libc::SYS_rt_sigprocmask | libc::SYS_rt_sigaction | libc::SYS_sigaltstack => true,
        libc::SYS_futex => !special::may_wait(arguments[1]),
        libc::SYS_clock_gettime | libc::SYS_gettimeofday | libc::SYS_epoll_ctl => true,
        _ => false,
    }
}

/// Sets the mask of the interrupted code, which may be that of a fault's handler already.
fn unblock(context: &libc::ucontext_t) {
    // SAFETY: the kernel's mask is the first word of the C library's.
    let interrupted = unsafe { (&raw const context.uc_sigmask).cast::<mask::Mask>().read() };
    if !mask::is_full(interrupted) {
        mask::set(interrupted);
    }
}
