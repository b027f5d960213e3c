//! Takes the place of the gate for system calls on machines without one: the gate knows only the
//! calls of x86-64.

pub(crate) use crate::native::call_by_library as call;
use std::io;
use std::ops::Range;

pub(crate) const RANGE: Range<usize> = 0..0;

pub(crate) type Follow = fn(usize, usize, libc::c_int) -> Result<(), libc::c_int>;

const ABSENT: &str = "system calls get copies on x86-64 only";

/// # Errors
/// Always: there is no gate.
pub(crate) fn prepare(_: Follow) -> Result<(), String> {
    Err(ABSENT.to_owned())
}

/// # Errors
/// Always: there is no gate.
pub(crate) fn close(_: bool) -> Result<(), String> {
    Err(ABSENT.to_owned())
}

/// # Errors
/// Always: there is no gate.
pub(crate) fn reserve(_: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn learn() {}

pub(crate) fn give_up() {}

pub(crate) fn exchange_mask(mask: u64) -> u64 {
    mask
}

pub(crate) fn may_be_restricted() -> bool {
    false
}

/// Whether a page is writable is not known here, so no page is touched ahead.
pub(crate) fn is_writable(_: usize) -> bool {
    false
}

pub(crate) fn has_handler(_: libc::c_int) -> bool {
    false
}

pub(crate) fn is_on() -> bool {
    false
}

/// # Errors
/// There is no gate.
pub(crate) fn with_copies<R>(
    strings: [usize; 3],
    act: impl FnOnce([usize; 3]) -> R,
) -> Result<R, i32> {
    Ok(act(strings))
}

pub(crate) fn function_for_request(_: libc::c_ulong) -> Option<usize> {
    None
}

pub(crate) fn function_for(_: libc::c_long, _: [usize; 3]) -> Option<usize> {
    None
}
