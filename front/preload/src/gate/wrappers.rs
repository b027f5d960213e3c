//! C library functions that the gate carries out itself.
//!
//! - Calls with pointers in structures: the filter sees only the structure's address.
//! - pthread_create: each thread has a signal stack.
//! - system and popen: the C library blocks signals around their exec.
//!
//! Without the gate they jump to the next functions of their names.

use super::calls::TABLE;
use super::copied;
use super::range::is_paged;
use super::state::{is_on, is_wanted};
use super::table::{Argument, arguments_of};
use super::{bus, exec, filters, hot, make, mask, own_stack, signals, special, stacks};
use crate::errno::{returned, set_errno};
use crate::native::c_library;
use crate::next::{Next, looks};
use crate::{later, start};
use highwater_os::helper;
use libc::{c_int, c_long, c_ulong, c_void};
use std::mem::transmute;

/// The system call of a C library function that passes its arguments on.
extern "C" fn passed<const NUMBER: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    returned(make::make(NUMBER, [a, b, c, d, e, f], None))
}

/// preadv2 and pwritev2: the kernel takes the position in two halves, of which the second is not
/// used here.
extern "C" fn at_position<const NUMBER: usize>(
    a: usize,
    b: usize,
    c: usize,
    position: usize,
    flags: usize,
) -> isize {
    // Position -1, the file's own, is -1 in both halves.
    let upper = if position == usize::MAX { usize::MAX } else { 0 };
    returned(make::make(NUMBER, [a, b, c, position, upper, flags], None))
}

/// Defines functions which are those of the gate, while it is on.
macro_rules! diverted {
    ($($name:ident => $ours:expr;)*) => {
        /// Looks the next functions up when the library is loaded.
        fn learn_diverted() {
            $($name::NEXT.learn();)*
        }

        $(pub(super) mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            extern "C" fn look() -> usize {
                if is_on() { $ours as *const () as usize } else { NEXT.get() }
            }

            looks!($name, look);
        })*
    };
}

diverted! {
    readv => passed::<{ libc::SYS_readv as usize }>;
    writev => passed::<{ libc::SYS_writev as usize }>;
    preadv => passed::<{ libc::SYS_preadv as usize }>;
    preadv64 => passed::<{ libc::SYS_preadv as usize }>;
    pwritev => passed::<{ libc::SYS_pwritev as usize }>;
    pwritev64 => passed::<{ libc::SYS_pwritev as usize }>;
    preadv2 => at_position::<{ libc::SYS_preadv2 as usize }>;
    preadv64v2 => at_position::<{ libc::SYS_preadv2 as usize }>;
    pwritev2 => at_position::<{ libc::SYS_pwritev2 as usize }>;
    pwritev64v2 => at_position::<{ libc::SYS_pwritev2 as usize }>;
    sendmsg => passed::<{ libc::SYS_sendmsg as usize }>;
    recvmsg => passed::<{ libc::SYS_recvmsg as usize }>;
    sendmmsg => passed::<{ libc::SYS_sendmmsg as usize }>;
    recvmmsg => passed::<{ libc::SYS_recvmmsg as usize }>;
    setsockopt => passed::<{ libc::SYS_setsockopt as usize }>;
    vmsplice => passed::<{ libc::SYS_vmsplice as usize }>;
    process_vm_readv => passed::<{ libc::SYS_process_vm_readv as usize }>;
    process_vm_writev => passed::<{ libc::SYS_process_vm_writev as usize }>;
    sigaltstack => passed::<{ libc::SYS_sigaltstack as usize }>;
    ppoll => wait_for_files;
    __ppoll_chk => wait_for_files;
    pselect => wait_for_sets;
    epoll_pwait => wait_for_events::<{ libc::SYS_epoll_pwait as usize }>;
    epoll_pwait2 => wait_for_events::<{ libc::SYS_epoll_pwait2 as usize }>;
    sigsuspend => suspend;
    aio_read => refuse;
    aio_read64 => refuse;
    aio_write => refuse;
    aio_write64 => refuse;
    aio_fsync => refuse;
    aio_fsync64 => refuse;
    lio_listio => refuse;
    lio_listio64 => refuse;
    getaddrinfo_a => refuse_lookup;
    system => run_command;
    popen => open_command;
}

