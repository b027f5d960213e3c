//! Calls with copies of what their arguments point to.
//!
//! ```text
//! Part (argument, kind, length) per paged pointer --- reserve ---> piece of the bounce buffer
//!   copied in --- call --- copied out: all of it, or as much as the result says
//! ```
//! A pointer to memory that the program may access only in part, or not at all, is left as it is,
//! with that part present: the kernel finds the error, in its own order of checks, or does less.
//! What the kernel writes is copied in as well, because it may leave bytes alone, and copied out
//! even if the call fails: some calls report with EINTR.

use super::access::{self, Access, accessible, copy_in, copy_out};
use super::bounce::Bounce;
use super::range::is_paged;
use super::table::{Argument, Call, Len};
use super::{mask, page};
use highwater_units::PAGE_SIZE;

pub(super) type Arguments = [usize; 6];

/// The longest buffer that is copied. The kernel refuses longer ones, or does less.
const LEN_MAX: usize = 1 << 30;
/// Reads and writes of files go in parts of this length: a buffer is memory beyond the budget.
const PART_LEN: usize = 1 << 20;
/// The longest address or option of a socket.
const AT_MAX: usize = 64 << 10;
/// The kernel looks at as many bits of a set as the process can have files.
const FILES_MAX: usize = 1 << 20;
/// The length of `struct sched_attr` that says 0.
const SCHED_ATTR_LEN: usize = 48;
/// The longest path, with its 0.
pub(super) const PATH_MAX: usize = libc::PATH_MAX as usize;

/// A paged argument of a call.
#[derive(Clone, Copy)]
struct Part {
    argument: usize,
    kind: Argument,
    /// Bytes that are copied.
    len: usize,
    /// Bytes that the kernel may write.
    room: usize,
    copy: *mut u8,
}

/// Makes a call with copies.
pub(super) fn make(call: &Call, arguments: Arguments) -> isize {
    let number = usize::from(call.number);
    match call.number as libc::c_long {
        libc::SYS_read | libc::SYS_write if arguments[2] > PART_LEN => {
            in_parts(arguments, |part| once(number, call.arguments, part))
        }
        libc::SYS_pread64 | libc::SYS_pwrite64 if arguments[2] > PART_LEN => {
            in_parts(arguments, |mut part| {
                part[3] += part[1] - arguments[1];
                once(number, call.arguments, part)
            })
        }
        _ => once(number, call.arguments, arguments),
    }
}

/// A long read or write. After a part that was done in full, a regular file has more, or takes
/// more; of others, the kernel would have waited for the first part only.
fn in_parts(arguments: Arguments, mut one: impl FnMut(Arguments) -> isize) -> isize {
    let [file, buffer, len, ..] = arguments;
    let mut done = 0;
    while done < len {
        let part = (len - done).min(PART_LEN);
        let mut now = arguments;
        (now[1], now[2]) = (buffer + done, part);
        let result = one(now);
        if result < 0 {
            return if done > 0 { done as isize } else { result };
        }
        done += result as usize;
        if (result as usize) < part || !takes_more(file) {
            break;
        }
    }
    done as isize
}

