//! Long reads and writes of files, in parts, because a copy takes memory beyond the budget.
//!
//! ```text
//! at an offset -------------------> one part after the other
//! at the file's position ---------> the position moves past all of it; then by offsets
//! appended, or into a pipe -------> one part after the other
//! sockets, drivers, other reads --> whole
//! ```
//! Processes and threads that share a position get ranges of their own, as they would from the
//! kernel. Only appended data can be divided by data that others append.

use super::copied::{Arguments, are_addresses, kind_of, once};
use super::page;
use super::table::{Argument, Call};
use libc::c_long;

/// A longer buffer goes in parts of this length.
pub(super) const PART_LEN: usize = 1 << 20;
/// A write that appends goes in parts of this length.
const APPENDED_LEN: usize = 8 << 20;
/// The most bytes that the kernel reads or writes in one call (MAX_RW_COUNT).
const READ_MAX: usize = 0x7fff_f000;

/// A call that reads or writes one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    Read,
    ReadAt,
    Write,
    WriteAt,
}

const TRANSFERS: [(c_long, Transfer); 4] = [
    (libc::SYS_read, Transfer::Read),
    (libc::SYS_pread64, Transfer::ReadAt),
    (libc::SYS_write, Transfer::Write),
    (libc::SYS_pwrite64, Transfer::WriteAt),
];

/// How a long call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Whole. From a file that is not a regular one, the kernel reads the data that is there, and
    /// the call for another part could wait. A socket or a driver takes a whole message.
    Whole,
    /// In parts of this many bytes.
    Parts(usize),
    /// In parts by offsets, in a range of the file past which the position is moved first.
    Claimed,
}

/// Whether long buffers of a system call may go in parts.
pub(super) fn is_split(number: c_long) -> bool {
    Transfer::of(number).is_some()
}

/// Makes a call with copies, in parts if they are long.
pub(super) fn make(call: &Call, arguments: Arguments) -> isize {
    let [file, buffer, len, ..] = arguments;
    let number = c_long::from(call.number);
    let whole = || once(usize::from(call.number), call.arguments, arguments);
    match Transfer::of(number) {
        Some(transfer) if len > PART_LEN && are_addresses(buffer, len) => {
            match transfer.split(file) {
                Split::Whole => whole(),
                Split::Parts(part) => transfer.in_parts(part, call.arguments, arguments),
                Split::Claimed => transfer.in_claimed_range(call.arguments, arguments),
            }
        }
        _ => whole(),
    }
}

impl Transfer {
    fn of(number: c_long) -> Option<Transfer> {
        TRANSFERS.iter().find(|(known, _)| *known == number).map(|(_, transfer)| *transfer)
    }

    fn number(self) -> usize {
        let found = TRANSFERS.iter().find(|(_, transfer)| *transfer == self);
        found.expect("each has a number").0 as usize
    }

    /// How a long call on a file is made.
    fn split(self, file: usize) -> Split {
        let is_write = matches!(self, Transfer::Write | Transfer::WriteAt);
        match kind_of(file) {
            Some(libc::S_IFREG | libc::S_IFBLK) if is_write && is_appended(file) => {
                Split::Parts(APPENDED_LEN)
            }
            Some(libc::S_IFREG | libc::S_IFBLK) => match self {
                Transfer::ReadAt | Transfer::WriteAt => Split::Parts(PART_LEN),
                Transfer::Read | Transfer::Write => Split::Claimed,
            },
            Some(libc::S_IFIFO) if is_write => Split::Parts(PART_LEN),
            _ => Split::Whole,
        }
    }

    /// The call that names its place in the file.
    fn at_a_place(self) -> Transfer {
        match self {
            Transfer::Read | Transfer::ReadAt => Transfer::ReadAt,
            Transfer::Write | Transfer::WriteAt => Transfer::WriteAt,
        }
    }

    /// Moves the file's position past the bytes, and transfers them by offsets.
    fn in_claimed_range(self, kinds: &[Argument], arguments: Arguments) -> isize {
        let [file, _, len, ..] = arguments;
        let len = len.min(READ_MAX);
        let end = seek(file, len as isize);
        if end < len as isize {
            // A device's end is near, or there is no position.
            return self.in_parts(PART_LEN, kinds, arguments);
        }
        let mut placed = arguments;
        placed[3] = end as usize - len;
        let done = self.at_a_place().in_parts(PART_LEN, kinds, placed);
        let left = len as isize - done.max(0);
        if left > 0 {
            seek(file, -left);
        }
        done
    }

    /// Makes a call in parts of `most` bytes, until one does less than asked. The kinds are those
    /// of the first three arguments, or of all four.
    fn in_parts(self, most: usize, kinds: &[Argument], arguments: Arguments) -> isize {
        let [_, buffer, len, place, ..] = arguments;
        let len = len.min(READ_MAX);
        let mut done = 0;
        while done < len {
            let part = (len - done).min(most);
            let mut now = arguments;
            (now[1], now[2]) = (buffer + done, part);
            if self == self.at_a_place() {
                now[3] = place + done;
            }
            let result = once(self.number(), kinds, now);
            if result < 0 {
                return if done > 0 { done as isize } else { result };
            }
            done += result as usize;
            if (result as usize) < part {
                break;
            }
        }
        done as isize
    }
}

/// Whether data written to a file goes to its end.
fn is_appended(file: usize) -> bool {
    let arguments = [file, libc::F_GETFL as usize, 0, 0, 0, 0];
    // SAFETY: numbers.
    let flags = unsafe { page::call(libc::SYS_fcntl as usize, arguments) };
    flags >= 0 && flags as i32 & libc::O_APPEND != 0
}

/// Moves a file's position; returns the new one, or minus the error number.
fn seek(file: usize, by: isize) -> isize {
    let arguments = [file, by as usize, libc::SEEK_CUR as usize, 0, 0, 0];
    // SAFETY: numbers.
    unsafe { page::call(libc::SYS_lseek as usize, arguments) }
}