/// The gate's function for a number that is given to syscall(2), with its first arguments, if it
/// has pointers in structures.
pub(crate) fn function_for(number: c_long, arguments: [usize; 3]) -> Option<usize> {
    // The call may keep this process from being served later.
    later::begin();
    let restricts = restricts(number, arguments);
    if restricts {
        prepare_for_filter();
    }
    let hides = matches!(
        number,
        libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_sendmsg
            | libc::SYS_recvmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvmmsg
            | libc::SYS_setsockopt
            | libc::SYS_vmsplice
            | libc::SYS_process_vm_readv
            | libc::SYS_process_vm_writev
            | libc::SYS_rt_sigprocmask
            | libc::SYS_rt_sigaction
            | libc::SYS_sigaltstack
    );
    ((hides || restricts) && is_on()).then_some(by_number as *const () as usize)
}

/// The program may load a filter now.
fn prepare_for_filter() {
    start::decline();
    bus::expect_restrictions();
}

/// Whether a system call with these first arguments may restrict the process. Firefox asks whether
/// filters are there, with none: that restricts nothing.
fn restricts(number: c_long, [first, second, filter]: [usize; 3]) -> bool {
    match number {
        libc::SYS_seccomp => match first as libc::c_uint {
            libc::SECCOMP_SET_MODE_STRICT => true,
            libc::SECCOMP_SET_MODE_FILTER => filter != 0,
            _ => false,
        },
        libc::SYS_prctl if filters::is_set_by(first) => {
            second != libc::SECCOMP_MODE_FILTER as usize || filter != 0
        }
        _ => false,
    }
}

/// Functions whose threads block all signals, and therefore cannot be served.
extern "C" fn refuse() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// getaddrinfo_a(3), for the same reason.
extern "C" fn refuse_lookup() -> c_int {
    set_errno(libc::ENOSYS);
    libc::EAI_SYSTEM
}

/// The gate's function for a request that is given to ioctl(2), if its structure has a pointer.
pub(crate) fn function_for_request(request: c_ulong) -> Option<usize> {
    let hides = request as u32 == special::SIOCGIFCONF;
    (hides && is_on()).then_some(control as *const () as usize)
}

/// ioctl(2).
extern "C" fn control(file: usize, request: usize, argument: usize) -> isize {
    returned(make::make(libc::SYS_ioctl as usize, [file, request, argument, 0, 0, 0], None))
}

/// syscall(2).
extern "C" fn by_number(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    returned(make::make(number, [a, b, c, d, e, f], None))
}

/// A time, which the kernel changes and these functions do not.
type Time = [u64; 2];

/// # Safety
/// `time` is null, or the caller's structure.
unsafe fn time_of(time: *const Time) -> Time {
    // SAFETY: as the caller says.
    if time.is_null() { [0; 2] } else { unsafe { time.read() } }
}

fn address_if<T>(given: bool, value: &T) -> usize {
    address_of(given.then_some(value))
}

fn address_of<T>(value: Option<&T>) -> usize {
    value.map_or(0, |value| (&raw const *value) as usize)
}

/// ppoll(2).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn wait_for_files(
    files: usize,
    count: usize,
    time: *const Time,
    mask: usize,
) -> isize {
    // SAFETY: the caller's structure.
    let copy = unsafe { time_of(time) };
    let time = address_if(!time.is_null(), &copy);
    const KINDS: &[Argument] = arguments_of(TABLE, libc::SYS_ppoll, 5);
    returned(special::with_mask(mask, |set| {
        let arguments = [files, count, time, address_of(set.as_ref()), 8, 0];
        copied::once(libc::SYS_ppoll as usize, KINDS, arguments)
    }))
}

/// pselect(2).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn wait_for_sets(
    count: usize,
    read: usize,
    write: usize,
    except: usize,
    time: *const Time,
    mask: usize,
) -> isize {
    // SAFETY: the caller's structure.
    let copy = unsafe { time_of(time) };
    let time = address_if(!time.is_null(), &copy);
    returned(special::with_mask(mask, |set| {
        special::pselect([count, read, write, except, time, 0], set)
    }))
}

/// epoll_pwait(2) and epoll_pwait2(2), whose time is a number or a structure.
extern "C" fn wait_for_events<const NUMBER: usize>(
    file: usize,
    events: usize,
    count: usize,
    time: usize,
    mask: usize,
) -> isize {
    let kinds = const { arguments_of(TABLE, NUMBER as c_long, 6) };
    returned(special::with_mask(mask, |set| {
        copied::once(NUMBER, kinds, [file, events, count, time, address_of(set.as_ref()), 8])
    }))
}

