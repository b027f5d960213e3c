//! Makes system calls with copies of the memory that their arguments point to.
//!
//! ```text
//! Part (argument, kind, length) per paged pointer --- reserve ---> piece of the bounce buffer
//!   copied in --- call --- copied out: all of it, or as much as the result says
//! ```
//! A pointer to memory that the program may not access is left as it is: the kernel finds the
//! error, in its own order of checks. Where the program may access only the first part, memory ends
//! after the copy, too: the kernel does less, or fails.
//!
//! Memory that the kernel writes is copied in as well, because the kernel may leave bytes alone. It
//! is copied out even if the call fails: some calls report with EINTR.

use super::access::{self, Access, accessible};
use super::bounce::{Bounce, Keep};
use super::range::is_paged;
use super::table::{Argument, Len};
use super::{mask, page};
use highwater_units::PAGE_SIZE;

pub(super) type Arguments = [usize; 6];

/// The longest part of a buffer that is copied: memory ends after it.
const LEN_MAX: usize = 1 << 30;
/// The end of the addresses of programs.
const USER_END: usize = (1 << 47) - PAGE_SIZE;
/// The longest address or option of a socket.
const AT_MAX: usize = 64 << 10;
/// The kernel looks at as many bits of a set as the process can have files.
const FILES_MAX: usize = 1 << 20;
/// The length of a `struct sched_attr` whose own length field is 0.
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
    /// The program may not access bytes past `len`, except that it may read this many of them.
    rest: Option<usize>,
    copy: *mut u8,
    /// The contents before the call, if only changes are copied back.
    before: *mut u8,
}

/// The type of a file, as in `st_mode`; `None`: there is no such file.
pub(super) fn kind_of(file: usize) -> Option<libc::mode_t> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    let arguments = [file, found.as_mut_ptr() as usize, 0, 0, 0, 0];
    let kinds = [Argument::Number, Argument::Out(Len::Bytes(144))];
    let result = once(libc::SYS_fstat as usize, &kinds, arguments);
    // SAFETY: the kernel has filled it.
    (result >= 0).then(|| unsafe { found.assume_init() }.st_mode & libc::S_IFMT)
}

/// Makes a system call with copies, once.
pub(super) fn once(number: usize, kinds: &[Argument], arguments: Arguments) -> isize {
    match Pending::new(number, kinds, arguments) {
        Ok(pending) => {
            // SAFETY: the program's call, on copies of what it points to.
            let result = unsafe { page::call(number, pending.given) };
            pending.finish(result)
        }
        Err(error) => -(error as isize),
    }
}

/// A call that has its copies, and is about to be made.
pub(super) struct Pending {
    parts: [Option<Part>; 6],
    arguments: Arguments,
    /// The arguments, with the copies in place of paged pointers.
    pub(super) given: Arguments,
    _bounce: Bounce,
}

impl Pending {
    /// Makes the copies for a system call, or for the C library's function around it.
    ///
    /// # Errors
    /// ENOMEM; EFAULT: a page is lost that was there when it was probed.
    pub(super) fn new(
        number: usize,
        kinds: &[Argument],
        mut arguments: Arguments,
    ) -> Result<Pending, i32> {
        for (at, _) in kinds.iter().enumerate().filter(|(_, kind)| **kind == Argument::Int) {
            arguments[at] &= 0xffff_ffff;
        }
        let mut parts = [const { None }; 6];
        for (at, kind) in kinds.iter().enumerate() {
            if is_paged(arguments[at]) && !is_negative(kind.count(), kinds, &arguments) {
                parts[at] = part(*kind, at, &arguments);
            }
        }
        let total = parts.iter().flatten().map(Part::bounced).sum();
        let last = parts.iter().flatten().filter(|part: &&Part| part.rest.is_some()).count();
        let keep = Keep::of(number, &arguments);
        let mut bounce = Bounce::new(total, 12, last, keep).ok_or(libc::ENOMEM)?;
        let mut given = arguments;
        for part in parts.iter_mut().flatten() {
            let from = arguments[part.argument];
            part.copy = match part.rest {
                None if part.is_window() => bounce.take_end(part.room),
                None => bounce.take(from, part.room),
                Some(len) => {
                    let rest = std::ptr::with_exposed_provenance(from + part.len);
                    // SAFETY: readable, as `part` has checked.
                    let rest = unsafe { std::slice::from_raw_parts(rest, len) };
                    bounce.take_last(part.len, rest).ok_or(libc::ENOMEM)?
                }
            };
            if part.is_compared() {
                part.before = bounce.take_for(part.len);
            }
            if !part.fill(from) {
                return Err(libc::EFAULT);
            }
            given[part.argument] = part.copy as usize;
        }
        Ok(Pending { parts, arguments, given, _bounce: bounce })
    }

