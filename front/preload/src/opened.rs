//! Unmaps code and constants of libraries that the program opened after its start.
//!
//! ```text
//! a pass   checks the segments that the last one remembered: writable ones stay mapped
//!          visits what the loader lists: a checked segment     its pages are unmapped
//!                                        a new one of 1 MiB    remembered
//!          forgets segments that are no longer listed
//! note_change   the program is about to change a remembered segment: it stays mapped
//! ```
//! Such a library may be closed, and other memory be mapped there, at any moment. The dynamic
//! loader holds its lock while it unmaps an object, and while a pass visits those that it lists: so
//! a segment that is listed stays where it is. A change that began before its segment was
//! remembered is noticed when it is checked, a second later.
//!
//! Locking: the loader's lock, and below it FORKING ([`forking`]), which a pass only tries to
//! take: a fork's handlers may wait for the loader's lock. Nothing else is locked, and nothing is
//! allocated, during a visit. One thread makes passes and stores entries; others only mark them,
//! with FORKING, so that none is being unmapped meanwhile.

use crate::{forking, smaps};
use highwater_session::{Code, Unmapper, each_object};
use highwater_units::{Bytes, PAGE_SIZE};
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Smaller segments are not worth a place in the table.
const PAGES_MIN: usize = (1 << 20) / PAGE_SIZE;

const ENTRIES: usize = 128;

/// Bits of an entry: the first page, the number of pages, and marks.
const PAGE_BITS: u32 = 36;
const LEN_BITS: u32 = 26;
const MARK_BITS: u32 = 2;

/// The program changes these pages: they stay mapped.
const CHANGED: u64 = 1;
/// Nothing could write to these pages since they were remembered, unless they are [`CHANGED`].
const CHECKED: u64 = 2;

/// Segments of libraries; 0: none.
struct Table {
    entries: [AtomicU64; ENTRIES],
}

static TABLE: Table = Table::new();

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Bytes that were unmapped.
    pub(crate) unmapped: Bytes,
    /// Segments that the next pass unmaps.
    pub(crate) remembered: usize,
}

/// Whether any of these pages may be unmapped by a pass.
pub(crate) fn has(pages: Range<usize>) -> bool {
    TABLE.with(pages).any(|entry| !has_mark(entry, CHANGED))
}

/// With FORKING: the program is about to change these pages.
pub(crate) fn note_change(pages: Range<usize>) {
    TABLE.note_change(pages);
}

/// Unmaps segments that an earlier pass remembered, and remembers others, but none of `known`.
pub(crate) fn unmap(known: &Code) -> Pass {
    let (Ok(()), Ok(unmapper)) = (TABLE.check(), Unmapper::open()) else { return Pass::default() };
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
        TABLE.forget_unlisted(&listed);
    }
    pass
}

impl Pass {
    /// With FORKING: unmaps or remembers a segment that the loader lists.
    fn visit(&mut self, unmapper: &Unmapper, pages: Range<usize>, listed: &mut [bool; ENTRIES]) {
        match TABLE.place(&pages) {
            None => {}
            Some(Place::Remembered(at)) => {
                listed[at] = true;
                let entry = &TABLE.entries[at];
                if has_mark(entry, CHECKED) && !has_mark(entry, CHANGED) {
                    self.unmapped.0 += unmapper.unmap(pages).0;
                }
            }
            Some(Place::Free(at, entry)) => {
                listed[at] = true;
                TABLE.entries[at].store(entry, Release);
                self.remembered += 1;
            }
        }
    }
}

/// Where in the table a segment is.
enum Place {
    Remembered(usize),
    /// Nowhere: a free place, and its entry.
    Free(usize, u64),
}

impl Table {
    const fn new() -> Table {
        Table { entries: [const { AtomicU64::new(0) }; ENTRIES] }
    }

    /// The entries that have any of these pages.
    fn with(&self, pages: Range<usize>) -> impl Iterator<Item = &AtomicU64> {
        self.entries.iter().filter(move |entry| {
            let own = pages_of(entry.load(Acquire));
            pages.start < own.end && own.start < pages.end
        })
    }

    fn note_change(&self, pages: Range<usize>) {
        self.with(pages).for_each(|entry| mark(entry, CHANGED));
    }