/// sigsuspend(2).
extern "C" fn suspend(mask: usize) -> isize {
    returned(special::suspend([mask, 8, 0, 0, 0, 0]))
}

unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// Moves the environment out of paged memory: the C library passes it to the child itself. A string
/// that putenv(3) was given is no longer the variable then.
fn unpage_environment() {
    // SAFETY: the program's variable, which must not change while it is read. Strings and array are
    // replaced by copies that are never freed.
    unsafe {
        let mut count = 0;
        while !environ.is_null() && !(*environ.add(count)).is_null() {
            let entry = environ.add(count);
            if is_paged(*entry as usize) {
                *entry = outside((*entry).cast(), libc::strlen(*entry) + 1).cast();
            }
            count += 1;
        }
        if is_paged(environ as usize) {
            environ = outside(environ.cast(), (count + 1) * size_of::<usize>()).cast();
        }
    }
}

/// A copy in the C library's memory, or the original if there is no room.
///
/// # Safety
/// There are `len` bytes.
unsafe fn outside(from: *mut u8, len: usize) -> *mut u8 {
    // SAFETY: as the caller says; a new block of that length.
    unsafe {
        let to = (c_library().malloc)(len).cast::<u8>();
        if to.is_null() {
            return from;
        }
        to.copy_from_nonoverlapping(from, len);
        to
    }
}

/// system(3).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn run_command(command: usize) -> c_int {
    // SAFETY: the C library's function of that name has this type.
    let next = unsafe { transmute::<usize, extern "C" fn(usize) -> c_int>(system::NEXT.get()) };
    unpage_environment();
    exec::with_copies([command, 0, 0], |[command, ..]| next(command)).unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// popen(3).
///
/// # Safety
/// As for the C library's function.
unsafe extern "C" fn open_command(command: usize, mode: usize) -> usize {
    type Popen = extern "C" fn(usize, usize) -> usize;
    // SAFETY: the C library's function of that name has this type.
    let next = unsafe { transmute::<usize, Popen>(popen::NEXT.get()) };
    unpage_environment();
    exec::with_copies([command, 0, 0], |[command, ..]| next(command, mode)).unwrap_or_else(
        |error| {
            set_errno(error);
            0
        },
    )
}

/// prctl(2): may load a filter, or disable the time stamp counter. A dispatch of system calls to
/// the program (Syscall User Dispatch) would catch those of the threads that serve faults: it is
/// refused, as by a kernel without it.
mod process_control {
    use super::*;

    const SET_SYSCALL_USER_DISPATCH: c_int = 59;

    pub(super) static NEXT: Next = Next::new(b"prctl\0");

    extern "C" fn look(option: c_int, mode: usize, filter: usize) -> usize {
        if !matches!(option, libc::PR_SET_NAME | libc::PR_SET_PDEATHSIG) {
            later::begin();
        }
        match option {
            _ if restricts(libc::SYS_prctl, [option as usize, mode, filter]) => {
                prepare_for_filter();
            }
            libc::PR_SET_TSC => bus::expect_restrictions(),
            _ => {}
        }
        if option == SET_SYSCALL_USER_DISPATCH && is_wanted() {
            return refuse as *const () as usize;
        }
        if option == libc::PR_SET_SECCOMP && is_on() {
            return passed::<{ libc::SYS_prctl as usize }> as *const () as usize;
        }
        NEXT.get()
    }

    extern "C" fn refuse() -> c_int {
        set_errno(libc::EINVAL);
        -1
    }

    looks!(prctl, look);
}

static PTHREAD_CREATE: Next = Next::new(b"pthread_create\0");

/// Looks the next functions up when the library is loaded.
pub(crate) fn learn() {
    learn_diverted();
    process_control::NEXT.learn();
    PTHREAD_CREATE.learn();
    TIMER_CREATE.learn();
    hot::learn();
    signals::learn();
    stacks::learn();
    // SAFETY: the thread's own.
    unsafe { libc::dlerror() };
    if is_wanted() {
        // The process that started this one may have blocked them.
        mask::unblock();
        own_stack::learn();
    }
}

static TIMER_CREATE: Next = Next::new(b"timer_create\0");

/// Function and value of a timer (SIGEV_THREAD).
struct Timed {
    run: extern "C" fn(usize),
    value: usize,
}

