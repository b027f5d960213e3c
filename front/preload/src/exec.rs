//! exec and posix_spawn: children are served too, even if the program clears the environment.
//!
//! ```text
//! exec*, posix_spawn* -- a program with a sanitizer ------> without this library        target.rs
//!                     |- environment with nothing of ours -> LD_PRELOAD and HIGHWATER_* added
//!                     \- any other ------------------------> as it is
//! ```
//! Daemons clear their environment to protect themselves from inherited settings, not to escape the
//! budget. An environment with one of the library's variables left was made on purpose: a child
//! without `LD_PRELOAD`, or without `HIGHWATER_MEMORY`, is not served.
//!
//! These functions run in children of vfork, which share the parent's memory, and in signal
//! handlers. So they neither allocate nor lock; what they add lies on the stack or in memory that
//! never changes. system and popen are not wrapped: they pass the environment on unchanged.

use crate::environment::{self, PREFIX, PRELOAD, Variables};
use crate::malloc::set_errno;
use crate::target;
use libc::{c_char, c_int, c_void, pid_t};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::{MaybeUninit, transmute};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Strings, ended by a null pointer.
type Strings = *const *const c_char;
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

/// Maximum number of strings of a new environment, or of gathered arguments.
const STRINGS_MAX: usize = 512;
/// Maximum length of LD_PRELOAD with the program's other libraries.
const PRELOAD_MAX: usize = 1024;

/// Memory for a new environment.
struct Scratch {
    strings: [*const c_char; STRINGS_MAX],
    preload: [u8; PRELOAD_MAX],
}

/// Calls `act` with the environment for a child. `program`: path of its file, or null.
///
/// # Safety
/// `program` is a string or null, `environment` is null or an environment.
unsafe fn completed<R>(
    program: *const c_char,
    environment: Strings,
    act: impl FnOnce(Strings) -> R,
) -> R {
    let Some(variables) = environment::variables() else { return act(environment) };
    // SAFETY: as the caller says.
    unsafe {
        if let Some(sanitizer) = sanitizer(program) {
            return without_us(environment, variables, |without| {
                say(program, sanitizer);
                act(without)
            });
        }
        if is_cleared(environment) {
            with_ours(environment, variables, act)
        } else {
            act(environment)
        }
    }
}

/// The sanitizer of a program that is named by its path.
///
/// # Safety
/// `program` is a string or null.
unsafe fn sanitizer(program: *const c_char) -> Option<&'static str> {
    // SAFETY: as the caller says.
    unsafe {
        let is_path = !program.is_null() && CStr::from_ptr(program).to_bytes().contains(&b'/');
        is_path.then(|| target::sanitizer(program)).flatten()
    }
}

/// Writes a line, without allocating.
///
/// # Safety
/// `program` is a string.
unsafe fn say(program: *const c_char, sanitizer: &str) {
    // SAFETY: as the caller says.
    let program = unsafe { CStr::from_ptr(program) };
    let line: [&[u8]; 5] = [
        b"highwater: '",
        program.to_bytes(),
        b"' is built with ",
        sanitizer.as_bytes(),
        b", which has a malloc of its own: it is not paged\n",
    ];
    // SAFETY: the kernel refuses a number that is not open.
    let stream = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    // There is nowhere to report a failed write.
    let _ = rustix::io::writev(stream, &line.map(IoSlice::new));
}

/// Calls `act` with an environment whose LD_PRELOAD does not name this library; if it does not
/// anyway, with the same one.
///
/// # Safety
/// As for [`strings`].
#[inline(never)]
unsafe fn without_us<R>(
    environment: Strings,
    variables: &Variables,
    act: impl FnOnce(Strings) -> R,
) -> R {
    let mut all = [ptr::null(); STRINGS_MAX];
    let mut preload = [0; PRELOAD_MAX];
    // SAFETY: as the caller says.
    for (at, entry) in unsafe { strings(environment) }.enumerate() {
        if at + 1 == STRINGS_MAX {
            return act(environment);
        }
        let libraries = entry.to_bytes().strip_prefix(PRELOAD);
        let own = variables.preload.to_bytes().strip_prefix(PRELOAD).unwrap_or_default();
        let without = libraries.and_then(|libraries| leave_out(libraries, own, &mut preload));
        all[at] = without.unwrap_or(entry).as_ptr();
    }
    act(all.as_ptr())
}

