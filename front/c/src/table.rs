//! The mappings of a memory, by address.
//!
//! ```text
//! Table: first address -> Row (length, Block)      Block: Held, pinned ranges
//!                                                  Held: a Mapping, of memory or of a file
//! ```
//! Locking: `rows`, then `pinned` of a block; `rows` is not held while a call waits for a page.
//! `mapping` of a block, then `pinned`; calls that may run concurrently take `mapping` for reading.

use crate::status::Failure;
use crate::status::highwater_status::{
    HIGHWATER_ERROR_BUSY, HIGHWATER_ERROR_INVALID, HIGHWATER_ERROR_NOT_MAPPED,
    HIGHWATER_ERROR_PINNED, HIGHWATER_ERROR_RANGE,
};
use highwater::{Error, FileMapping, Mapping};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const PAGE: usize = 4096;

/// The largest number of pins of a mapping: fewer than an entry of the page table can count.
const PINS_MAX: usize = 4096;

/// A mapping of anonymous memory, or of a file.
pub(crate) enum Held {
    Memory(Mapping),
    File(FileMapping),
}

impl Deref for Held {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        match self {
            Held::Memory(mapping) => mapping,
            Held::File(file) => file,
        }
    }
}

impl Held {
    pub(crate) fn resize(&mut self, len: usize) -> Result<(), Error> {
        match self {
            Held::Memory(mapping) => mapping.resize(len),
            Held::File(file) => file.resize(len),
        }
    }

    /// Sets bytes to zero; refused for files.
    pub(crate) fn discard(&mut self, range: Range<usize>) -> Result<(), Failure> {
        match self {
            Held::Memory(mapping) => Ok(mapping.discard(range)?),
            Held::File(_) => {
                let what = "the contents of a file are not dropped: write zeros";
                Err(Failure::new(HIGHWATER_ERROR_INVALID, what))
            }
        }
    }

    /// Writes the changes of a file; does nothing for anonymous memory.
    pub(crate) fn sync_range(&mut self, range: Range<usize>) -> Result<(), Error> {
        match self {
            Held::Memory(_) => Ok(()),
            Held::File(file) => file.sync_range(range),
        }
    }
}

/// A mapping, and the ranges of it that are pinned.
pub(crate) struct Block {
    mapping: RwLock<Held>,
    /// In bytes from the start of the mapping, rounded to whole pages.
    pinned: Mutex<Vec<Range<usize>>>,
}

impl Block {
    /// The mapping, for calls that may run concurrently.
    pub(crate) fn mapping(&self) -> RwLockReadGuard<'_, Held> {
        self.mapping.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mapping, for a call that excludes all others.
    pub(crate) fn mapping_alone(&self) -> RwLockWriteGuard<'_, Held> {
        self.mapping.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that pages are pinned.
    pub(crate) fn add_pin(&self, range: Range<usize>) -> Result<(), Failure> {
        let mut pinned = self.pinned();
        if pinned.len() >= PINS_MAX {
            let what = format!("a mapping has {PINS_MAX} pins at most: drop one first");
            return Err(Failure::new(HIGHWATER_ERROR_PINNED, what));
        }
        pinned.push(whole_pages(range));
        Ok(())
    }

    /// Records that these pages are no longer pinned.
    pub(crate) fn remove_pin(&self, range: Range<usize>) {
        let (mut pinned, range) = (self.pinned(), whole_pages(range));
        if let Some(place) = pinned.iter().position(|other| *other == range) {
            pinned.swap_remove(place);
        }
    }

    /// Refuses a change of pages that are pinned: the change would wait until they are unpinned.
    pub(crate) fn expect_unpinned(&self, range: Range<usize>) -> Result<(), Failure> {
        let range = whole_pages(range);
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        match self.pinned().iter().find(|other| overlaps(other)) {
            None => Ok(()),
            Some(Range { start, end }) => {
                let what = format!("bytes {start} to {end} of the mapping are pinned");
                Err(Failure::new(HIGHWATER_ERROR_BUSY, what))
            }
        }
    }

    fn pinned(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn whole_pages(range: Range<usize>) -> Range<usize> {
    range.start / PAGE * PAGE..range.end.div_ceil(PAGE) * PAGE
}

struct Row {
    len: usize,
    block: Arc<Block>,
}

/// A part of a mapping.
pub(crate) struct Part {
    pub(crate) block: Arc<Block>,
    /// In bytes from the start of the mapping.
    pub(crate) range: Range<usize>,
}

/// All mappings of a memory.
#[derive(Default)]
pub(crate) struct Table {
    rows: RwLock<BTreeMap<usize, Row>>,
}

impl Table {
    /// Adds a mapping; returns its address.
    pub(crate) fn add(&self, held: Held) -> *mut u8 {
        let pinned = Mutex::default();
        self.put(Arc::new(Block { mapping: RwLock::new(held), pinned }))
    }

    /// Adds a block that [`Table::take`] has returned.
    pub(crate) fn put(&self, block: Arc<Block>) -> *mut u8 {
        let (address, len) = {
            let mapping = block.mapping();
            (mapping.as_ptr().cast_mut(), mapping.len())
        };
        let other = self.rows_alone().insert(address.addr(), Row { len, block });
        debug_assert!(other.is_none(), "mappings do not overlap");
        address
    }

    /// Takes the mapping that begins at an address out of the table, if no part of it is pinned.
    pub(crate) fn take(&self, address: *const u8) -> Result<Arc<Block>, Failure> {
        let mut rows = self.rows_alone();
        let row = rows.get(&address.addr()).ok_or_else(|| {
            let what = format!("no mapping of this memory begins at {address:?}");
            Failure::new(HIGHWATER_ERROR_NOT_MAPPED, what)
        })?;
        row.block.expect_unpinned(0..row.len)?;
        let row = rows.remove(&address.addr()).expect("found above");
        Ok(row.block)
    }

    /// The part of a mapping at an address.
    pub(crate) fn find(&self, address: *const u8, len: usize) -> Result<Part, Failure> {
        let rows = self.rows();
        let before = rows.range(..=address.addr()).next_back();
        let found = before.filter(|(first, row)| address.addr() - *first < row.len);
        let (first, row) = found.ok_or_else(|| {
            let what = format!("{address:?} is in no mapping of this memory");
            Failure::new(HIGHWATER_ERROR_NOT_MAPPED, what)
        })?;
        let start = address.addr() - first;
        let end = start.saturating_add(len);
        if end > row.len {
            let what = format!("{end} is behind the end of the mapping, {}", row.len);
            return Err(Failure::new(HIGHWATER_ERROR_RANGE, what));
        }
        Ok(Part { block: row.block.clone(), range: start..end })
    }

    /// The length of the mapping that begins at an address.
    pub(crate) fn len_of(&self, address: *const u8) -> Result<usize, Failure> {
        let part = self.find(address, 0)?;
        match part.range.start {
            0 => Ok(part.block.mapping().len()),
            at => {
                let what = format!("{address:?} is byte {at} of a mapping, not its first");
                Err(Failure::new(HIGHWATER_ERROR_NOT_MAPPED, what))
            }
        }
    }

    /// Refuses if anything is pinned.
    pub(crate) fn expect_unpinned(&self) -> Result<(), Failure> {
        self.rows().values().try_for_each(|row| row.block.expect_unpinned(0..row.len))
    }

    fn rows(&self) -> RwLockReadGuard<'_, BTreeMap<usize, Row>> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows_alone(&self) -> RwLockWriteGuard<'_, BTreeMap<usize, Row>> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }
}