/// timer_create(2). The C library calls a timer's function with all signals blocked.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn timer_create(
    clock: c_int,
    event: *const libc::sigevent,
    timer: usize,
) -> c_int {
    type CreateTimerFn = unsafe extern "C" fn(c_int, *const libc::sigevent, usize) -> c_int;
    /// Where `struct sigevent` has the function, in words; the value is the first word.
    const FUNCTION_AT: usize = 2;
    // SAFETY: the function of that name has this type; the program's structure.
    unsafe {
        let next = transmute::<usize, CreateTimerFn>(TIMER_CREATE.get());
        let by_thread =
            event.as_ref().filter(|it| is_wanted() && it.sigev_notify == libc::SIGEV_THREAD);
        let Some(event) = by_thread else { return next(clock, event, timer) };
        let mut given: [usize; 8] = (&raw const *event).cast::<[usize; 8]>().read();
        let run = transmute::<usize, extern "C" fn(usize)>(given[FUNCTION_AT]);
        // The timer may expire at any time, even after it is deleted: never freed.
        let timed = Box::into_raw(Box::new(Timed { run, value: given[0] }));
        (given[0], given[FUNCTION_AT]) = (timed as usize, on_time as *const () as usize);
        next(clock, given.as_ptr().cast(), timer)
    }
}

/// Calls a timer's function as a thread that serves its faults.
extern "C" fn on_time(timed: *const Timed) {
    stacks::begin();
    // SAFETY: made by `timer_create`, and never freed.
    let Timed { run, value } = unsafe { &*timed };
    run(*value);
}

/// The body of a thread, and its argument.
#[repr(C)]
struct Body {
    run: usize,
    argument: usize,
}

/// A thread that begins.
struct Thread {
    body: Body,
    /// Its stack is not longer. A stack about which the program says nothing ends with an
    /// inaccessible page.
    stack_len: usize,
}

type CreateFn =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, usize, usize) -> c_int;

/// pthread_create(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    run: usize,
    argument: usize,
) -> c_int {
    // SAFETY: the function of that name has this type; the record is the new thread's.
    unsafe {
        let next = transmute::<usize, CreateFn>(PTHREAD_CREATE.get());
        if !is_wanted() || helper::is_inside() {
            return next(thread, attributes, run, argument);
        }
        // The C library reads them while it blocks signals.
        let copy = attributes.as_ref().map(|given| other_stack(given).unwrap_or(*given));
        let attributes = copy.as_ref().map_or(attributes, |copy| &raw const *copy);
        let mut stack_len = usize::MAX;
        if copy.is_some() {
            libc::pthread_attr_getstacksize(attributes, &mut stack_len);
        }
        let body = Body { run, argument };
        let begun = Box::into_raw(Box::new(Thread { body, stack_len }));
        let begin: unsafe extern "C" fn(*mut Thread) -> *mut c_void = begin;
        let error = next(thread, attributes, begin as usize, begun as usize);
        if error != 0 {
            drop(Box::from_raw(begun));
        }
        error
    }
}

unsafe extern "C" {
    fn pthread_attr_getdetachstate(
        attributes: *const libc::pthread_attr_t,
        state: *mut c_int,
    ) -> c_int;
}

/// Attributes for a stack of the C library's, if the program's is paged: at its upper end are words
/// that the kernel writes when the thread is interrupted and when it ends.
///
/// # Safety
/// `given` is the program's.
unsafe fn other_stack(given: &libc::pthread_attr_t) -> Option<libc::pthread_attr_t> {
    let (mut base, mut len, mut detached) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: as the caller says; the new attributes are valid once they are initialised.
    unsafe {
        libc::pthread_attr_getstack(given, &mut base, &mut len);
        if !is_paged(base as usize) {
            return None;
        }
        let mut other = std::mem::zeroed();
        libc::pthread_attr_init(&mut other);
        libc::pthread_attr_setstacksize(&mut other, len.max(libc::PTHREAD_STACK_MIN));
        pthread_attr_getdetachstate(given, &mut detached);
        libc::pthread_attr_setdetachstate(&mut other, detached);
        Some(other)
    }
}

/// Jumps to a thread's body, so that no frame of this library is on its stack.
///
/// # Safety
/// The record is one of `pthread_create`.
#[unsafe(naked)]
unsafe extern "C" fn begin(_: *mut Thread) -> *mut c_void {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare,
    );
}

/// # Safety
/// The record is one of `pthread_create`, and is not used again.
unsafe extern "C" fn prepare(begun: *mut Thread) -> Body {
    // SAFETY: as the caller says.
    let Thread { body, stack_len } = *unsafe { Box::from_raw(begun) };
    if is_wanted() {
        own_stack::begin(stack_len);
        stacks::begin();
    }
    body
}
