//! The malloc of a library behind this one, whose C++ operators use it without its name.
//!
//! ```text
//! new    --- jemalloc's operator, from its own arenas, which this library maps
//! delete --- jemalloc's operator, without a size --- free ---> this library's free
//! ```
//! So blocks of that malloc come to this one's free and realloc. They lie in mappings of the
//! program, where this library has no blocks.

use crate::caller;
use libc::{c_void, size_t};
use std::ffi::CStr;
use std::mem::transmute;
use std::sync::OnceLock;

/// Functions of such a malloc.
pub(crate) struct Behind {
    pub(crate) free: unsafe extern "C" fn(*mut c_void),
    pub(crate) realloc: unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void,
    pub(crate) usable_size: unsafe extern "C" fn(*mut c_void) -> size_t,
}

/// The malloc behind this one; `None`: there is the C library's alone.
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
    // SAFETY: what has these names are such functions.
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
