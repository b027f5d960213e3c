//! process_vm_readv and process_vm_writev, in parts, because a copy takes memory beyond the budget,
//! and because pages of another process may be swapped out.
//!
//! ```text
//! Buffers, ours and theirs -- a few pieces --> Part -- copies of ours, if paged --> Pieces
//! Pieces -- read: at once ----------------------------------------------> the kernel's call
//!        \- a page is missing, or write: their process holds the pages --/
//! ```
//! The kernel's own fault on a page of another process raises no message where faults are served in
//! the thread (`--faults in-thread`). A write by the kernel to a page that is being evicted would
//! be lost.

use super::access::{Access, accessible, copy_in, copy_out};
use super::bounce::{Bounce, Keep};
use super::buffer::{BUFFERS_MAX, Buffer};
use super::copied::Arguments;
use super::page;
use super::range::is_paged;
use crate::bring::while_held;
use highwater_session::{Denied, REQUEST_MAX, Request};
use highwater_units::PAGE_SIZE;
use std::cell::Cell;

/// The most bytes of a part, which may begin inside a page.
const PART_LEN: usize = 128 << 10;
const _: () = assert!(PART_LEN / PAGE_SIZE < REQUEST_MAX as usize);
/// The most pieces of a part.
const PIECES_MAX: usize = 16;

/// Requests for the same part: its pages may be protected while others are evicted.
const ATTEMPTS: usize = 16;

const FAULT: isize = -(libc::EFAULT as isize);

/// Whose buffers a call writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// This process's: process_vm_readv.
    Ours,
    /// The other one's: process_vm_writev.
    Theirs,
}

/// A call, without its buffers.
struct Transfer {
    number: usize,
    pid: usize,
    writes: Writes,
    /// Whether the other process holds pages, if it is asked: until it turns out that it does not.
    may_hold: Cell<bool>,
}

/// Makes a call of either kind.
pub(super) fn make(number: usize, arguments: Arguments) -> isize {
    let [pid, here, here_count, there, there_count, flags] = arguments;
    if flags != 0 || here_count.max(there_count) > BUFFERS_MAX {
        // The kernel refuses it before it looks at the buffers.
        // SAFETY: the program's call.
        return unsafe { page::call(number, arguments) };
    }
    let writes = match number as libc::c_long {
        libc::SYS_process_vm_readv => Writes::Ours,
        _ => Writes::Theirs,
    };
    let transfer = Transfer { number, pid, writes, may_hold: Cell::new(true) };
    // In the kernel's order: it looks at no array of the other's if there is nothing here.
    let made = Buffers::read(here, here_count).and_then(|ours| match ours.rest() {
        None => Ok(0),
        Some(_) => Ok(transfer.all(ours, Buffers::read(there, there_count)?)),
    });
    made.unwrap_or_else(|error| -(error as isize))
}

/// How many buffers are read from the program at a time.
const WINDOW: usize = 32;

/// The buffers of a side, from a position on.
#[derive(Clone, Copy)]
struct Buffers {
    array: usize,
    count: usize,
    /// Buffers from `window_first` on.
    window: [Buffer; WINDOW],
    window_first: usize,
    /// The buffer at the position, and the bytes of it before that.
    index: usize,
    offset: usize,
}

impl Buffers {
    /// Checks an array; the position is its first byte.
    fn read(array: usize, count: usize) -> Result<Buffers, i32> {
        let window = [Buffer { base: 0, len: 0 }; WINDOW];
        let mut all = Buffers { array, count, window, window_first: 0, index: 0, offset: 0 };
        for first in (0..count).step_by(WINDOW).rev() {
            all.read_window(first).ok_or(libc::EFAULT)?;
            let is_negative = |buffer: &Buffer| buffer.len > isize::MAX as usize;
            if all.window[..WINDOW.min(count - first)].iter().any(is_negative) {
                return Err(libc::EINVAL);
            }
        }
        all.skip_empty();
        Ok(all)
    }

