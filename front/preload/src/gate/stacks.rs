//! A signal stack for each thread, in memory that is not paged.
//!
//! The kernel writes a signal's frame where the handler is to run. On a paged stack, such as a
//! coroutine's or one that the program has for its handlers, the page may be missing, and the
//! process would be killed. So each thread has a stack of ours, on which the gate's handler runs
//! and, if the program has set a signal stack, the program's handlers; the program's own stays
//! unused. Its pages are taken when they are used.

use super::{access, bounce, exec, mask, page, state};
use crate::stack::{LEN, map};
use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[repr(C)]
#[derive(Clone, Copy)]
struct Stack {
    base: usize,
    flags: i32,
    len: usize,
}

const NONE: Stack = Stack { base: 0, flags: libc::SS_DISABLE, len: 0 };
const SS_AUTODISARM: i32 = i32::MIN;

thread_local! {
    /// The stack of this thread; null before [`add`].
    static OURS: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    /// The program's.
    static THEIRS: Cell<Stack> = const { Cell::new(NONE) };
}

/// The key whose destructor frees a thread's stack, plus 1; 0 before it is made.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the key for [`add`]. Threads that end before keep their stacks mapped.
pub(super) fn learn() {
    let mut key = 0;
    // SAFETY: the key is filled if the call succeeds.
    if unsafe { libc::pthread_key_create(&mut key, Some(remove)) } == 0 {
        KEY.store(key + 1, Relaxed);
    }
}

/// Gives this thread a stack; `false` if it has one. Without memory for it the thread has none.
pub(super) fn add() -> bool {
    if !OURS.get().is_null() {
        return false;
    }
    let Some(base) = map() else { return false };
    let mut before = NONE;
    let ours = Stack { base: base as usize + PAGE_SIZE, flags: 0, len: LEN - PAGE_SIZE };
    let arguments = [(&raw const ours) as usize, (&raw mut before) as usize, 0, 0, 0, 0];
    // SAFETY: structures that live for the call; the stack is unmapped only when it is not set.
    if unsafe { page::call(libc::SYS_sigaltstack as usize, arguments) } < 0 {
        // This thread runs on the program's signal stack now.
        // SAFETY: mapped above.
        unsafe { sys::unmap(base, LEN) };
        return false;
    }
    keep(base, before);
    true
}

/// Gives the interrupted thread a stack, which the kernel takes from the context when the handler
/// returns; `false` if it has one, or there is no memory for it.
pub(super) fn give(context: &mut libc::ucontext_t) -> bool {
    if !OURS.get().is_null() {
        return false;
    }
    let Some(base) = map() else { return false };
    let libc::stack_t { ss_sp, ss_flags, ss_size } = context.uc_stack;
    let flags = ss_flags & !libc::SS_ONSTACK;
    keep(base, Stack { base: ss_sp as usize, flags, len: ss_size });
    context.uc_stack = libc::stack_t {
        ss_sp: base.wrapping_add(PAGE_SIZE).cast(),
        ss_flags: 0,
        ss_size: LEN - PAGE_SIZE,
    };
    true
}

/// The thread has a stack of ours, and had one of the program's before.
fn keep(base: *mut u8, before: Stack) {
    OURS.set(base);
    THEIRS.set(before);
    let key = KEY.load(Relaxed);
    if key > 0 {
        // SAFETY: a key that was made; its value only has to differ from null.
        unsafe { libc::pthread_setspecific(key - 1, base.cast()) };
    }
}

/// Whether this runs on the thread's stack of ours.
pub(super) fn is_on_ours() -> bool {
    let here = 0u8;
    is_ours((&raw const here) as usize)
}

/// Whether a stack pointer is in the thread's stack of ours.
pub(super) fn is_ours(pointer: usize) -> bool {
    pointer.wrapping_sub(OURS.get() as usize) < LEN
}

/// Frees the stack of a thread that ends.
///
/// # Safety
/// `base` is the thread's stack.
unsafe extern "C" fn remove(base: *mut libc::c_void) {
    let none = NONE;
    let arguments = [(&raw const none) as usize, 0, 0, 0, 0, 0];
    // SAFETY: takes the stack away, unless the thread runs on it.
    if unsafe { page::call(libc::SYS_sigaltstack as usize, arguments) } == 0 {
        OURS.set(ptr::null_mut());
        // SAFETY: mapped by `add`, and not set any more.
        unsafe { sys::unmap(base.cast(), LEN) };
    }
    bounce::forget();
    exec::forget();
}

/// sigaltstack(2) for the program. `pointer`: the interrupted code's stack pointer.
pub(super) fn exchange(new: usize, old: usize, pointer: Option<usize>) -> Result<(), i32> {
    add();
    let here = 0u8;
    let pointer = pointer.unwrap_or((&raw const here) as usize);
    let is_on = is_ours(pointer);
    let theirs = THEIRS.get();
    let is_set = theirs.flags & libc::SS_DISABLE == 0;
    let given = match new {
        0 => None,
        new => Some(access::read::<Stack>(new).ok_or(libc::EFAULT)?),
    };
    if let Some(given) = given {
        if is_on && is_set {
            return Err(libc::EPERM);
        }
        THEIRS.set(checked(given)?);
    }
    let flags = if is_on && is_set { libc::SS_ONSTACK } else { theirs.flags };
    let before = Stack { flags, ..theirs };
    (old == 0 || access::write(old, &before)).then_some(()).ok_or(libc::EFAULT)
}

fn checked(given: Stack) -> Result<Stack, i32> {
    match given.flags & !SS_AUTODISARM {
        libc::SS_DISABLE => Ok(NONE),
        0 | libc::SS_ONSTACK if given.len < libc::MINSIGSTKSZ => Err(libc::ENOMEM),
        0 | libc::SS_ONSTACK => Ok(Stack { flags: given.flags & SS_AUTODISARM, ..given }),
        _ => Err(libc::EINVAL),
    }
}

/// Begins a thread: the gate's signals unblocked, and a stack if the gate is on. Another thread may
/// turn it on later.
pub(super) fn begin() {
    mask::unblock();
    if state::is_on() {
        add();
    }
}
