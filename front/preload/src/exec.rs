//! exec and posix_spawn: children are served too, even if the program clears the environment.
//!
//! ```text
//! exec*, posix_spawn* -- a sanitizer's program, or musl's -> without this library       target.rs
//!                     |- a static program in Go -> highwater, which loads it        static_go
//!                     |- environment with nothing of ours -> LD_PRELOAD and HIGHWATER_* added
//!                     |- LD_PRELOAD with others' libraries -> this one added before them
//!                     \- any other ------------------------> as it is
//! ```
//! Daemons clear their environment to protect themselves from inherited settings, not to escape the
//! budget, and scripts set LD_PRELOAD to have another malloc. An environment that lacks
//! `LD_PRELOAD` or `HIGHWATER_MEMORY`, but has another one of the library's variables, was made on
//! purpose: such a child is not served.
//!
//! These functions run in children of vfork, which share the parent's memory, and in signal
//! handlers. So they neither allocate nor lock; the variables that they add lie on the stack or in
//! memory that never changes. system and popen are not wrapped: they pass the environment on
//! unchanged.

use crate::child_environment::{Named, STRINGS_MAX, Strings, completed, with_room};
use crate::errno::set_errno;
use crate::{gate, limits};
use libc::{c_char, c_int, c_void, pid_t};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::*};

type ExecFn = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type FExecFn = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type ExecAtFn = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
type SpawnFn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

/// Addresses of the next functions of these names; 0 if there is none.
static EXECVE: AtomicUsize = AtomicUsize::new(0);
static EXECVPE: AtomicUsize = AtomicUsize::new(0);
static FEXECVE: AtomicUsize = AtomicUsize::new(0);
static EXECVEAT: AtomicUsize = AtomicUsize::new(0);
static SPAWN: AtomicUsize = AtomicUsize::new(0);
static SPAWNP: AtomicUsize = AtomicUsize::new(0);

/// Looks the functions up when the library is loaded: a later call may be in a child of vfork.
pub(crate) fn learn() {
    let functions = [
        (&EXECVE, c"execve"),
        (&EXECVPE, c"execvpe"),
        (&FEXECVE, c"fexecve"),
        (&EXECVEAT, c"execveat"),
        (&SPAWN, c"posix_spawn"),
        (&SPAWNP, c"posix_spawnp"),
    ];
    for (next, name) in functions {
        // SAFETY: looks a name up.
        next.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize, Release);
    }
    // An old C library lacks some of them; that is no error of the program.
    // SAFETY: the thread's own.
    unsafe { libc::dlerror() };
}

fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Calls `act` with strings outside paged memory, if the kernel cannot fault on paged memory. The
/// filter sees neither strings in an array elsewhere, nor calls of the C library while it blocks
/// signals. Returns the result of `act`, or an error number.
fn outside(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    act: impl FnOnce(*const c_char, Strings, Strings) -> c_int,
) -> c_int {
    if !gate::is_on() {
        return act(path, arguments, environment);
    }
    let strings = [path as usize, arguments as usize, environment as usize];
    let made = gate::with_copies(strings, |[path, arguments, environment]| {
        act(path as *const c_char, arguments as Strings, environment as Strings)
    });
    made.unwrap_or_else(|error| error)
}

/// [`outside`], for a program that takes this one's place.
fn leaving(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    act: impl FnOnce(*const c_char, Strings, Strings) -> c_int,
) -> c_int {
    outside(path, arguments, environment, |path, arguments, environment| {
        limits::with_own(|| act(path, arguments, environment))
    })
}

/// A copy of the program's structure: the C library uses it while it blocks signals, and cannot
/// fault then. `None`: it may use the program's.
///
/// # Safety
/// `from` is null, or a T.
unsafe fn outside_of<T: Copy>(from: *const c_void) -> Option<T> {
    let copied = gate::is_on() && !from.is_null();
    // SAFETY: as the caller says.
    copied.then(|| unsafe { from.cast::<T>().read() })
}

/// The result of a function that sets errno.
fn failed(result: c_int) -> c_int {
    if result > 0 { fail(result) } else { result }
}

/// Calls the next function of a name, with the environment for a child.
macro_rules! call_next {
    ($next:ident as $type:ty, $program:expr, $environment:ident,
     |$replaced:pat_param, $completed:ident| ($($argument:expr),*), $absent:expr) => {
        match $next.load(Acquire) {
            0 => $absent,
            // SAFETY: the function of that name has the type of the one defined here, and gets its
            // caller's arguments.
            next => unsafe {
                let next = transmute::<usize, $type>(next);
                completed($program, $environment, |$replaced, $completed| next($($argument),*))
            },
        }
    };
}

/// execve(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    failed(leaving(path, arguments, environment, |path, arguments, environment| {
        call_next!(
            EXECVE as ExecFn,
            Named::Path(path),
            environment,
            |replaced, all| (replaced.map_or(path, CStr::as_ptr), arguments, all),
            fail(libc::ENOSYS)
        )
    }))
}

/// execvpe(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    failed(leaving(file, arguments, environment, |file, arguments, environment| {
        call_next!(
            EXECVPE as ExecFn,
            Named::Name(file),
            environment,
            |replaced, all| (replaced.map_or(file, CStr::as_ptr), arguments, all),
            fail(libc::ENOSYS)
        )
    }))
}

/// fexecve(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn fexecve(file: c_int, arguments: Strings, environment: Strings) -> c_int {
    failed(leaving(ptr::null(), arguments, environment, |_, arguments, environment| {
        call_next!(
            FEXECVE as FExecFn,
            Named::File,
            environment,
            |_, all| (file, arguments, all),
            fail(libc::ENOSYS)
        )
    }))
}

