//! SIGSYS and SIGBUS belong to the gate: no mask blocks them, and the program's actions for them
//! are kept aside.
//!
//! A trapped call, or a fault, in a thread that blocks them would end the process. So the functions
//! that set masks leave them out; what the program sees differs in these signals only.

use super::copied::{self, Arguments};
use super::mask::{self, Mask, without};
use super::table::Argument::{In, Number, Out};
use super::table::Len::Bytes;
use super::{access, stacks};
use crate::next::Next;
use libc::c_int;
use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

pub(super) static SIGACTION: Next = Next::new(b"sigaction\0");

pub(super) type ActionFn =
    unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// The C library's sigaction; returns the action before.
fn set_action(signal: c_int, action: &libc::sigaction) -> libc::sigaction {
    // SAFETY: zeros are a valid action; the function of that name has this type.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let next = transmute::<usize, ActionFn>(SIGACTION.get());
        next(signal, action, &mut before);
        before
    }
}

/// Sets an action of the gate's; the program's is kept.
pub(super) fn take_over(signal: c_int, action: &libc::sigaction) {
    exchange(signal, Some(Kept::of(&set_action(signal, action))));
}

/// There will be no gate: gives the program's actions back.
pub(super) fn give_back() {
    for signal in RESERVED {
        let Kept { handler, flags, mask } = exchange(signal, None);
        // SAFETY: zeros are a valid action; the kernel's mask is the first word of the C library's.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags as c_int);
            (&raw mut action.sa_mask).cast::<Mask>().write(mask);
            set_action(signal, &action);
        }
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
    for signal in (1..=SIGNALS).filter(|signal| !is_reserved(*signal as c_int)) {
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

/// The gate's signals.
const RESERVED: [c_int; 2] = [libc::SIGSYS, libc::SIGBUS];

/// Whether a signal is one of the gate's.
pub(super) fn is_reserved(signal: c_int) -> bool {
    RESERVED.contains(&signal)
}

/// An action of the program's for a signal of the gate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) handler: usize,
    pub(super) flags: u64,
    pub(super) mask: Mask,
}

impl Kept {
    /// From an action of the C library's kind.
    pub(super) fn of(action: &libc::sigaction) -> Kept {
        // SAFETY: the kernel's mask is the first word of the C library's.
        let mask = unsafe { (&raw const action.sa_mask).cast::<Mask>().read() };
        Kept { handler: action.sa_sigaction, flags: action.sa_flags as u64, mask }
    }
}

/// The program's actions for [`RESERVED`]: handler, flags and mask.
static PROGRAMS: [[AtomicUsize; 3]; RESERVED.len()] =
    [const { [const { AtomicUsize::new(0) }; 3] }; RESERVED.len()];

/// Exchanges the program's action for a signal of the gate's.
pub(super) fn exchange(signal: c_int, new: Option<Kept>) -> Kept {
    let index = RESERVED.iter().position(|reserved| *reserved == signal).expect("the gate's");
    let words = &PROGRAMS[index];
    let before = match new {
        Some(Kept { handler, flags, mask }) => {
            let new = [handler, flags as usize, mask as usize];
            [0, 1, 2].map(|at| words[at].swap(new[at], Relaxed))
        }
        None => words.each_ref().map(|word| word.load(Relaxed)),
    };
    Kept { handler: before[0], flags: before[1] as u64, mask: before[2] as Mask }
}

/// The default action of the kernel.
const DEFAULT: Kept = Kept { handler: libc::SIG_DFL, flags: 0, mask: 0 };

/// Passes a signal that is not the gate's to the program's handler, with the mask that it would
/// have; or does what the kernel does without one.
pub(super) fn pass_on(signal: c_int, info: &mut libc::siginfo_t, context: &mut libc::ucontext_t) {
    let Kept { handler, flags, mask } = exchange(signal, None);
    // A signal that the processor has raised cannot be ignored.
    let is_sent = info.si_code <= 0;
    match handler {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_IGN | libc::SIG_DFL => end_by(signal, is_sent),
        handler => {
            if flags & libc::SA_RESETHAND as u64 != 0 {
                exchange(signal, Some(DEFAULT));
            }
            // SAFETY: the kernel's mask is the first word of the C library's.
            let interrupted = unsafe { (&raw const context.uc_sigmask).cast::<Mask>().read() };
            mask::set(interrupted | mask);
            call(handler, flags, (signal, info, context));
        }
    }
}

/// Takes the default action, which ends the process: now, or when the access faults again.
fn end_by(signal: c_int, is_sent: bool) {
    // SAFETY: zeros are a valid action, the default one.
    unsafe {
        set_action(signal, &std::mem::zeroed());
        if is_sent || signal == libc::SIGSYS {
            libc::raise(signal);
        }
    }
}

type Arguments3<'a> = (c_int, &'a mut libc::siginfo_t, &'a mut libc::ucontext_t);

/// Calls a handler of the program's.
fn call(handler: usize, flags: u64, (signal, info, context): Arguments3<'_>) {
    type Three = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::ucontext_t);
    type One = extern "C" fn(c_int);
    // SAFETY: a handler with SA_SIGINFO takes three arguments, another one the signal's number.
    unsafe {
        match flags & libc::SA_SIGINFO as u64 {
            0 => transmute::<usize, One>(handler)(signal),
            _ => transmute::<usize, Three>(handler)(signal, info, context),
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
    if is_reserved(signal as c_int) {
        let keep = |action: Action| {
            let Action { handler, flags, mask, .. } = action;
            Kept { handler, flags, mask }
        };
        let Kept { handler, flags, mask } = exchange(signal as c_int, given.map(keep));
        let before = Action { handler, flags, restorer: 0, mask };
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
