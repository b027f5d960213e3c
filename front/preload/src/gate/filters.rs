//! The program's own filters (classic BPF): for system calls by seccomp(2), or prctl(2) with
//! PR_SET_SECCOMP; for packets by setsockopt(2).
//!
//! ```text
//! sock_fprog { len, filter } --> instructions --- copies of both, outside the range --> kernel
//! ```
//! Once a filter for system calls is loaded, it may refuse any call, or end the process at it. So
//! the copies are in the thread's bounce buffer, which stays mapped, and nothing is copied back.

use super::access::{self, copy_in};
use super::bounce::{Bounce, Keep};
use super::copied::{Arguments, once};
use super::range::is_paged;
use super::table::Argument::{In, InOut, Int, Number, Out};
use super::table::Len::{At, Bytes, Of};
use super::{bus, page};
use libc::{sock_filter, sock_fprog};

/// The most instructions of a filter (BPF_MAXINSNS). The kernel refuses longer ones, and empty
/// ones, before it looks at them.
const INSTRUCTIONS_MAX: usize = 4096;

/// seccomp(2).
pub(super) fn make(arguments: Arguments) -> isize {
    let number = libc::SYS_seccomp as usize;
    let kind = match arguments[0] as libc::c_uint {
        libc::SECCOMP_SET_MODE_FILTER => return restrict(number, arguments),
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
        libc::SECCOMP_MODE_FILTER => restrict(number, arguments),
        // SAFETY: the program's call.
        _ => unsafe { page::call(number, arguments) },
    }
}

/// Loads a filter for system calls.
fn restrict(number: usize, arguments: Arguments) -> isize {
    bus::expect_restrictions();
    load(number, arguments, 2)
}

/// setsockopt(2).
pub(super) fn set_option(arguments: Arguments) -> isize {
    let number = libc::SYS_setsockopt as usize;
    match option_of(arguments) {
        Some(libc::SO_ATTACH_FILTER | libc::SO_ATTACH_REUSEPORT_CBPF) => load(number, arguments, 3),
        _ => once(number, &[Number, Number, Number, In(Of(4)), Int], arguments),
    }
}

/// getsockopt(2). The length of a filter counts instructions.
pub(super) fn option(arguments: Arguments) -> isize {
    let value = match option_of(arguments) {
        Some(libc::SO_GET_FILTER) => {
            let count = access::read::<u32>(arguments[4]).unwrap_or(0);
            let count = (count as usize).min(INSTRUCTIONS_MAX);
            InOut(Bytes((count * size_of::<sock_filter>()) as u32))
        }
        _ => InOut(At(4)),
    };
    let number = libc::SYS_getsockopt as usize;
    once(number, &[Number, Number, Number, value, InOut(Bytes(4))], arguments)
}

/// The option that is set or read, if it is one of sockets of all families.
fn option_of(arguments: Arguments) -> Option<i32> {
    (arguments[1] as i32 == libc::SOL_SOCKET).then_some(arguments[2] as i32)
}

/// Loads a filter, whose structure is an argument. Where the structure or the instructions cannot
/// be read, the kernel gets the program's pointers, and finds the error in its own order of checks.
fn load(number: usize, mut arguments: Arguments, at: usize) -> isize {
    // Dropped after the call.
    let copies = match copies(arguments[at]) {
        Ok(copies) => copies,
        Err(error) => return -(error as isize),
    };
    if let Some((_, program)) = &copies {
        arguments[at] = *program;
    }
    // SAFETY: the program's call, on copies of what it points to.
    unsafe { page::call(number, arguments) }
}

/// Copies of a structure and its instructions, with the structure's address; `None`: the kernel can
/// use the program's own.
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
