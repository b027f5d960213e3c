//! Page guards: a pinned page stays in memory, so safe slices of it never fault.

use crate::engine::Pinned;
use std::ops::{Deref, DerefMut};
use std::slice;

/// A pinned page, for reading. Dropping it unpins the page.
pub struct PageRef<'a> {
    pinned: Pinned<'a>,
    len: usize,
}

/// A pinned page, for writing. Dropping it unpins the page.
pub struct PageMut<'a> {
    pinned: Pinned<'a>,
    len: usize,
}

impl<'a> PageRef<'a> {
    pub(crate) fn new(pinned: Pinned<'a>, len: usize) -> PageRef<'a> {
        PageRef { pinned, len }
    }
}

impl<'a> PageMut<'a> {
    pub(crate) fn new(pinned: Pinned<'a>, len: usize) -> PageMut<'a> {
        PageMut { pinned, len }
    }
}

impl Deref for PageRef<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a page of a mapping that is borrowed for reading.
        unsafe { slice::from_raw_parts(self.pinned.address.as_ptr(), self.len) }
    }
}

impl Deref for PageMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a page of a mapping that is borrowed for writing.
        unsafe { slice::from_raw_parts(self.pinned.address.as_ptr(), self.len) }
    }
}

impl DerefMut for PageMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.pinned.address.as_ptr(), self.len) }
    }
}
