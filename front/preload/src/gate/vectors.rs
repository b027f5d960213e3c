//! Calls with an array of buffers: readv and writev, messages; peers.rs has process_vm_readv.
//!
//! ```text
//! iovec[] of the program --- Vectors: a copy of each paged buffer ---> iovec[] of ours --- call
//! ```
//! A call of more than [`LEN_MAX`] bytes does less than asked, as the kernel may, too. Where a call
//! is wrong, the kernel gets it as it is, and finds the error in its own order of checks.

use super::access::{self, Access, accessible, copy_in, copy_out};
use super::bounce::{Bounce, Keep};
use super::buffer::{BUFFERS_MAX, Buffer};
use super::copied::{Arguments, are_addresses};
use super::page;
use super::peers;
use super::range::is_paged;
use std::time::{Duration, Instant};

/// The most bytes of one call.
const LEN_MAX: usize = 1 << 30;
/// The longest name and control data of a message. The kernel sends less of the latter.
const NAME_MAX: usize = 128;
const CONTROL_MAX: usize = 1 << 20;

const FAULT: isize = -(libc::EFAULT as isize);

/// Whether the kernel reads buffers or writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// It reads them.
    Out,
    /// It writes them.
    In,
}

impl Direction {
    fn access(self) -> Access {
        match self {
            Direction::Out => Access::Read,
            Direction::In => Access::Write,
        }
    }
}

/// Makes a call; `None`: it is not of this kind.
pub(super) fn make(number: usize, arguments: Arguments) -> Option<isize> {
    use Direction::*;
    let made = match number as libc::c_long {
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => array(number, arguments, In),
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => array(number, arguments, Out),
        libc::SYS_vmsplice => array(number, arguments, of_pipe(arguments[0])),
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            Ok(peers::make(number, arguments))
        }
        libc::SYS_sendmsg => message(number, arguments, Out),
        libc::SYS_recvmsg => message(number, arguments, In),
        libc::SYS_sendmmsg => Ok(send_all(arguments)),
        libc::SYS_recvmmsg => Ok(receive_all(arguments)),
        _ => return None,
    };
    Some(match made {
        Ok(result) => result,
        // The kernel finds out what is wrong, in its own order of checks.
        // SAFETY: the program's call.
        Err(libc::EFAULT) => unsafe { page::call(number, arguments) },
        Err(error) => -(error as isize),
    })
}

/// Whether vmsplice fills a pipe or empties it.
fn of_pipe(file: usize) -> Direction {
    let arguments = [file, libc::F_GETFL as usize, 0, 0, 0, 0];
    // SAFETY: numbers.
    let flags = unsafe { page::call(libc::SYS_fcntl as usize, arguments) };
    match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => Direction::In,
        _ => Direction::Out,
    }
}

/// The most buffers that are read at once.
const FEW: usize = 16;

/// The program's array of buffers: a few are read at once, because each read asks the kernel.
struct List {
    address: usize,
    count: usize,
    few: [Buffer; FEW],
}

impl List {
    fn read(address: usize, count: usize) -> Result<List, i32> {
        if count > BUFFERS_MAX {
            return Err(libc::EFAULT);
        }
        let mut list = List { address, count, few: [Buffer { base: 0, len: 0 }; FEW] };
        let len = count.min(FEW) * size_of::<Buffer>();
        // SAFETY: the array has room.
        let got = unsafe { copy_in(list.few.as_mut_ptr().cast(), address, len) };
        if got == len { Ok(list) } else { Err(libc::EFAULT) }
    }

    fn at(&self, index: usize) -> Result<Buffer, i32> {
        match self.few.get(index) {
            Some(buffer) => Ok(*buffer),
            None => access::read(self.address + index * size_of::<Buffer>()).ok_or(libc::EFAULT),
        }
    }

    /// Whether the kernel can use the program's array.
    fn is_unpaged(&self) -> bool {
        let mut few = self.few.iter().take(self.count);
        self.count <= FEW && !is_paged(self.address) && !few.any(|buffer| is_paged(buffer.base))
    }
}

