//! The program's own filters for system calls: seccomp(2), and prctl(2) with PR_SET_SECCOMP.
//!
//! ```text
//! sock_fprog { len, filter } --> instructions --- copies of both, outside the range --> kernel
//! ```
//! Once the filter is loaded, it may refuse any call, or end the process at it. So the copies are
//! in the thread's bounce buffer, which stays mapped, and nothing is copied back.

use super::access::{self, copy_in};
use super::bounce::{Bounce, Keep};
use super::copied::{Arguments, once};
use super::range::is_paged;
use super::table::Argument::{In, Number, Out};
use super::table::Len::Bytes;
use super::{bus, page};
use libc::{sock_filter, sock_fprog};

/// The most instructions of a filter (BPF_MAXINSNS). The kernel refuses longer ones, and empty
/// ones, before it looks at them.
const INSTRUCTIONS_MAX: usize = 4096;

/// The argument that is a structure, of both calls.
const AT: usize = 2;

/// seccomp(2).
pub(super) fn make(arguments: Arguments) -> isize {
    let number = libc::SYS_seccomp as usize;
    let kind = match arguments[0] as libc::c_uint {
        libc::SECCOMP_SET_MODE_FILTER => return load(number, arguments),
        libc::SECCOMP_GET_ACTION_AVAIL => In(Bytes(4)),
        libc::SECCOMP_GET_NOTIF_SIZES => Out(Bytes(size_of::<libc::seccomp_notif_sizes>() as u32)),
        // SECCOMP_SET_MODE_STRICT has no structure.
        _ => Number,
    };
    once(number, &[Number, Number, kind], arguments)
}

/// Whether a prctl(2) is of this kind.
pub(super) fn is_set_by(option: usize) -> bool {
    option as i32 == libc::PR_SET_SECCOMP
}

/// prctl(2) with PR_SET_SECCOMP. Without a filter, its arguments are numbers.
pub(super) fn by_prctl(arguments: Arguments) -> isize {
    let number = libc::SYS_prctl as usize;
    match arguments[1] as libc::c_uint {
        libc::SECCOMP_MODE_FILTER => load(number, arguments),
        // SAFETY: the program's call.
        _ => unsafe { page::call(number, arguments) },
    }
}

/// Loads a filter. Where the structure or the instructions cannot be read, the kernel gets the
/// program's pointers, and finds the error in its own order of checks.
fn load(number: usize, mut arguments: Arguments) -> isize {
    bus::expect_restrictions();
    // Dropped after the call.
    let copies = match copies(arguments[AT]) {
        Ok(copies) => copies,
        Err(error) => return -(error as isize),
    };
    if let Some((_, program)) = &copies {
        arguments[AT] = *program;
    }
    // SAFETY: the program's call, on copies of what it points to.
    unsafe { page::call(number, arguments) }
}

/// Copies of a structure and its instructions, with the structure's address; `None`: the kernel can
/// do with the program's.
///
/// # Errors
/// ENOMEM.
fn copies(address: usize) -> Result<Option<(Bounce, usize)>, i32> {
    let Some(mut program) = access::read::<sock_fprog>(address) else { return Ok(None) };
    let code = program.filter as usize;
    if !is_paged(address) && !is_paged(code) {
        return Ok(None);
    }
    let count = usize::from(program.len);
    let count = if count <= INSTRUCTIONS_MAX { count } else { 0 };
    let len = count * size_of::<sock_filter>();
    let total = len + size_of::<sock_fprog>();
    let mut bounce = Bounce::new(total, 2, 0, Keep::Used).ok_or(libc::ENOMEM)?;
    let to = bounce.take_for::<sock_filter>(count);
    // SAFETY: a piece of that length.
    if len > 0 && unsafe { copy_in(to.cast(), code, len) } == len {
        program.filter = to;
    }
    let copy = bounce.take_for::<sock_fprog>(1);
    // SAFETY: a piece of that size, aligned to a sector.
    unsafe { copy.write(program) };
    Ok(Some((bounce, copy as usize)))
}