/// LD_PRELOAD without `library`; `None`: the buffer is too small.
fn leave_out<'a>(
    libraries: &[u8],
    library: &[u8],
    buffer: &'a mut [u8; PRELOAD_MAX],
) -> Option<&'a CStr> {
    let mut end = 0;
    let mut add = |bytes: &[u8]| {
        buffer.get_mut(end..end + bytes.len())?.copy_from_slice(bytes);
        end += bytes.len();
        Some(())
    };
    add(PRELOAD)?;
    let others = libraries.split(|byte| matches!(byte, b':' | b' '));
    for other in others.filter(|path| !path.is_empty() && *path != library) {
        add(other)?;
        add(b":")?;
    }
    add(b"\0")?;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// The strings of an environment.
///
/// # Safety
/// `environment` is null, or an environment that does not change.
unsafe fn strings<'a>(environment: Strings) -> impl Iterator<Item = &'a CStr> {
    let entry = move |at: usize| {
        // SAFETY: as the caller says; no null pointer was before this place.
        unsafe { environment.add(at).read().as_ref().map(|entry| CStr::from_ptr(entry)) }
    };
    (0..).map_while(entry).take(if environment.is_null() { 0 } else { usize::MAX })
}

/// Whether an environment has none of the library's variables.
///
/// # Safety
/// As for [`strings`].
unsafe fn is_cleared(environment: Strings) -> bool {
    // SAFETY: as the caller says.
    !unsafe { strings(environment) }.any(|entry| entry.to_bytes().starts_with(PREFIX))
}

/// # Safety
/// As for [`strings`].
#[inline(never)]
unsafe fn with_ours<R>(
    environment: Strings,
    variables: &Variables,
    act: impl FnOnce(Strings) -> R,
) -> R {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    // SAFETY: zeros are valid for both parts, which no other reference reaches.
    let scratch = unsafe {
        scratch.as_mut_ptr().write_bytes(0, 1);
        scratch.assume_init_mut()
    };
    let added = variables.ours.len() + 2;
    let mut at = 0;
    let mut theirs = None;
    // SAFETY: as the caller says.
    for entry in unsafe { strings(environment) } {
        if at + added > STRINGS_MAX {
            return act(environment);
        }
        match entry.to_bytes().strip_prefix(PRELOAD) {
            Some(libraries) => theirs = Some(libraries),
            None => {
                scratch.strings[at] = entry.as_ptr();
                at += 1;
            }
        }
    }
    for entry in &variables.ours {
        scratch.strings[at] = entry.as_ptr();
        at += 1;
    }
    scratch.strings[at] = match theirs.filter(|libraries| !libraries.is_empty()) {
        None => variables.preload.as_ptr(),
        Some(theirs) => match join(&mut scratch.preload, variables.preload.as_bytes(), theirs) {
            Some(joined) => joined.as_ptr(),
            None => return act(environment),
        },
    };
    act(scratch.strings.as_ptr())
}

/// `ours:theirs`, if the buffer has room.
fn join<'a>(buffer: &'a mut [u8; PRELOAD_MAX], ours: &[u8], theirs: &[u8]) -> Option<&'a CStr> {
    let end = ours.len() + 1 + theirs.len();
    buffer.get_mut(..ours.len())?.copy_from_slice(ours);
    *buffer.get_mut(ours.len())? = b':';
    buffer.get_mut(ours.len() + 1..end)?.copy_from_slice(theirs);
    *buffer.get_mut(end)? = 0;
    CStr::from_bytes_until_nul(buffer).ok()
}

fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Calls the next function of a name, with the environment for a child.
macro_rules! call_next {
    ($next:ident as $type:ty, $program:expr, $environment:ident,
     |$completed:ident| ($($argument:expr),*), $absent:expr) => {
        match $next.load(Acquire) {
            0 => $absent,
            // SAFETY: the function of that name has the type of the one defined here, and gets its
            // caller's arguments.
            next => unsafe {
                let next = transmute::<usize, $type>(next);
                completed($program, $environment, |$completed| next($($argument),*))
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
    call_next!(
        EXECVE as ExecFn,
        path,
        environment,
        |all| (path, arguments, all),
        fail(libc::ENOSYS)
    )
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
    call_next!(
        EXECVPE as ExecFn,
        file,
        environment,
        |all| (file, arguments, all),
        fail(libc::ENOSYS)
    )
}

/// fexecve(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn fexecve(file: c_int, arguments: Strings, environment: Strings) -> c_int {
    call_next!(
        FEXECVE as FExecFn,
        ptr::null(),
        environment,
        |all| (file, arguments, all),
        fail(libc::ENOSYS)
    )
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
    call_next!(
        EXECVEAT as ExecAtFn,
        ptr::null(),
        environment,
        |all| (dir, path, arguments, all, flags),
        fail(libc::ENOSYS)
    )
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
    call_next!(
        SPAWN as SpawnFn,
        path,
        environment,
        |all| (pid, path, actions, attributes, arguments, all),
        libc::ENOSYS
    )
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
    call_next!(
        SPAWNP as SpawnFn,
        file,
        environment,
        |all| (pid, file, actions, attributes, arguments, all),
        libc::ENOSYS
    )
}

unsafe extern "C" {
    static environ: Strings;
}

/// The environment of this process.
fn own() -> Strings {
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
    let mut arguments = [ptr::null(); STRINGS_MAX];
    let mut count = 0;
    while !argument(count).is_null() {
        if count + 1 == STRINGS_MAX {
            return fail(libc::E2BIG);
        }
        arguments[count] = argument(count);
        count += 1;
    }
    act(arguments.as_ptr(), &|| argument(count + 1).cast())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn after(environment: &[&CStr]) -> Vec<String> {
        let ours = vec![c"HIGHWATER_MEMORY=1".to_owned()];
        let variables = Variables { ours, preload: c"LD_PRELOAD=/hw.so".to_owned() };
        let entries = environment.iter().map(|entry| entry.as_ptr());
        let entries: Vec<_> = entries.chain([ptr::null()]).collect();
        let text = |entry: &CStr| entry.to_str().unwrap().to_owned();
        // SAFETY: an environment, and the one made from it.
        unsafe { with_ours(entries.as_ptr(), &variables, |all| strings(all).map(text).collect()) }
    }

    #[test]
    fn what_was_cleared_is_added() {
        let ours = ["HIGHWATER_MEMORY=1", "LD_PRELOAD=/hw.so"];
        assert_eq!(after(&[]), ours);
        assert_eq!(after(&[c"A=1", c"LD_PRELOAD="]), [&["A=1"], &ours[..]].concat());
        let joined = ["HIGHWATER_MEMORY=1", "LD_PRELOAD=/hw.so:a.so b.so"];
        assert_eq!(after(&[c"LD_PRELOAD=a.so b.so"]), joined);
    }

    #[test]
    fn other_libraries_stay_where_this_one_is_left_out() {
        let mut buffer = [0; PRELOAD_MAX];
        let mut left =
            |libraries: &[u8]| leave_out(libraries, b"/hw.so", &mut buffer).map(CStr::to_owned);
        assert_eq!(left(b"a.so:/hw.so b.so").as_deref(), Some(c"LD_PRELOAD=a.so:b.so:"));
        assert_eq!(left(b"/hw.so").as_deref(), Some(c"LD_PRELOAD="));
        assert_eq!(left(&[b'x'; PRELOAD_MAX]), None);
    }

    #[test]
    fn what_there_is_no_room_for_stays_as_it_is() {
        assert_eq!(after(&[c"A=1"; STRINGS_MAX]), ["A=1"; STRINGS_MAX]);
        let long = std::ffi::CString::new(format!("LD_PRELOAD={}", "x".repeat(PRELOAD_MAX)));
        let long = long.unwrap();
        assert_eq!(after(&[&long]), [long.to_str().unwrap()]);
    }

    #[test]
    fn one_of_our_variables_is_enough_to_be_left_alone() {
        let is_cleared = |entry: &CStr| {
            // SAFETY: an environment.
            unsafe { is_cleared([entry.as_ptr(), ptr::null()].as_ptr()) }
        };
        assert!(is_cleared(c"LD_PRELOAD=other.so") && !is_cleared(c"HIGHWATER_KSWAPD=2"));
        // SAFETY: no environment is an empty one.
        assert!(unsafe { super::is_cleared(ptr::null()) });
    }
}