    /// Checks the segments that earlier passes remembered.
    ///
    /// # Errors
    /// The system does not show which mappings are writable.
    fn check(&self) -> io::Result<()> {
        let is_unchecked =
            |entry: &&AtomicU64| entry.load(Acquire) != 0 && !has_mark(entry, CHECKED);
        if self.entries.iter().any(|entry| is_unchecked(&entry)) {
            smaps::each_writable(|addresses| {
                self.note_change(addresses.start / PAGE_SIZE..addresses.end / PAGE_SIZE);
            })?;
            self.entries.iter().filter(is_unchecked).for_each(|entry| mark(entry, CHECKED));
        }
        Ok(())
    }

    /// `None`: a segment that is too large, or for which there is no place.
    fn place(&self, pages: &Range<usize>) -> Option<Place> {
        let entry = entry_of(pages)?;
        let find = |wanted: u64, but: u64| {
            self.entries.iter().position(|entry| entry.load(Acquire) & !but == wanted)
        };
        let remembered = find(entry, CHANGED | CHECKED).map(Place::Remembered);
        remembered.or_else(|| find(0, 0).map(|at| Place::Free(at, entry)))
    }

    /// Forgets segments of libraries that were closed, even changed ones. A library that is opened
    /// in their place is remembered and checked as any other.
    fn forget_unlisted(&self, listed: &[bool; ENTRIES]) {
        let unlisted = self.entries.iter().zip(listed).filter(|(_, listed)| !**listed);
        unlisted.for_each(|(entry, _)| entry.store(0, Release));
    }
}

fn has_mark(entry: &AtomicU64, mark: u64) -> bool {
    entry.load(Acquire) & mark != 0
}

fn mark(entry: &AtomicU64, mark: u64) {
    entry.fetch_or(mark, AcqRel);
}

/// The entry of a segment; `None` if it does not fit.
fn entry_of(pages: &Range<usize>) -> Option<u64> {
    let (first, len) = (pages.start as u64, pages.len() as u64);
    let fits = first < 1 << PAGE_BITS && len < 1 << LEN_BITS;
    fits.then_some(first << (LEN_BITS + MARK_BITS) | len << MARK_BITS)
}

fn pages_of(entry: u64) -> Range<usize> {
    let first = entry >> (LEN_BITS + MARK_BITS);
    let len = entry >> MARK_BITS & ((1 << LEN_BITS) - 1);
    first as usize..(first + len) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_pages_of_its_segment() {
        for pages in [1..2, 0x7_ffff_0000..0x7_ffff_ffff, 5..5 + (1 << 25)] {
            assert_eq!(entry_of(&pages).map(pages_of), Some(pages));
        }
        assert_eq!(entry_of(&(1..1 << LEN_BITS | 1)), None);
        assert_eq!(entry_of(&(1 << PAGE_BITS..(1 << PAGE_BITS) + 1)), None);
    }

    fn remember(table: &Table, pages: Range<usize>) -> usize {
        let Some(Place::Free(at, entry)) = table.place(&pages) else { panic!("a free place") };
        table.entries[at].store(entry, Release);
        at
    }

    /// A program may have made a segment writable before it was remembered, and write to it later.
    #[test]
    fn segments_that_are_writable_when_they_are_checked_stay_mapped() {
        static CONSTANT: [u8; 2 * PAGE_SIZE] = [7; 2 * PAGE_SIZE];
        static VARIABLE: [AtomicU64; PAGE_SIZE] = [const { AtomicU64::new(1) }; PAGE_SIZE];
        let table = Table::new();
        let page_of = |address: usize| address / PAGE_SIZE + 1;
        let places = [(&raw const CONSTANT).addr(), (&raw const VARIABLE).addr()]
            .map(|address| remember(&table, page_of(address)..page_of(address) + 1));
        let marks = |at: usize| table.entries[at].load(Acquire) & (CHANGED | CHECKED);
        assert_eq!(places.map(marks), [0, 0]);
        table.check().unwrap();
        assert_eq!(places.map(marks), [CHECKED, CHECKED | CHANGED]);
        table.note_change(page_of((&raw const CONSTANT).addr())..usize::MAX / PAGE_SIZE);
        assert!(places.map(marks).iter().all(|marks| *marks == CHECKED | CHANGED));
        let mut listed = [false; ENTRIES];
        listed[places[1]] = true;
        table.forget_unlisted(&listed);
        assert_eq!(places.map(marks), [0, CHECKED | CHANGED]);
    }
}