    fn read_window(&mut self, first: usize) -> Option<()> {
        let len = WINDOW.min(self.count - first) * size_of::<Buffer>();
        let from = self.array + first * size_of::<Buffer>();
        self.window_first = first;
        // SAFETY: the window has room.
        (unsafe { copy_in(self.window.as_mut_ptr().cast(), from, len) } == len).then_some(())
    }

    /// The rest of the buffer at the position. `None` at the end.
    fn rest(&self) -> Option<Buffer> {
        (self.index < self.count).then(|| {
            let Buffer { base, len } = self.window[self.index - self.window_first];
            Buffer { base: base.wrapping_add(self.offset), len: len - self.offset }
        })
    }

    /// Moves the position. An array that the program has changed since ends there.
    fn advance(&mut self, mut bytes: usize) {
        while let Some(rest) = self.rest().filter(|_| bytes > 0) {
            let step = bytes.min(rest.len);
            bytes -= step;
            self.offset += step;
            self.skip_empty();
        }
    }

    fn skip_empty(&mut self) {
        while self.rest().is_some_and(|rest| rest.len == 0) {
            (self.index, self.offset) = (self.index + 1, 0);
            let end = self.window_first + WINDOW;
            if self.index == end && end < self.count && self.read_window(end).is_none() {
                self.count = self.index;
            }
        }
    }
}

/// As many bytes of each of ours as of each of theirs.
struct Part {
    ours: [Buffer; PIECES_MAX],
    theirs: [Buffer; PIECES_MAX],
    count: usize,
}

impl Part {
    /// The next pieces: those of the other process ascend, and lie in few pages.
    fn of(mut ours: Buffers, mut theirs: Buffers) -> Part {
        let none = [Buffer { base: 0, len: 0 }; PIECES_MAX];
        let mut part = Part { ours: none, theirs: none, count: 0 };
        let mut left = PART_LEN;
        while let Some((our, their)) = ours.rest().zip(theirs.rest()) {
            let len = our.len.min(their.len).min(left);
            if len == 0 || part.count == PIECES_MAX || !part.may_have(their.base, len) {
                break;
            }
            part.ours[part.count] = Buffer { len, ..our };
            part.theirs[part.count] = Buffer { len, ..their };
            part.count += 1;
            left -= len;
            ours.advance(len);
            theirs.advance(len);
        }
        part
    }

    fn may_have(&self, base: usize, len: usize) -> bool {
        let Some(last) = self.count.checked_sub(1) else { return true };
        let Buffer { base: first, .. } = self.theirs[0];
        let before = self.theirs[last].base.saturating_add(self.theirs[last].len);
        base >= before && pages_of(first, base.saturating_add(len) - first) <= REQUEST_MAX
    }

    /// Shortens it to the pieces before `index`, and `len` bytes of that piece.
    fn cut(&mut self, index: usize, len: usize) {
        self.count = index + usize::from(len > 0);
        (self.ours[index].len, self.theirs[index].len) = (len, len);
    }

    /// The other process's pages.
    fn pages(&self, writes: Writes) -> Request {
        let Buffer { base, .. } = self.theirs[0];
        let Buffer { base: last, len } = self.theirs[self.count - 1];
        let access = match writes {
            Writes::Ours => highwater_mm::Access::Read,
            Writes::Theirs => highwater_mm::Access::Write,
        };
        let count = pages_of(base, last.saturating_add(len) - base);
        Request { first: (base / PAGE_SIZE) as u64, count, access }
    }

    /// Shortens it to bytes of its first piece that are in its first pages.
    fn keep_pages(&mut self, pages: u64) {
        let Buffer { base, len } = self.theirs[0];
        self.cut(0, len.min(pages as usize * PAGE_SIZE - base % PAGE_SIZE));
    }
}

/// Number of pages that some bytes lie in.
fn pages_of(base: usize, len: usize) -> u64 {
    (base % PAGE_SIZE + len).div_ceil(PAGE_SIZE) as u64
}

