//! The malloc of a library that is searched for names after this one, and whose C++ operators call
//! their own malloc directly, not by name.
//!
//! ```text
//! new    --- jemalloc's operator, from its own arenas, which this library maps
//! delete --- jemalloc's operator, without a size --- free ---> this library's free
//! ```
//! So this library's free and realloc get blocks of that malloc. They lie in mappings of the
//! program, where this library has no blocks.

use crate::caller;
use libc::{c_void, size_t};
use std::ffi::CStr;
use std::mem::transmute;
use std::sync::OnceLock;

/// Functions of the malloc behind this one.
pub(crate) struct Behind {
    pub(crate) free: unsafe extern "C" fn(*mut c_void),
    pub(crate) realloc: unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void,
    pub(crate) usable_size: unsafe extern "C" fn(*mut c_void) -> size_t,
}

/// The malloc behind this one; `None`: there is only the C library's.
#[cold]
pub(crate) fn behind() -> Option<&'static Behind> {
    static FOUND: OnceLock<Option<Behind>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref()
}

fn find() -> Option<Behind> {
    let next = |name: &CStr| {
        // SAFETY: looks a name up.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        (!found.is_null() && !caller::is_inside(found as usize)).then_some(found)
    };
    let (free, realloc) = (next(c"free")?, next(c"realloc")?);
    let usable_size = next(c"malloc_usable_size")?;
    // SAFETY: functions of these names have these types.
    unsafe {
        Some(Behind {
            free: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free),
            realloc: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, size_t) -> _>(
                realloc,
            ),
            usable_size: transmute::<*mut c_void, unsafe extern "C" fn(_) -> size_t>(usable_size),
        })
    }
}
