//! SIGSYS and SIGBUS belong to the gate: no mask blocks them, and the program's actions for them
//! are kept aside. Actions whose handlers delivery.rs calls are kept aside, too.
//!
//! A trapped call, or a fault, in a thread that blocks these signals would end the process. So the
//! functions that set masks leave them out; masks that the program reads back differ in these
//! signals only.

use super::copied::{self, Arguments};
use super::kept::{Kept, SIGNALS, is_signal, keep, kept};
use super::mask::{self, Mask, without};
use super::table::Argument::{In, Number, Out};
use super::table::Len::Bytes;
use super::{access, delivery, stacks};
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
    keep(signal, Kept::of(&set_action(signal, action)));
    learn_restorer(signal);
}

/// There will be no gate: gives the program's actions back.
pub(super) fn give_back() {
    for signal in RESERVED {
        // SAFETY: zeros are a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        kept(signal).put(&mut action);
        set_action(signal, &action);
    }
}

/// Whether the program has coroutines with paged stacks.
static COROUTINES: AtomicBool = AtomicBool::new(false);

/// From now on the program's handlers run by way of the signal stack (delivery.rs), because the
/// kernel could not write their frames below the stack pointer of a coroutine.
#[cold]
pub(super) fn expect_coroutines() {
    if !COROUTINES.swap(true, Relaxed) {
        (1..=SIGNALS).for_each(adopt);
    }
}

/// Has the handler run by way of the signal stack that is set for a signal.
pub(super) fn adopt(signal: c_int) {
    if !COROUTINES.load(Relaxed) || is_reserved(signal) || !is_signal(signal) {
        return;
    }
    let mut action = NO_ACTION;
    let is_known = exchange_action(signal as usize, 0, (&raw mut action) as usize) == 0;
    let given = action.kept();
    let adopted = adopted(signal, given);
    if is_known && adopted != given {
        exchange_action(signal as usize, (&raw const *action.put(adopted)) as usize, 0);
    }
}

/// The action that the kernel gets for one of the program's. One with a handler is kept.
pub(super) fn adopted(signal: c_int, given: Kept) -> Kept {
    let Kept { handler, flags, .. } = given;
    let enter = delivery::enter as *const () as usize;
    let is_function = ![libc::SIG_DFL, libc::SIG_IGN, enter].contains(&handler);
    if !COROUTINES.load(Relaxed) || !is_function || !is_signal(signal) {
        return given;
    }
    keep(signal, given);
    let flags = flags | (libc::SA_ONSTACK | libc::SA_SIGINFO) as u64;
    Kept { handler: enter, flags, mask: without(Mask::MAX) }
}

/// The program's action for which the kernel had `had`, if that one was kept `before`.
pub(super) fn programs(had: Kept, before: Kept) -> Kept {
    if had.handler == delivery::enter as *const () as usize {
        return before;
    }
    // A signal that resets its handler leaves flags and mask as they are.
    let was_reset = had.handler == libc::SIG_DFL && had.flags & libc::SA_RESETHAND as u64 != 0;
    match before.handler {
        libc::SIG_DFL | libc::SIG_IGN => had,
        _ if was_reset && mask::is_full(had.mask) => Kept { handler: libc::SIG_DFL, ..before },
        _ => had,
    }
}

/// The handler of [`programs`].
pub(super) fn programs_handler(had: usize, before: Kept) -> usize {
    programs(Kept { handler: had, ..before }, before).handler
}

/// rt_sigaction, with the addresses of two actions of the kernel's kind, or 0.
fn exchange_action(signal: usize, new: usize, old: usize) -> isize {
    let kinds = [Number, In(Bytes(32)), Out(Bytes(32)), Number];
    let arguments = [signal, new, old, size_of::<Mask>(), 0, 0];
    copied::once(libc::SYS_rt_sigaction as usize, &kinds, arguments)
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

const NO_ACTION: Action = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };

impl Action {
    fn kept(&self) -> Kept {
        let Action { handler, flags, mask, .. } = *self;
        Kept { handler, flags, mask }
    }

    fn put(&mut self, Kept { handler, flags, mask }: Kept) -> &mut Action {
        (self.handler, self.flags, self.mask) = (handler, flags, mask);
        self
    }
}

/// The gate's signals.
const RESERVED: [c_int; 2] = [libc::SIGSYS, libc::SIGBUS];

/// Whether a signal is one of the gate's.
pub(super) fn is_reserved(signal: c_int) -> bool {
    RESERVED.contains(&signal)
}

/// The default action of the kernel.
const DEFAULT: Kept = Kept { handler: libc::SIG_DFL, flags: 0, mask: 0 };

/// Passes a signal that is not the gate's to the program's handler, with the mask that it would
/// have; or does what the kernel does without one.
pub(super) fn pass_on(signal: c_int, info: &mut libc::siginfo_t, context: &mut libc::ucontext_t) {
    let Kept { handler, flags, mask } = kept(signal);
    // A signal that the processor has raised cannot be ignored.
    let is_sent = info.si_code <= 0;
    match handler {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_IGN | libc::SIG_DFL => end_by(signal, is_sent),
        handler => {
            if flags & libc::SA_RESETHAND as u64 != 0 {
                keep(signal, DEFAULT);
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
    let given = match new {
        0 => None,
        new => Some(access::read::<Action>(new).ok_or(libc::EFAULT)?),
    };
    let had = replace(signal as c_int, given)?;
    (old == 0 || access::write(old, &had)).then_some(()).ok_or(libc::EFAULT)
}

/// Sets an action of the program's, if one is given; returns the one before.
///
/// # Errors
/// The kernel's error number.
fn replace(signal: c_int, given: Option<Action>) -> Result<Action, i32> {
    if !is_signal(signal) {
        return Err(libc::EINVAL);
    }
    let (before, mut had) = (kept(signal), NO_ACTION);
    if is_reserved(signal) {
        given.iter().for_each(|given| keep(signal, given.kept()));
        return Ok(*had.put(before));
    }
    let new = given.map(|mut given| {
        given.mask = without(given.mask);
        *given.put(adopted(signal, given.kept()))
    });
    let new = new.as_ref().map_or(0, |new| (&raw const *new) as usize);
    let replaced = exchange_action(signal as usize, new, (&raw mut had) as usize);
    result(replaced).inspect_err(|_| keep(signal, before))?;
    Ok(*had.put(programs(had.kept(), before)))
}

/// sigaction(2), once the gate is on: sets `new`, if there is one; returns the action before.
///
/// # Errors
/// The kernel's error number.
pub(super) fn replace_by_library(
    signal: c_int,
    new: Option<&libc::sigaction>,
) -> Result<libc::sigaction, i32> {
    /// The action has a restorer.
    const SA_RESTORER: u64 = 0x0400_0000;
    let restorer = RESTORER.load(Relaxed);
    let given = new.map(|new| {
        let Kept { handler, flags, mask } = Kept::of(new);
        Action { handler, flags: flags | SA_RESTORER, restorer, mask }
    });
    // SAFETY: zeros are a valid action.
    let mut had: libc::sigaction = unsafe { std::mem::zeroed() };
    replace(signal, given)?.kept().put(&mut had);
    Ok(had)
}

/// Where the C library lets handlers return to.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

/// Learns [`RESTORER`] from an action that the C library has set.
fn learn_restorer(signal: c_int) {
    let mut set = NO_ACTION;
    exchange_action(signal as usize, 0, (&raw mut set) as usize);
    RESTORER.store(set.restorer, Relaxed);
}

fn result(result: isize) -> Result<(), i32> {
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}