/// The buffers of a call, with copies of those that are paged.
struct Vectors {
    bounce: Bounce,
    /// Of the last buffer, if the program may access only its first part.
    last: Option<Bounce>,
    direction: Direction,
    /// The kernel's array.
    given: *mut Buffer,
    /// The program's, in memory of ours.
    theirs: *mut Buffer,
    count: usize,
}

impl Vectors {
    /// Copies. `room`: bytes of the bounce buffer for the caller, in at most 4 pieces.
    fn new(list: &List, room: usize, direction: Direction, keep: Keep) -> Result<Vectors, i32> {
        let count = list.count;
        let mut copied = 0;
        for index in 0..count {
            let Buffer { base, len } = list.at(index)?;
            if !are_addresses(base, len) {
                return Err(libc::EFAULT);
            }
            copied += if is_paged(base) { len.min(LEN_MAX) } else { 0 };
        }
        let arrays = 2 * count * size_of::<Buffer>();
        let total = copied.min(LEN_MAX) + arrays + room;
        let bounce = Bounce::new(total, count + 6, 0, keep).ok_or(libc::ENOMEM)?;
        let (given, theirs) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut vectors = Vectors { bounce, last: None, direction, given, theirs, count: 0 };
        let array = |bounce: &mut Bounce| bounce.take_for::<Buffer>(count);
        vectors.given = array(&mut vectors.bounce);
        vectors.theirs = array(&mut vectors.bounce);
        let mut left = LEN_MAX;
        for index in 0..count {
            let buffer = list.at(index)?;
            if !vectors.add(buffer, &mut left)? {
                break;
            }
        }
        Ok(vectors)
    }

    /// Adds a buffer; `false`: it is the last, because it is cut, or the kernel gets no further.
    fn add(&mut self, buffer: Buffer, left: &mut usize) -> Result<bool, i32> {
        let (mut whole, mut given) = (true, buffer);
        if is_paged(buffer.base) && buffer.len > 0 {
            if *left == 0 {
                return Ok(false);
            }
            let len = buffer.len.min(*left);
            let there = accessible(buffer.base, len, self.direction.access());
            whole = there == buffer.len;
            if there > 0 {
                let copy = self.piece(buffer.base, there, len)?;
                // SAFETY: a piece of that length.
                let fill = || unsafe { copy_in(copy, buffer.base, there) };
                if self.direction == Direction::Out && fill() < there {
                    // It was there when it was probed.
                    return Err(libc::EFAULT);
                }
                *left -= there;
                given = Buffer { base: copy as usize, len };
            }
        }
        // SAFETY: arrays with room for all buffers of the program.
        unsafe {
            self.given.add(self.count).write(given);
            self.theirs.add(self.count).write(buffer);
        }
        self.count += 1;
        Ok(whole)
    }

    /// Memory for a copy of the first `there` bytes, after which it ends if there are more.
    fn piece(&mut self, address: usize, there: usize, len: usize) -> Result<*mut u8, i32> {
        if there == len {
            return Ok(self.bounce.take(address, len));
        }
        let last = self.last.insert(Bounce::new(there, 1, 1, Keep::Unmapped).ok_or(libc::ENOMEM)?);
        last.take_last(there, &[]).ok_or(libc::ENOMEM)
    }

    /// Copies what the kernel has written, `done` bytes in all; returns the result of the call,
    /// which is EFAULT if a page is lost. It is not made again: the data is taken.
    fn finish(&self, done: isize) -> isize {
        if self.direction == Direction::Out {
            return done;
        }
        let mut left = done.max(0) as usize;
        for index in 0..self.count {
            // SAFETY: written by `add`.
            let (given, theirs) = unsafe { (*self.given.add(index), *self.theirs.add(index)) };
            let len = given.len.min(left);
            if given.base != theirs.base {
                let from = std::ptr::with_exposed_provenance(given.base);
                // SAFETY: a piece of the buffer.
                if unsafe { copy_out(theirs.base, from, len) } < len {
                    return FAULT;
                }
            }
            left -= len;
        }
        done
    }
}

