//! Arguments that come from C: pointers that may be null, and strings.

use crate::status::Failure;
use crate::status::highwater_status::{HIGHWATER_ERROR_NULL, HIGHWATER_ERROR_SETTING};
use std::ffi::{CStr, c_char};

/// The value that an argument points to.
///
/// # Safety
/// `pointer` is null, or points to a value that nothing changes for `'a`.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// The value that an argument points to, for writing.
///
/// # Safety
/// `pointer` is null, or points to a value that nothing else uses for `'a`.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// The place for a result, which is set to `first` at once.
///
/// # Safety
/// `pointer` is null, or points to memory that nothing else uses for `'a`; it may hold anything.
pub(crate) unsafe fn place<'a, T>(
    pointer: *mut T,
    first: T,
    name: &str,
) -> Result<&'a mut T, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: memory for a value, as the caller promises.
    unsafe {
        pointer.write(first);
        Ok(&mut *pointer)
    }
}

/// An argument that is a string.
///
/// # Safety
/// `pointer` is null, or points to a NUL-terminated string that does not change for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|_| {
        let shown = bytes.to_string_lossy();
        Failure::new(HIGHWATER_ERROR_SETTING, format!("{name} '{shown}' is not UTF-8"))
    })
}

/// Refuses a pointer to data that is null.
pub(crate) fn expect_data<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Err(null(name)) } else { Ok(()) }
}

fn null(name: &str) -> Failure {
    Failure::new(HIGHWATER_ERROR_NULL, format!("{name} is NULL"))
}
