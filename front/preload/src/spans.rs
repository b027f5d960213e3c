//! The range of addresses of a system call, divided by owner.
//!
//! ```text
//! call:   [------------------------------------------]
//! parts:  Outside | Region | Unused | Region | Outside
//! ```
//! The kernel owns memory outside the paged range, and mappings that the program made over pages of
//! it. Pages of the range that are not in use count as not mapped, although the kernel has mapped
//! them.
//! Calls on addresses outside, and invalid ones (unaligned, empty, beyond the end), go to the
//! kernel, which returns the right errors.

use crate::native::call_by_library;
use crate::process::{self, Process};
use crate::regions::{Region, Use};
use crate::signals::Blocked;
use highwater_mm::Range;
use highwater_units::{PAGE_SIZE, Vpn};
use libc::{c_int, c_long, c_void};

/// Sets errno and returns -1.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Sets errno and returns MAP_FAILED.
pub(crate) fn refuse(errno: c_int) -> *mut c_void {
    fail(errno);
    libc::MAP_FAILED
}

/// The return value of a system call.
pub(crate) fn returned(done: Result<(), c_int>) -> c_int {
    done.map_or_else(fail, |()| 0)
}

/// Makes a system call about memory that the kernel serves; returns its error number.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn kernel(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: as the caller says.
    match unsafe { call_by_library(number, arguments) } {
        error @ -4095..=-1 => Err(-error as c_int),
        value => Ok(value as usize),
    }
}

/// The owner of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Memory of the kernel's.
    Kernel,
    /// Pages of the range that are not in use.
    Unused,
    /// Pages of a served region.
    Served(Range, Use),
}

/// A part of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Its first address.
    pub(crate) start: usize,
    /// Its length in bytes.
    pub(crate) len: usize,
    /// Its owner.
    pub(crate) holder: Holder,
}

/// A range of addresses that overlaps the paged range.
pub(crate) struct Named {
    pub(crate) process: &'static Process,
    start: usize,
    end: usize,
}

impl Named {
    /// The range of a call; `None`: the kernel handles the call.
    pub(crate) fn of(address: usize, len: usize) -> Option<Named> {
        let process = process::running()?;
        let end = address.checked_add(len)?.checked_next_multiple_of(PAGE_SIZE)?;
        let (base, pages) = process.extent();
        let after = base as usize + pages as usize * PAGE_SIZE;
        let touches = address < end && address < after && (base as usize) < end;
        (touches && address.is_multiple_of(PAGE_SIZE)).then_some(Named {
            process,
            start: address,
            end,
        })
    }

    /// The part in the paged range.
    pub(crate) fn pages(&self) -> Range {
        let (base, pages) = self.process.extent();
        let after = base as usize + pages as usize * PAGE_SIZE;
        let page = |address: usize| Vpn(((address - base as usize) / PAGE_SIZE) as u64);
        Range { first: page(self.start.max(base as usize)), end: page(self.end.min(after)) }
    }

    /// The parts outside the paged range: (first address, length).
    pub(crate) fn outside(&self) -> Vec<(usize, usize)> {
        let Range { first, end } = self.pages();
        let first = self.process.address(first) as usize;
        let end = self.process.address(end) as usize;
        let parts = [(self.start, first), (end, self.end)];
        parts
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(|(from, to)| (from, to - from))
            .collect()
    }

    /// The pages, if the whole range is in the paged range.
    pub(crate) fn whole(&self) -> Option<Range> {
        let pages = self.pages();
        let bytes = (pages.end.0 - pages.first.0) as usize * PAGE_SIZE;
        (bytes == self.end - self.start).then_some(pages)
    }

    /// All parts, in ascending order.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let pages = self.pages();
        let inside = cut(pages, &self.settled());
        let address = |vpn: Vpn| self.process.address(vpn) as usize;
        let mut spans: Vec<Span> = inside
            .into_iter()
            .map(|(range, holder)| Span {
                start: address(range.first),
                len: (range.end.0 - range.first.0) as usize * PAGE_SIZE,
                holder,
            })
            .collect();
        let outside = self.outside().into_iter();
        spans.extend(outside.map(|(start, len)| Span { start, len, holder: Holder::Kernel }));
        spans.sort_unstable_by_key(|span| span.start);
        spans
    }

    /// The regions once no other thread is changing one of them, as the kernel's calls wait for
    /// each other; in ascending order.
    fn settled(&self) -> Vec<Region> {
        let pages = self.pages();
        let mut attempt = 0;
        loop {
            let blocked = Blocked::now();
            let regions = self.process.regions(&blocked);
            if !regions.is_changing(pages) {
                let mut found = regions.within(pages);
                found.reverse();
                return found;
            }
            drop(regions);
            drop(blocked);
            highwater_os::relax(attempt);
            attempt += 1;
        }
    }

    /// Whether some pages are not mapped.
    pub(crate) fn has_gaps(&self) -> bool {
        self.spans().iter().any(|span| span.holder == Holder::Unused)
    }

    /// Calls `act` with each part, as the kernel walks over mappings: it continues behind unmapped
    /// pages and returns ENOMEM at the end; other errors end the walk.
    pub(crate) fn each(
        &self,
        mut act: impl FnMut(&Span) -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        let mut result = Ok(());
        for span in self.spans() {
            match act(&span) {
                Err(libc::ENOMEM) => result = Err(libc::ENOMEM),
                done => done?,
            }
        }
        result
    }
}

/// Divides `pages` by the `regions` in use, in ascending order.
fn cut(pages: Range, regions: &[Region]) -> Vec<(Range, Holder)> {
    let mut parts = Vec::new();
    let mut at = pages.first;
    for region in regions {
        let first = region.range.first.max(pages.first);
        let end = region.range.end.min(pages.end);
        if at < first {
            parts.push((Range { first: at, end: first }, Holder::Unused));
        }
        let range = Range { first, end };
        let holder = match region.used_as {
            Use::Foreign | Use::Locked => Holder::Kernel,
            Use::Changing => Holder::Unused,
            used_as => Holder::Served(range, used_as),
        };
        parts.push((range, holder));
        at = end;
    }
    if at < pages.end {
        parts.push((Range { first: at, end: pages.end }, Holder::Unused));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_say_whose_they_are() {
        let range = |first, end| Range { first: Vpn(first), end: Vpn(end) };
        let region = |first, end, used_as| Region { range: range(first, end), used_as };
        let (mapping, block) = (Use::Mapping, Use::Block);
        let regions = [
            region(2, 6, mapping),
            region(6, 8, Use::Foreign),
            region(9, 12, Use::Changing),
            region(12, 30, block),
        ];
        let expected = [
            (range(4, 6), Holder::Served(range(4, 6), mapping)),
            (range(6, 8), Holder::Kernel),
            (range(8, 9), Holder::Unused),
            (range(9, 12), Holder::Unused),
            (range(12, 20), Holder::Served(range(12, 20), block)),
        ];
        assert_eq!(cut(range(4, 20), &regions), expected);
        assert_eq!(cut(range(4, 20), &[]), [(range(4, 20), Holder::Unused)]);
        let within = [(range(13, 14), Holder::Served(range(13, 14), block))];
        assert_eq!(cut(range(13, 14), &regions[3..]), within);
    }
}

#[cfg(test)]
#[path = "spans_fuzz.rs"]
mod fuzz;