/// readv and its relatives: arguments 1 and 2 are an array and its length.
fn array(number: usize, arguments: Arguments, direction: Direction) -> Result<isize, i32> {
    let list = List::read(arguments[1], arguments[2])?;
    if list.is_unpaged() {
        // SAFETY: the program's call, on memory that is not paged.
        return Ok(unsafe { page::call(number, arguments) });
    }
    let vectors = Vectors::new(&list, 0, direction, Keep::of(number, &arguments))?;
    let mut given = arguments;
    (given[1], given[2]) = (vectors.given as usize, vectors.count);
    // SAFETY: the program's call, with buffers of ours.
    let done = unsafe { page::call(number, given) };
    Ok(vectors.finish(done))
}

/// `struct msghdr` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    name: usize,
    name_len: u32,
    buffers: usize,
    count: usize,
    control: usize,
    control_len: usize,
    flags: u32,
}

/// sendmsg and recvmsg.
fn message(number: usize, arguments: Arguments, direction: Direction) -> Result<isize, i32> {
    let theirs = access::read::<Header>(arguments[1]).ok_or(libc::EFAULT)?;
    if theirs.count > BUFFERS_MAX || (theirs.name_len as i32) < 0 {
        // The kernel refuses it before it looks at the buffers.
        let given = [arguments[0], (&raw const theirs) as usize, arguments[2], 0, 0, 0];
        // SAFETY: the program's call, with a header of ours.
        return Ok(unsafe { page::call(number, given) });
    }
    let list = List::read(theirs.buffers, theirs.count)?;
    let others = [arguments[1], theirs.name, theirs.control];
    if list.is_unpaged() && !others.into_iter().any(is_paged) {
        // SAFETY: the program's call, on memory that is not paged.
        return Ok(unsafe { page::call(number, arguments) });
    }
    let control_len = match direction {
        Direction::Out if theirs.control_len > CONTROL_MAX => return Err(libc::ENOBUFS),
        Direction::Out | Direction::In => theirs.control_len.min(CONTROL_MAX),
    };
    let room = NAME_MAX + control_len + size_of::<Header>();
    let mut vectors = Vectors::new(&list, room, direction, Keep::of(number, &arguments))?;
    let bounce = &mut vectors.bounce;
    let header = bounce.take_for::<Header>(1);
    let mut given = theirs;
    let name_len = (theirs.name_len as usize).min(NAME_MAX);
    if theirs.name != 0 {
        given.name = copied(bounce.take_for(name_len), theirs.name, name_len, direction);
        given.name_len = name_len as u32;
    }
    if theirs.control != 0 {
        let copy = bounce.take_for(control_len);
        given.control = copied(copy, theirs.control, control_len, direction);
        given.control_len = control_len;
    }
    (given.buffers, given.count) = (vectors.given as usize, vectors.count);
    // SAFETY: a piece for it.
    unsafe { header.write(given) };
    let call = [arguments[0], header as usize, arguments[2], 0, 0, 0];
    // SAFETY: the program's call, with memory of ours.
    let done = unsafe { page::call(number, call) };
    let done = vectors.finish(done);
    if direction == Direction::In && done >= 0 {
        // SAFETY: the kernel has changed it.
        let after = unsafe { header.read() };
        if !report(arguments[1], theirs, given, after) {
            return Ok(FAULT);
        }
    }
    Ok(done)
}

/// A copy of a name or of control data; the program's own, if it may not access that.
fn copied(copy: *mut u8, from: usize, len: usize, direction: Direction) -> usize {
    let got = match direction {
        // SAFETY: a piece of that length.
        Direction::Out => unsafe { copy_in(copy, from, len) },
        Direction::In => accessible(from, len, Access::Write),
    };
    if got == len { copy as usize } else { from }
}

