//! A signal stack for each thread, in memory that is not paged.
//!
//! The kernel writes a signal's frame where the handler is to run. On a paged stack, such as a
//! coroutine's or one that the program has for its handlers, the page may be missing, and the
//! process would be killed. So each thread has a stack of ours, on which the gate's handler runs
//! and, if the program has set a signal stack, the program's handlers; the program's own stays
//! unused. Pages of ours take memory once they are used.

use super::{access, bounce, call_stack, exec, mask, page, state};
use crate::stack::{LEN, call_on, map};
use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use libc::c_int;
use rustix::thread::gettid;
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

impl Stack {
    fn holds(&self, pointer: usize) -> bool {
        pointer.wrapping_sub(self.base) < self.len
    }

    /// Whether this stack is to stay set for the thread: ours is; and so is none, in another thread
    /// with the same variables, made by a raw clone.
    fn stays(&self) -> bool {
        let has_none = || self.len == 0 && OWNER.get() != gettid().as_raw_nonzero().get();
        !OURS.get().is_null() && (self.base == ours().base || has_none())
    }
}

const NONE: Stack = Stack { base: 0, flags: libc::SS_DISABLE, len: 0 };
const SS_AUTODISARM: i32 = i32::MIN;

thread_local! {
    /// The stack of this thread; null before [`add`].
    static OURS: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    /// The number of the thread that got it.
    static OWNER: Cell<i32> = const { Cell::new(0) };
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

/// Sets a stack of ours for this thread; `false` if it is set, or cannot be: there is no memory, or
/// the thread runs on the program's signal stack.
pub(super) fn add() -> bool {
    let mut before = NONE;
    if !OURS.get().is_null() {
        // SAFETY: asks the kernel, into a structure that lives for the call.
        unsafe { call(ptr::null(), &raw mut before) };
    }
    if before.stays() || !install(|| set_ours(&raw mut before)) {
        return false;
    }
    keep(before);
    true
}

/// Sets a stack of ours for the interrupted thread; `false` if it is set, or cannot be: there is no
/// memory, or the thread runs on the program's signal stack, which the return from that signal
/// would set again.
pub(super) fn give(context: &mut libc::ucontext_t) -> bool {
    extern "C" fn set() -> c_int {
        set_ours(ptr::null_mut())
    }
    let libc::stack_t { ss_sp, ss_flags, ss_size } = context.uc_stack;
    let before = Stack { base: ss_sp as usize, flags: ss_flags, len: ss_size };
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    if before.stays() || before.holds(pointer) || is_ours(pointer) {
        return false;
    }
    // The handler may run on the program's signal stack, and the kernel changes none that is in
    // use: from Linux 6.12 on not at the return from the signal either. So the call is made on the
    // new stack.
    // SAFETY: the end of a stack that is not set, so nothing runs on it.
    if !install(|| unsafe { call_on(OURS.get().wrapping_add(LEN), set) }) {
        return false;
    }
    keep(before);
    // The return from the signal sets it once more.
    context.uc_stack = current();
    true
}

/// This thread's stack of ours, as contexts have it.
pub(super) fn current() -> libc::stack_t {
    let Stack { base, flags, len } = ours();
    libc::stack_t { ss_sp: base as *mut _, ss_flags: flags, ss_size: len }
}

/// Whether the program has set a signal stack for this thread.
pub(super) fn has_programs() -> bool {
    THEIRS.get().flags & libc::SS_DISABLE == 0
}

/// The end of this thread's stack of ours; 0: it has none.
pub(super) fn end() -> usize {
    let base = OURS.get();
    if base.is_null() { 0 } else { base as usize + LEN }
}

/// Maps a stack for this thread, unless it has one, and sets it by `set`, which returns minus an
/// error number. The stack is no longer set once the thread returns from a signal that had come
/// before this call: the return restores the setting of that time.
fn install(set: impl FnOnce() -> c_int) -> bool {
    let is_new = OURS.get().is_null();
    if is_new {
        let Some(base) = map() else { return false };
        OURS.set(base);
        OWNER.set(gettid().as_raw_nonzero().get());
    }
    let is_set = set() == 0;
    if is_new && !is_set {
        let base = OURS.replace(ptr::null_mut());
        // SAFETY: just mapped, and not set.
        unsafe { sys::unmap(base, LEN) };
    }
    is_set
}

/// This thread's stack of ours, without its closed page.
fn ours() -> Stack {
    Stack { base: OURS.get() as usize + PAGE_SIZE, flags: 0, len: LEN - PAGE_SIZE }
}

/// Sets this thread's stack of ours, and writes what was set `before`, unless null; minus an error
/// number if the kernel refuses.
fn set_ours(before: *mut Stack) -> c_int {
    let ours = ours();
    // SAFETY: structures that live for the call; the stack is unmapped only when it is not set.
    unsafe { call(&raw const ours, before) }
}

/// sigaltstack(2).
///
/// # Safety
/// As for the system call.
unsafe fn call(new: *const Stack, old: *mut Stack) -> c_int {
    let arguments = [new as usize, old as usize, 0, 0, 0, 0];
    // SAFETY: as the caller says.
    unsafe { page::call(libc::SYS_sigaltstack as usize, arguments) as c_int }
}

/// The thread has a stack of ours, and had one of the program's before.
fn keep(before: Stack) {
    // In a signal's context the kernel says by the length whether there is one.
    let flags = before.flags & SS_AUTODISARM;
    THEIRS.set(if before.len == 0 { NONE } else { Stack { flags, ..before } });
    let key = KEY.load(Relaxed);
    if key > 0 {
        // SAFETY: a key that was made; its value only has to differ from null.
        unsafe { libc::pthread_setspecific(key - 1, OURS.get().cast()) };
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
    // SAFETY: takes the stack away, unless the thread runs on it.
    if unsafe { call(&raw const none, ptr::null_mut()) } == 0 {
        OURS.set(ptr::null_mut());
        // SAFETY: mapped by `add`, and not set any more.
        unsafe { sys::unmap(base.cast(), LEN) };
    }
    bounce::forget();
    call_stack::forget();
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

/// Begins a process: a forked child's thread has the stack, and another number.
pub(super) fn begin_process() {
    if !OURS.get().is_null() {
        OWNER.set(gettid().as_raw_nonzero().get());
    }
    begin();
}

/// Begins a thread: the gate's signals unblocked, and a stack if the gate is on. Another thread may
/// turn it on later.
pub(super) fn begin() {
    mask::unblock();
    if state::is_on() {
        add();
    }
}
