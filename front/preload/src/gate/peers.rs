//! process_vm_readv and process_vm_writev, in parts: a copy is memory beyond the budget, and pages
//! of another process may be swapped out.
//!
//! ```text
//! part of buffers on both sides -- read: at once -----------------------> the kernel's call
//!       |                          -- a page is missing, or write: its      ^
//!       |                             process brings the pages, holds them -/
//!       \- a copy, if it is paged here
//! ```
//! The kernel's own fault on a page of another process raises no message where faults are served in
//! the thread (`--faults in-thread`).

use super::access::{self, Access, accessible, copy_in, copy_out};
use super::bounce::{Bounce, Keep};
use super::buffer::{BUFFERS_MAX, Buffer};
use super::copied::Arguments;
use super::page;
use super::range::is_paged;
use crate::bring::while_held;
use highwater_session::{REQUEST_MAX, Request};
use highwater_units::PAGE_SIZE;

/// The most bytes of a part, which may begin inside a page.
const PART_LEN: usize = 128 << 10;
const _: () = assert!(PART_LEN / PAGE_SIZE < REQUEST_MAX as usize);

/// Requests for the same part: its pages may be protected while others leave.
const ATTEMPTS: usize = 16;

const FAULT: isize = -(libc::EFAULT as isize);

/// Whose buffers a call writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// This process's: process_vm_readv.
    Here,
    /// The other one's: process_vm_writev.
    There,
}

/// A call, without its buffers.
struct Call {
    number: usize,
    pid: usize,
    direction: Direction,
}

/// Makes a call of either kind.
pub(super) fn make(number: usize, arguments: Arguments) -> isize {
    let [pid, here, here_count, there, there_count, flags] = arguments;
    if flags != 0 || here_count.max(there_count) > BUFFERS_MAX {
        // The kernel refuses it before it looks at the buffers.
        // SAFETY: the program's call.
        return unsafe { page::call(number, arguments) };
    }
    let direction = match number as libc::c_long {
        libc::SYS_process_vm_readv => Direction::Here,
        _ => Direction::There,
    };
    let (call, mut done) = (Call { number, pid, direction }, 0);
    loop {
        let both = rest_of(here, here_count, done).zip(rest_of(there, there_count, done));
        let got = both.map_or(FAULT, |(ours, theirs)| call.part(ours, theirs));
        if got <= 0 {
            return if done > 0 { done as isize } else { got };
        }
        done += got as usize;
    }
}

/// What is left, after `offset` bytes, of the buffer that has the next one; of no length if there
/// is none. `None`: the array cannot be read.
fn rest_of(array: usize, count: usize, offset: usize) -> Option<Buffer> {
    let mut before = 0;
    for index in 0..count {
        let Buffer { base, len } = access::read(array + index * size_of::<Buffer>())?;
        if offset - before < len {
            let skipped = offset - before;
            return Some(Buffer { base: base.wrapping_add(skipped), len: len - skipped });
        }
        before += len;
    }
    Some(Buffer { base: 0, len: 0 })
}

impl Call {
    /// Transfers the first part of two buffers; returns how many bytes, or the error.
    fn part(&self, ours: Buffer, theirs: Buffer) -> isize {
        let len = ours.len.min(theirs.len).min(PART_LEN);
        if len == 0 || !is_paged(ours.base) {
            return self.through(ours.base, theirs.base, len);
        }
        let Some(mut bounce) = Bounce::new(len, 1, 0, Keep::Used) else {
            return -(libc::ENOMEM as isize);
        };
        let copy = bounce.take(ours.base, len);
        let there = match self.direction {
            Direction::Here => accessible(ours.base, len, Access::Write),
            // SAFETY: a piece of that length.
            Direction::There => unsafe { copy_in(copy, ours.base, len) },
        };
        let got = if there > 0 { self.through(copy as usize, theirs.base, there) } else { FAULT };
        if self.direction == Direction::Here && got > 0 {
            // SAFETY: the kernel has written so many bytes of the piece.
            unsafe { copy_out(ours.base, copy, got as usize) };
        }
        got
    }

    /// Lets the kernel transfer bytes from or to memory here that is not paged.
    fn through(&self, here: usize, there: usize, len: usize) -> isize {
        let [ours, theirs] = [here, there].map(|base| Buffer { base, len });
        let [ours, theirs] = [&raw const ours, &raw const theirs].map(|buffer| buffer as usize);
        // SAFETY: a part of the program's call, which the kernel checks.
        let call = || unsafe { page::call(self.number, [self.pid, ours, 1, theirs, 1, 0]) };
        // What is written to a page while it leaves would be lost: it is held first.
        let mut got = if self.direction == Direction::Here || len == 0 { call() } else { FAULT };
        for _ in 0..ATTEMPTS {
            if got != FAULT {
                break;
            }
            let Some(again) = while_held(self.pid as u32, self.pages(there, len), call) else {
                return call();
            };
            got = again;
        }
        got
    }

    /// The other process's pages that have a part of some bytes.
    fn pages(&self, there: usize, len: usize) -> Request {
        let count = (there % PAGE_SIZE + len).div_ceil(PAGE_SIZE) as u64;
        let access = match self.direction {
            Direction::Here => highwater_mm::Access::Read,
            Direction::There => highwater_mm::Access::Write,
        };
        Request { first: (there / PAGE_SIZE) as u64, count, access }
    }
}