/// Copies the parts of a received message other than its data; `false`: a page is lost.
fn report(address: usize, theirs: Header, given: Header, after: Header) -> bool {
    let out = |to: usize, from: usize, len: usize| {
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: pieces of the bounce buffer, of at least that length.
        to == from.addr() || unsafe { copy_out(to, from, len) } == len
    };
    let name_len = after.name_len.min(given.name_len) as usize;
    let control_len = after.control_len.min(given.control_len);
    if !out(theirs.name, given.name, name_len) || !out(theirs.control, given.control, control_len) {
        return false;
    }
    let changed = Header {
        name_len: if theirs.name == 0 { theirs.name_len } else { after.name_len },
        control_len: after.control_len,
        flags: after.flags,
        ..theirs
    };
    access::write(address, &changed)
}

/// `struct mmsghdr`: a header, and the length of its message.
const ENTRY_LEN: usize = size_of::<Header>() + 8;

/// Stores the length of a message that was sent or received.
fn note(entry: usize, done: isize) -> bool {
    access::write(entry + size_of::<Header>(), &(done as u32))
}

/// A call of no messages: the kernel checks the file.
fn of_none(number: libc::c_long, file: usize, flags: usize) -> isize {
    // SAFETY: the kernel accesses no memory.
    unsafe { page::call(number as usize, [file, 0, 0, flags, 0, 0]) }
}

/// sendmmsg: one message after the other, until one fails.
fn send_all([file, entries, count, flags, ..]: Arguments) -> isize {
    let number = libc::SYS_sendmsg as usize;
    let count = (count as u32 as usize).min(BUFFERS_MAX);
    if count == 0 {
        return of_none(libc::SYS_sendmmsg, file, flags);
    }
    for index in 0..count {
        let entry = entries + index * ENTRY_LEN;
        let sent = message(number, [file, entry, flags, 0, 0, 0], Direction::Out);
        let sent = sent.unwrap_or_else(|error| -(error as isize));
        if sent < 0 || !note(entry, sent) {
            let failed = if sent < 0 { sent } else { FAULT };
            return if index > 0 { index as isize } else { failed };
        }
    }
    count as isize
}

/// recvmmsg: the time limit is checked after each message, as in the kernel. The call then reports
/// how much of the time is left.
fn receive_all([file, entries, count, flags, time, ..]: Arguments) -> isize {
    let count = (count as u32 as usize).min(BUFFERS_MAX);
    let until = match time {
        0 => None,
        time => match access::read::<[i64; 2]>(time) {
            Some([seconds, nanos]) if seconds >= 0 && (0..NANOS).contains(&nanos) => {
                let given = Duration::new((seconds as u64).min(1 << 32), nanos as u32);
                Some(Instant::now() + given)
            }
            Some(_) => return -(libc::EINVAL as isize),
            None => return FAULT,
        },
    };
    if count == 0 {
        return of_none(libc::SYS_recvmmsg, file, flags);
    }
    let received = receive_until([file, entries, count, flags], until);
    if let Some(until) = until.filter(|_| received > 0) {
        let left = until.saturating_duration_since(Instant::now());
        if !access::write(time, &[left.as_secs(), left.subsec_nanos().into()]) {
            return FAULT;
        }
    }
    received
}

/// Nanoseconds of a second.
const NANOS: i64 = 1_000_000_000;

/// Receives up to `count` messages, and none after `until`.
fn receive_until([file, entries, count, flags]: [usize; 4], until: Option<Instant>) -> isize {
    const ONE: usize = libc::MSG_WAITFORONE as usize;
    let number = libc::SYS_recvmsg as usize;
    let mut flags = flags;
    for index in 0..count {
        let entry = entries + index * ENTRY_LEN;
        let got = message(number, [file, entry, flags & !ONE, 0, 0, 0], Direction::In);
        let got = got.unwrap_or_else(|error| -(error as isize));
        if got < 0 || !note(entry, got) {
            let failed = if got < 0 { got } else { FAULT };
            return if index > 0 { index as isize } else { failed };
        }
        if flags & ONE != 0 {
            flags |= libc::MSG_DONTWAIT as usize;
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return index as isize + 1;
        }
    }
    count as isize
}
