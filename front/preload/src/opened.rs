//! Unmaps code and constants of libraries that the program opened after its start.
//!
//! ```text
//! a pass lists objects    a new segment of 1 MiB or more: remembered
//!                         one that an earlier pass remembered: its pages are unmapped
//! after the pass          segments that are no longer listed are forgotten
//! note_change             the program is about to change a remembered segment: it stays mapped
//! ```
//! Such a library may be closed, and other memory be mapped there, at any moment. The dynamic
//! loader holds its lock while it unmaps an object, and while a pass visits those that it lists: so
//! a segment that is listed stays where it is. A change that began before its segment was
//! remembered is over when a later pass unmaps, a second later.
//!
//! Locking: the loader's lock, and below it FORKING ([`forking`]), which a pass only tries to
//! take: a fork's handlers may wait for the loader's lock. Nothing else is locked, and nothing is
//! allocated, in a pass. The table is written with FORKING, and read without it.

use crate::forking;
use highwater_session::{Code, Unmapper, each_object};
use highwater_units::{Bytes, PAGE_SIZE};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Smaller segments are not worth a place in the table.
const PAGES_MIN: usize = (1 << 20) / PAGE_SIZE;

const ENTRIES: usize = 128;

/// Bits of an entry: the first page, the number of pages, and whether the program changes them.
const PAGE_BITS: u32 = 36;
const LEN_BITS: u32 = 27;
const CHANGED: u64 = 1;

/// The remembered segments; 0: none.
static TABLE: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Bytes that were unmapped.
    pub(crate) unmapped: Bytes,
    /// Segments that the next pass unmaps.
    pub(crate) remembered: usize,
}

/// The entry of a segment; `None` if it does not fit.
fn entry_of(pages: &Range<usize>) -> Option<u64> {
    let (first, len) = (pages.start as u64, pages.len() as u64);
    let fits = first < 1 << PAGE_BITS && len < 1 << LEN_BITS;
    fits.then_some(first << (LEN_BITS + 1) | len << 1)
}

fn pages_of(entry: u64) -> Range<usize> {
    let first = entry >> (LEN_BITS + 1);
    let len = entry >> 1 & ((1 << LEN_BITS) - 1);
    first as usize..(first + len) as usize
}

fn entries_with(pages: Range<usize>) -> impl Iterator<Item = &'static AtomicU64> {
    TABLE.iter().filter(move |entry| {
        let own = pages_of(entry.load(Acquire));
        pages.start < own.end && own.start < pages.end
    })
}

/// Whether any of these pages may be unmapped by a pass.
pub(crate) fn has(pages: Range<usize>) -> bool {
    entries_with(pages).any(|entry| entry.load(Acquire) & CHANGED == 0)
}

/// With FORKING: the program is about to change these pages.
pub(crate) fn note_change(pages: Range<usize>) {
    entries_with(pages).for_each(|entry| {
        entry.fetch_or(CHANGED, AcqRel);
    });
}

/// Unmaps segments that an earlier pass remembered, and remembers others, but none of `known`.
pub(crate) fn unmap(known: &Code) -> Pass {
    let Ok(unmapper) = Unmapper::open() else { return Pass::default() };
    let mut pass = Pass::default();
    let mut listed = [false; ENTRIES];
    let mut is_complete = true;
    each_object(&mut |object| {
        if object.has_relocated_code() {
            return ControlFlow::Continue(());
        }
        for pages in object.segments().filter(|pages| pages.len() >= PAGES_MIN) {
            if known.contains(pages.start * PAGE_SIZE, pages.len() * PAGE_SIZE) {
                continue;
            }
            if !forking::try_begin() {
                is_complete = false;
                return ControlFlow::Break(());
            }
            pass.visit(&unmapper, pages, &mut listed);
            forking::end();
        }
        ControlFlow::Continue(())
    });
    if is_complete {
        forget_unlisted(&listed);
    }
    pass
}

impl Pass {
    /// With FORKING: unmaps or remembers a segment that the loader lists.
    fn visit(&mut self, unmapper: &Unmapper, pages: Range<usize>, listed: &mut [bool; ENTRIES]) {
        let Some(entry) = entry_of(&pages) else { return };
        let is_own = |place: &AtomicU64| place.load(Acquire) & !CHANGED == entry;
        if let Some(at) = TABLE.iter().position(is_own) {
            listed[at] = true;
            if TABLE[at].load(Acquire) & CHANGED == 0 {
                self.unmapped.0 += unmapper.unmap(pages).0;
            }
        } else if let Some(at) = TABLE.iter().position(|place| place.load(Acquire) == 0) {
            listed[at] = true;
            TABLE[at].store(entry, Release);
            self.remembered += 1;
        }
    }
}

/// Forgets segments of libraries that were closed, even changed ones. They may be those of a
/// library that is opened there next: it is remembered first, as any other.
fn forget_unlisted(listed: &[bool; ENTRIES]) {
    if forking::try_begin() {
        let unlisted = TABLE.iter().zip(listed).filter(|(_, listed)| !**listed);
        unlisted.for_each(|(entry, _)| entry.store(0, Release));
        forking::end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_pages_of_its_segment() {
        for pages in [1..2, 0x7_ffff_0000..0x7_ffff_ffff, 5..5 + (1 << 26)] {
            assert_eq!(entry_of(&pages).map(pages_of), Some(pages));
        }
        assert_eq!(entry_of(&(1..1 << LEN_BITS | 1)), None);
        assert_eq!(entry_of(&(1 << PAGE_BITS..(1 << PAGE_BITS) + 1)), None);
    }
}