impl Transfer {
    /// Transfers all; returns how many bytes, or the error.
    fn all(&self, mut ours: Buffers, mut theirs: Buffers) -> isize {
        let mut done = 0;
        loop {
            let part = Part::of(ours, theirs);
            let got = if part.count > 0 { self.part(part) } else { 0 };
            if got <= 0 {
                return if done > 0 { done } else { got };
            }
            done += got;
            ours.advance(got as usize);
            theirs.advance(got as usize);
        }
    }

    /// Transfers a part, or its first bytes.
    fn part(&self, mut part: Part) -> isize {
        let paged = |buffer: &&Buffer| is_paged(buffer.base);
        let copied: usize = part.ours[..part.count].iter().filter(paged).map(|it| it.len).sum();
        if copied == 0 {
            return self.through(part);
        }
        let Some(mut bounce) = Bounce::new(copied, part.count, 0, Keep::Used) else {
            return -(libc::ENOMEM as isize);
        };
        let programs = part.ours;
        for (index, Buffer { base, len }) in programs.into_iter().enumerate().take(part.count) {
            if !is_paged(base) {
                continue;
            }
            let copy = bounce.take(base, len);
            let there = match self.writes {
                Writes::Ours => accessible(base, len, Access::Write),
                // SAFETY: a piece of that length.
                Writes::Theirs => unsafe { copy_in(copy, base, len) },
            };
            part.ours[index].base = copy as usize;
            if there < len {
                part.cut(index, there);
                break;
            }
        }
        let copies = part.ours;
        let got = if part.count > 0 { self.through(part) } else { FAULT };
        match self.writes {
            Writes::Ours if got > 0 => copy_back(&programs, &copies, got as usize),
            Writes::Ours | Writes::Theirs => got,
        }
    }

    /// Lets the kernel transfer a part from or to memory here that is not paged.
    fn through(&self, mut part: Part) -> isize {
        let mut got = FAULT;
        if self.writes == Writes::Ours || !self.may_hold.get() {
            got = self.call(&part);
        }
        for _ in 0..ATTEMPTS {
            if got != FAULT || !self.may_hold.get() {
                break;
            }
            let pages = part.pages(self.writes);
            let held = while_held(self.pid as u32, pages, |count| {
                if count < pages.count {
                    part.keep_pages(count);
                }
                self.call(&part)
            });
            match held {
                Ok(Some(result)) => got = result,
                Ok(None) => {}
                // The first page is neither one that the process could bring in nor one that is
                // being evicted.
                Err(Denied::Refused) => {
                    part.keep_pages(1);
                    return self.call(&part);
                }
                // Pages that the process evicts meanwhile would lose what the kernel writes.
                Err(Denied::Silent) if self.writes == Writes::Theirs => return FAULT,
                Err(Denied::Absent | Denied::Silent) => {
                    self.may_hold.set(false);
                    return self.call(&part);
                }
            }
        }
        got
    }

    fn call(&self, part: &Part) -> isize {
        let [ours, theirs] = [&part.ours, &part.theirs].map(|buffers| buffers.as_ptr() as usize);
        // SAFETY: a part of the program's call, which the kernel checks.
        unsafe { page::call(self.number, [self.pid, ours, part.count, theirs, part.count, 0]) }
    }
}

/// Copies what the kernel has written, `done` bytes in all; returns how many bytes come before the
/// first lost page, or the error if there are none.
fn copy_back(programs: &[Buffer], copies: &[Buffer], done: usize) -> isize {
    let mut left = done;
    for (program, copy) in programs.iter().zip(copies) {
        let len = copy.len.min(left);
        if program.base != copy.base && len > 0 {
            let from = std::ptr::with_exposed_provenance(copy.base);
            // SAFETY: a piece of the bounce buffer.
            let copied = unsafe { copy_out(program.base, from, len) };
            if copied < len {
                let before = (done - left + copied) as isize;
                return if before > 0 { before } else { FAULT };
            }
        }
        left -= len;
    }
    done as isize
}
