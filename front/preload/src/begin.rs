//! How a process begins: what is found out before anything else runs, and who is served at once.
//!
//! ```text
//! library loaded  -> caller.rs learns who asks; a malloc that is not ours: nothing starts yet
//! constructors of libraries, which may ask for memory
//! __libc_start_main -> with a malloc of its own, the process is served from here on
//! main
//! ```
//! A malloc that a program brings asks for pages with its locks held, and the threads that serve
//! take memory of it: the dynamic loader's, for thread-local blocks. So they are started while
//! nobody can hold these locks. All other processes are served from their first request on.

use crate::{caller, environment, exec, fork, helper, malloc, process};
use libc::{c_char, c_int, c_void};
use std::mem;

/// Runs first of all, since the library is initialised before all others (build.rs).
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
static LOADED: LoadedFn = loaded;

/// The dynamic linker passes what main gets: number of arguments, arguments, environment.
type LoadedFn = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// # Safety
/// `environment` is one, as main gets it.
unsafe extern "C" fn loaded(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    fork::register();
    // SAFETY: as the caller says.
    unsafe { environment::keep(environment) };
    // To look a name up in vain takes memory, of a malloc that may map it.
    process::put_off();
    caller::learn();
    helper::learn();
    exec::learn();
    if malloc::other().is_none() {
        process::allow();
    }
}

type MainFn = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Hook = Option<unsafe extern "C" fn()>;
type StartFn =
    unsafe extern "C" fn(MainFn, c_int, *mut *mut c_char, Hook, Hook, Hook, *mut c_void) -> c_int;

/// What a program's first instructions call, when its libraries are initialised.
///
/// # Safety
/// As for the C library's function, which it calls.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn __libc_start_main(
    main: MainFn,
    count: c_int,
    arguments: *mut *mut c_char,
    init: Hook,
    fini: Hook,
    loader_fini: Hook,
    stack_end: *mut c_void,
) -> c_int {
    process::start_put_off();
    // SAFETY: looks a name up.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_start_main".as_ptr()) };
    assert!(!next.is_null(), "the C library starts programs");
    // SAFETY: what has that name in the C library is this function.
    unsafe {
        let next = mem::transmute::<*mut c_void, StartFn>(next);
        next(main, count, arguments, init, fini, loader_fini, stack_end)
    }
}