/// execveat(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    failed(leaving(path, arguments, environment, |path, arguments, environment| {
        call_next!(
            EXECVEAT as ExecAtFn,
            Named::File,
            environment,
            |_, all| (dir, path, arguments, all, flags),
            fail(libc::ENOSYS)
        )
    }))
}

/// posix_spawn or posix_spawnp, as the address of the next function says.
///
/// # Safety
/// As for these functions.
unsafe fn spawn(
    next_spawn: &AtomicUsize,
    pid: *mut pid_t,
    (program, named): (*const c_char, fn(*const c_char) -> Named),
    actions: *const c_void,
    attributes: *const c_void,
    [arguments, environment]: [Strings; 2],
) -> c_int {
    // SAFETY: the caller's structures. The list of actions itself is the C library's.
    let (by_actions, by_attributes) = unsafe {
        let by_actions = outside_of::<libc::posix_spawn_file_actions_t>(actions);
        (by_actions, outside_of::<libc::posix_spawnattr_t>(attributes))
    };
    let actions = by_actions.as_ref().map_or(actions, |copy| (&raw const *copy).cast());
    let attributes = by_attributes.as_ref().map_or(attributes, |copy| (&raw const *copy).cast());
    let mut child: pid_t = 0;
    let error = outside(program, arguments, environment, |program, arguments, environment| {
        call_next!(
            next_spawn as SpawnFn,
            named(program),
            environment,
            |replaced, all| (
                &raw mut child,
                replaced.map_or(program, CStr::as_ptr),
                actions,
                attributes,
                arguments,
                all
            ),
            libc::ENOSYS
        )
    });
    if error == 0 && !pid.is_null() {
        // SAFETY: the caller's variable.
        unsafe { pid.write(child) };
    }
    error
}

/// posix_spawn(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        spawn(&SPAWN, pid, (path, Named::Path), actions, attributes, [arguments, environment])
    }
}

/// posix_spawnp(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        spawn(&SPAWNP, pid, (file, Named::Name), actions, attributes, [arguments, environment])
    }
}

unsafe extern "C" {
    static environ: Strings;
}

/// The environment of this process.
pub(crate) fn own() -> Strings {
    // SAFETY: the program's variable, which no other thread changes meanwhile.
    unsafe { (&raw const environ).read() }
}

/// execv(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: as the caller says.
    unsafe { execve(path, arguments, own()) }
}

/// execvp(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: as the caller says.
    unsafe { execvpe(file, arguments, own()) }
}

/// Arguments after the first that are passed in registers; the others are on the stack.
#[cfg(target_arch = "x86_64")]
const IN_REGISTERS: usize = 5;
#[cfg(target_arch = "aarch64")]
const IN_REGISTERS: usize = 7;

/// Defines a variadic function of the C library. Its target gets the first argument, a pointer to
/// the saved register arguments, and a pointer to the stack arguments.
macro_rules! with_list {
    ($(#[$doc:meta])* $name:ident, $to:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(_: *const c_char) -> c_int {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {to}",
                "add rsp, 40",
                "ret",
                to = sym $to,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x1, x2, [sp, #16]",
                "stp x3, x4, [sp, #32]",
                "stp x5, x6, [sp, #48]",
                "str x7, [sp, #64]",
                "add x1, sp, #16",
                "add x2, sp, #80",
                "bl {to}",
                "ldp x29, x30, [sp], #80",
                "ret",
                to = sym $to,
            );
        }
    };
}

with_list!(
    /// execl(3).
    execl, execl_of
);
with_list!(
    /// execlp(3).
    execlp, execlp_of
);
with_list!(
    /// execle(3).
    execle, execle_of
);

/// Calls `act` with the arguments up to their null pointer, and a function that reads the argument
/// behind it.
///
/// # Safety
/// Both pointers are those that [`with_list`] passes.
unsafe fn gathered(
    registers: Strings,
    stack: Strings,
    act: impl FnOnce(Strings, &dyn Fn() -> Strings) -> c_int,
) -> c_int {
    // SAFETY: as the caller says, up to the end, and one behind it if `act` says so.
    let argument = |at: usize| unsafe {
        match at.checked_sub(IN_REGISTERS) {
            None => registers.add(at).read(),
            Some(at) => stack.add(at).read(),
        }
    };
    let count = (0..STRINGS_MAX).take_while(|at| !argument(*at).is_null()).count();
    if count == STRINGS_MAX {
        return fail(libc::E2BIG);
    }
    with_room(count + 1, |arguments| {
        for (at, place) in arguments[..count].iter_mut().enumerate() {
            *place = argument(at);
        }
        act(arguments.as_ptr(), &|| argument(count + 1).cast())
    })
}

/// # Safety
/// As for the C library's function, and for [`gathered`].
unsafe extern "C" fn execl_of(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: as the caller says.
    unsafe { gathered(registers, stack, |arguments, _| execve(path, arguments, own())) }
}

/// # Safety
/// As for the C library's function, and for [`gathered`].
unsafe extern "C" fn execlp_of(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: as the caller says.
    unsafe { gathered(registers, stack, |arguments, _| execvpe(file, arguments, own())) }
}

/// # Safety
/// As for the C library's function, and for [`gathered`].
unsafe extern "C" fn execle_of(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: as the caller says; an environment is behind the arguments.
    unsafe { gathered(registers, stack, |arguments, behind| execve(path, arguments, behind())) }
}