    /// Copies what the kernel has written. Takes the result of the call, or minus the error number.
    pub(super) fn finish(self, mut result: isize) -> isize {
        for part in self.parts.iter().flatten() {
            let len = written(part, result, &self.given);
            let to = self.arguments[part.argument];
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
            // SAFETY: a piece, to memory that was accessible; if another thread has unmapped it
            // since, the program ends as by a store of its own.
            let whole = unsafe { part.copy_back(to, len.min(part.len)) };
            if len > part.len || !whole {
                result = -(libc::EFAULT as isize);
            }
        }
        result
    }
}

impl Part {
    /// Bytes of the bounce buffer.
    fn bounced(&self) -> usize {
        self.room + self.rest.unwrap_or(0) + if self.is_compared() { self.len } else { 0 }
    }

    /// Whether the kernel may access more than is copied.
    fn is_window(&self) -> bool {
        matches!(self.kind, Argument::InOut(Len::Window(_)))
    }

    /// Whether bytes that the kernel leaves alone must stay as other threads make them meanwhile:
    /// in structures. A buffer's result tells how much was written.
    fn is_compared(&self) -> bool {
        match self.kind {
            Argument::Out(Len::Result(_) | Len::ResultItems(..) | Len::Of(_)) => false,
            Argument::Out(_) | Argument::InOut(_) => true,
            _ => false,
        }
    }

    /// Copies what the kernel has written; `false`: a page is lost.
    ///
    /// # Safety
    /// The program may write `len` bytes at `to`; the part has as many.
    unsafe fn copy_back(&self, to: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller says; `fill` has filled `before`, if there is one.
        unsafe {
            if self.before.is_null() {
                return access::copy(to, self.copy, len) == len;
            }
            let mut changed = (0..len).filter(|at| *self.copy.add(*at) != *self.before.add(*at));
            changed.all(|at| access::copy(to.add(at), self.copy.add(at), 1) == 1)
        }
    }

    /// Copies what the kernel reads, or may leave alone; `false`: a page is lost.
    fn fill(&self, from: usize) -> bool {
        if let Argument::Out(Len::Result(_) | Len::ResultItems(..)) = self.kind {
            return true;
        }
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: accessible memory, to a piece of that length; a string has room for its 0.
        unsafe {
            if access::copy(self.copy, from, self.len) < self.len {
                return false;
            }
            if !self.before.is_null() {
                self.before.copy_from_nonoverlapping(self.copy, self.len);
            }
            match self.kind {
                Argument::String => self.copy.add(self.len).write(0),
                Argument::Mask => {
                    let mask = self.copy.cast::<mask::Mask>();
                    mask.write_unaligned(mask::without(mask.read_unaligned()));
                }
                _ => {}
            }
        }
        true
    }
}

/// The part for an argument; `None` if the kernel gets the program's own pointer.
fn part(kind: Argument, at: usize, arguments: &Arguments) -> Option<Part> {
    let address = arguments[at];
    let copy = std::ptr::null_mut();
    let new =
        |len, room| Some(Part { argument: at, kind, len, room, rest: None, copy, before: copy });
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
    let there = accessible(address, whole.min(LEN_MAX), access);
    if there == whole {
        return new(whole, whole);
    }
    let readable = match kind {
        Argument::InOut(_) => there.max(accessible(address, whole.min(LEN_MAX), Access::Read)),
        _ => there,
    };
    match len {
        _ if readable == 0 => None,
        // The kernel accesses as much as there is.
        Len::At(_) | Len::Bits(_) | Len::Window(_) if there > 0 => new(there, whole),
        _ => {
            let rest = Some(readable - there);
            new(there, there).map(|part| Part { rest, ..part })
        }
    }
}

/// Whether a count of 32 bits is negative: the kernel refuses it before it looks at the buffer.
fn is_negative(count: Option<u8>, kinds: &[Argument], arguments: &Arguments) -> bool {
    count.map(usize::from).is_some_and(|count| {
        kinds.get(count) == Some(&Argument::Int) && arguments[count] > i32::MAX as usize
    })
}

/// Whether these may be addresses of the program: the kernel refuses all others.
pub(super) fn are_addresses(first: usize, len: usize) -> bool {
    first.checked_add(len).is_some_and(|end| end <= USER_END)
}

/// How many bytes an argument points to.
fn bytes(len: Len, address: usize, arguments: &Arguments) -> Option<usize> {
    let of = |argument: u8| arguments[usize::from(argument)];
    let len = match len {
        Len::Bytes(bytes) | Len::Window(bytes) => bytes as usize,
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
        // The kernel refuses longer ones without a look.
        Len::Nodes(argument) => (of(argument).saturating_sub(1).div_ceil(64) * 8).min(PAGE_SIZE),
    };
    Some(len)
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