/// Whether a file takes or gives all that is asked for, without waiting for others.
fn takes_more(file: usize) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    let arguments = [file, found.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel fills the structure if it succeeds.
    unsafe {
        let known = page::call(libc::SYS_fstat as usize, arguments) == 0;
        known && matches!(found.assume_init().st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
    }
}

/// Makes a call once; for calls whose arguments are known only when they are made.
pub(super) fn once(number: usize, kinds: &[Argument], mut arguments: Arguments) -> isize {
    for (at, _) in kinds.iter().enumerate().filter(|(_, kind)| **kind == Argument::Int) {
        arguments[at] &= 0xffff_ffff;
    }
    let mut parts = [const { None }; 6];
    for (at, kind) in kinds.iter().enumerate() {
        if is_paged(arguments[at]) {
            parts[at] = part(*kind, at, &arguments);
        }
    }
    let total = parts.iter().flatten().map(|part: &Part| part.room).sum();
    let Some(mut bounce) = Bounce::new(total, 6) else { return -(libc::ENOMEM as isize) };
    let mut given = arguments;
    for part in parts.iter_mut().flatten() {
        let from = arguments[part.argument];
        part.copy = bounce.take(from, part.room);
        // SAFETY: a piece of that length. Memory whose end is not accessible any more was changed
        // by another thread.
        unsafe { copy_in(part.copy, from, part.len) };
        match part.kind {
            // SAFETY: as above; `part` made room for it.
            Argument::String => unsafe { part.copy.add(part.len).write(0) },
            // SAFETY: as above; a piece begins with a multiple of 64.
            Argument::Mask => unsafe {
                let mask = part.copy.cast::<mask::Mask>();
                mask.write(mask::without(mask.read()));
            },
            _ => {}
        }
        given[part.argument] = part.copy as usize;
    }
    // SAFETY: the program's call, on copies of what it points to.
    let mut result = unsafe { page::call(number, given) };
    for part in parts.iter().flatten() {
        let len = written(part, result, &given);
        // SAFETY: the piece.
        let copied = unsafe { copy_out(arguments[part.argument], part.copy, len.min(part.len)) };
        if copied < len {
            result = -(libc::EFAULT as isize);
        }
    }
    result
}

/// What an argument points to, if all of it can be accessed.
fn part(kind: Argument, at: usize, arguments: &Arguments) -> Option<Part> {
    let address = arguments[at];
    let new = |len, room| {
        let copy = std::ptr::null_mut();
        Some(Part { argument: at, kind, len, room, copy })
    };
    let (len, access) = match kind {
        Argument::Number | Argument::Int => return None,
        Argument::String => {
            let len = access::string_len(address, PATH_MAX)?;
            return new(len, len + 1);
        }
        Argument::Mask => (Len::Bytes(8), Access::Read),
        Argument::In(len) => (len, Access::Read),
        Argument::Out(len) | Argument::InOut(len) => (len, Access::Write),
    };
    let whole = bytes(len, address, arguments)?;
    let there = accessible(address, whole, access);
    if there == whole {
        return new(whole, whole);
    }
    match len {
        // The kernel accesses as much as there is.
        Len::At(_) | Len::Bits(_) if there > 0 => new(there, whole),
        _ => {
            access::touch_all(address, there, access);
            None
        }
    }
}

/// How many bytes an argument points to.
fn bytes(len: Len, address: usize, arguments: &Arguments) -> Option<usize> {
    let of = |argument: u8| arguments[usize::from(argument)];
    let len = match len {
        Len::Bytes(bytes) => bytes as usize,
        Len::Of(argument) | Len::Result(argument) => of(argument),
        Len::After(bytes, argument) => of(argument).checked_add(bytes as usize)?,
        Len::Items(size, argument) | Len::ResultItems(size, argument) => {
            of(argument).checked_mul(size as usize)?
        }
        Len::At(argument) => (access::read::<u32>(of(argument))? as usize).min(AT_MAX),
        Len::Bits(argument) => of(argument).min(FILES_MAX).div_ceil(64) * 8,
        Len::Own => match access::read::<u32>(address)? {
            0 => SCHED_ATTR_LEN,
            len => len as usize,
        },
        Len::AfterOwn(bytes) => access::read::<u32>(address)? as usize + bytes as usize,
        Len::Pages(argument) => of(argument).div_ceil(PAGE_SIZE),
        Len::Nodes(argument) => of(argument).saturating_sub(1).div_ceil(64) * 8,
    };
    (len <= LEN_MAX).then_some(len)
}

/// How many bytes of a copy the kernel may have written.
fn written(part: &Part, result: isize, given: &Arguments) -> usize {
    let most = part.room;
    match part.kind {
        Argument::Number | Argument::Int | Argument::String => 0,
        Argument::Mask | Argument::In(_) => 0,
        Argument::Out(Len::Result(_)) => most.min(result.max(0) as usize),
        Argument::Out(Len::ResultItems(size, _)) => {
            most.min(result.max(0) as usize * size as usize)
        }
        Argument::Out(Len::At(argument)) if result >= 0 => {
            // The kernel has written how long the whole would be.
            access::read::<u32>(given[usize::from(argument)])
                .map_or(0, |len| most.min(len as usize))
        }
        Argument::Out(Len::At(_)) => 0,
        Argument::Out(_) | Argument::InOut(_) => part.len,
    }
}

/// Makes a call with its own pointers, which are touched when it fails with EFAULT.
pub(super) fn in_place(number: usize, arguments: Arguments) -> isize {
    const FAULT: isize = -(libc::EFAULT as isize);
    loop {
        // SAFETY: the program's call.
        let result = unsafe { page::call(number, arguments) };
        let missing = || arguments.into_iter().filter(|at| is_paged(*at));
        let touch = |at| access::touch(at, Access::Write) || access::touch(at, Access::Read);
        if result != FAULT || !missing().all(touch) {
            return result;
        }
    }
}
