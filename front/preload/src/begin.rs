//! What the library does before main: look up other libraries, and start the manager of a program
//! that has a malloc of its own.
//!
//! ```text
//! library loaded     caller.rs looks libraries up; with a malloc of its own: nothing starts yet
//! constructors       of libraries, which may allocate
//! __libc_start_main  with a malloc of its own, the process is served from here on
//! main
//! ```
//! Such a malloc maps pages with its locks held, and the manager's threads allocate from it (the
//! dynamic loader's thread-local blocks). So the manager starts while no thread can hold these
//! locks. All other processes are served from their first request on.

use crate::{
    caller, code, environment, exec, fork, gate, helper, malloc, native, paged_stack, pinning,
    start,
};
use libc::{c_char, c_int, c_void};
use std::mem;

/// Runs first, because the library is initialised before all others (build.rs).
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
static LOADED: LoadedFn = loaded;

/// The dynamic linker passes the arguments of main: argument count, arguments, environment.
type LoadedFn = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// # Safety
/// `environment` is the environment that main gets.
unsafe extern "C" fn loaded(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    fork::register();
    // SAFETY: as the caller says.
    unsafe { environment::keep(environment) };
    // A failed lookup of a name allocates, perhaps from a malloc that maps pages.
    start::put_off();
    code::learn();
    paged_stack::learn();
    caller::learn();
    // Takes the loader's lock, which a thread in a later call may have to wait for.
    native::native();
    helper::learn();
    exec::learn();
    pinning::learn();
    gate::learn();
    if malloc::other().is_none() {
        start::allow();
    }
}

type MainFn = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Hook = Option<unsafe extern "C" fn()>;
type StartFn =
    unsafe extern "C" fn(MainFn, c_int, *mut *mut c_char, Hook, Hook, Hook, *mut c_void) -> c_int;

/// The first call of a program's startup code, after its libraries are initialised.
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
    start::start_put_off();
    #[cfg(target_arch = "x86_64")]
    if let Some(path) = environment::static_program() {
        // SAFETY: the arguments are the kernel's; `main`, of highwater, does not run.
        unsafe { crate::static_go::run(path, arguments) };
    }
    // SAFETY: looks a name up.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_start_main".as_ptr()) };
    assert!(!next.is_null(), "the C library starts programs");
    // SAFETY: the C library's function of that name has this type.
    unsafe {
        let next = mem::transmute::<*mut c_void, StartFn>(next);
        next(main, count, arguments, init, fini, loader_fini, stack_end)
    }
}
