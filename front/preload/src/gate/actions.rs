//! SIGSYS belongs to the gate: no mask blocks it, and the program's action for it is only kept.
//!
//! A trapped call in a thread that blocks SIGSYS would end the process. So the functions that set
//! masks leave SIGSYS out; what the program sees differs in that signal only.

use super::copied::{self, Arguments};
use super::mask::{Mask, without};
use super::table::Argument::{In, Number, Out};
use super::table::Len::Bytes;
use super::{access, stacks};
use crate::next::Next;
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

pub(super) static SIGACTION: Next = Next::new(b"sigaction\0");

pub(super) type ActionFn =
    unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// The C library's sigaction.
pub(super) fn set_action(signal: c_int, action: &libc::sigaction) {
    // SAFETY: the function of that name has this type, and gets a valid action.
    unsafe {
        let next = std::mem::transmute::<usize, ActionFn>(SIGACTION.get());
        next(signal, action, std::ptr::null_mut());
    }
}

/// Whether the program has coroutines with paged stacks.
static COROUTINES: AtomicBool = AtomicBool::new(false);

/// Handlers run on the signal stack from now on, whatever the program has said: the kernel could
/// not write their frames below the stack pointer of a coroutine. In other programs they stay where
/// they are, because a collector of garbage may look at its stack from there.
#[cold]
pub(super) fn expect_coroutines() {
    if COROUTINES.swap(true, Relaxed) {
        return;
    }
    for signal in (1..=SIGNALS).filter(|signal| *signal != libc::SIGSYS as usize) {
        let mut action = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let known = exchange_action(signal, 0, (&raw mut action) as usize) == 0;
        if known && !matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN) {
            let again = Action { flags: action.flags | libc::SA_ONSTACK as u64, ..action };
            exchange_action(signal, (&raw const again) as usize, 0);
        }
    }
}

/// rt_sigaction, with the addresses of two actions of the kernel's kind, or 0.
fn exchange_action(signal: usize, new: usize, old: usize) -> isize {
    let kinds = [Number, In(Bytes(32)), Out(Bytes(32)), Number];
    let arguments = [signal, new, old, size_of::<Mask>(), 0, 0];
    copied::once(libc::SYS_rt_sigaction as usize, &kinds, arguments)
}

const SIGNALS: usize = 64;

/// The flags of an action, with those that we add.
pub(super) fn flags(given: c_int) -> c_int {
    if COROUTINES.load(Relaxed) { given | libc::SA_ONSTACK } else { given }
}

/// `struct sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: Mask,
}

/// The program's action for SIGSYS: handler and flags.
static PROGRAMS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Exchanges the program's action for SIGSYS.
pub(super) fn exchange(new: Option<(usize, usize)>) -> (usize, usize) {
    let [handler, flags] = &PROGRAMS;
    match new {
        Some(new) => (handler.swap(new.0, Relaxed), flags.swap(new.1, Relaxed)),
        None => (handler.load(Relaxed), flags.load(Relaxed)),
    }
}

/// Passes a SIGSYS that no filter of ours sent to the program's handler, or ends the process.
pub(super) fn pass_on(signal: c_int, info: &mut libc::siginfo_t, context: &mut libc::ucontext_t) {
    let (handler, flags) = exchange(None);
    match handler {
        libc::SIG_IGN => {}
        // SAFETY: the default action ends the process when the signal is delivered again.
        libc::SIG_DFL => unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            set_action(signal, &action);
            libc::raise(signal);
        },
        handler if flags & libc::SA_SIGINFO as usize != 0 => {
            type Three = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::ucontext_t);
            // SAFETY: a handler with SA_SIGINFO has this form.
            let handler = unsafe { std::mem::transmute::<usize, Three>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler without SA_SIGINFO takes the number of the signal.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

/// rt_sigprocmask, rt_sigaction and sigaltstack.
pub(super) fn make(
    number: libc::c_long,
    arguments: Arguments,
    context: Option<&mut libc::ucontext_t>,
) -> isize {
    let result = match (number, context) {
        (libc::SYS_rt_sigprocmask, Some(context)) => change_interrupted(arguments, context),
        (libc::SYS_rt_sigprocmask, None) => change(arguments),
        (libc::SYS_rt_sigaction, _) => act(arguments),
        (_, context) => {
            let pointer = context.map(|it| it.uc_mcontext.gregs[libc::REG_RSP as usize] as usize);
            stacks::exchange(arguments[0], arguments[1], pointer)
        }
    };
    result.map_or_else(|error| -(error as isize), |()| 0)
}

/// Changes the mask of the interrupted code: the kernel takes it from the context.
fn change_interrupted(
    [how, set, old, size, ..]: Arguments,
    context: &mut libc::ucontext_t,
) -> Result<(), i32> {
    if size != size_of::<Mask>() {
        return Err(libc::EINVAL);
    }
    let mask = (&raw mut context.uc_sigmask).cast::<Mask>();
    // SAFETY: the kernel's mask is the first word of the C library's.
    let before = unsafe { mask.read() };
    if set != 0 {
        let given = access::read::<Mask>(set).ok_or(libc::EFAULT)?;
        let after = match how as i32 {
            libc::SIG_BLOCK => before | given,
            libc::SIG_UNBLOCK => before & !given,
            libc::SIG_SETMASK => given,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: as above.
        unsafe { mask.write(without(after)) };
    }
    (old == 0 || access::write(old, &before)).then_some(()).ok_or(libc::EFAULT)
}

fn change([how, set, old, size, ..]: Arguments) -> Result<(), i32> {
    let kinds = [Number, In(Bytes(8)), Out(Bytes(8)), Number];
    let given = match set {
        0 => None,
        set => Some(access::read::<Mask>(set).ok_or(libc::EFAULT)?),
    };
    let given =
        given.map(|mask| if how as i32 == libc::SIG_UNBLOCK { mask } else { without(mask) });
    let set = given.as_ref().map_or(0, |mask| (&raw const *mask) as usize);
    result(copied::once(libc::SYS_rt_sigprocmask as usize, &kinds, [how, set, old, size, 0, 0]))
}

fn act([signal, new, old, size, ..]: Arguments) -> Result<(), i32> {
    if size != size_of::<Mask>() {
        return Err(libc::EINVAL);
    }
    let mut given = match new {
        0 => None,
        new => Some(access::read::<Action>(new).ok_or(libc::EFAULT)?),
    };
    if signal == libc::SIGSYS as usize {
        let new = given.map(|action| (action.handler, action.flags as usize));
        let (handler, flags) = exchange(new);
        let before = Action { handler, flags: flags as u64, restorer: 0, mask: 0 };
        return (old == 0 || access::write(old, &before)).then_some(()).ok_or(libc::EFAULT);
    }
    given.iter_mut().for_each(|action| {
        action.mask = without(action.mask);
        action.flags |= flags(0) as u64;
    });
    let new = given.as_ref().map_or(0, |action| (&raw const *action) as usize);
    result(exchange_action(signal, new, old))
}

fn result(result: isize) -> Result<(), i32> {
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}
