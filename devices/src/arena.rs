//! The addresses of frames.

use highwater_units::{PAGE_SHIFT, PAGE_SIZE, Pfn};

use std::sync::atomic::{AtomicU32, Ordering::Acquire};

/// The memory of frames: a base address, and for each frame the number of its page, counted from
/// the base. Either frame n has page n, or a table names the page of each frame.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: *mut u8,
    frames: u32,
    /// A page number for each frame; null: frame n has page n.
    table: *const AtomicU32,
}

// SAFETY: addresses and a count. The unsafe callers of `Device::read` and `Device::write` vouch for
// accesses to them, on any thread.
unsafe impl Send for Arena {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for Arena {}

impl Arena {
    /// `frames` frames from `base` on.
    ///
    /// # Safety
    /// `base` is aligned to a page, and the frames stay mapped, readable and writable, while a copy
    /// of this is used.
    pub unsafe fn new(base: *mut u8, frames: u32) -> Arena {
        assert!(base.addr().is_multiple_of(PAGE_SIZE), "frames are aligned to pages");
        Arena { base, frames, table: std::ptr::null() }
    }

    /// Frames whose pages, counted from `base` on, are in a table. The page of a frame changes only
    /// while no transfer names the frame.
    ///
    /// # Safety
    /// As for [`Arena::new`], for all pages that the table names; and the table is neither moved
    /// nor freed while a copy of this is used.
    pub unsafe fn with_table(base: *mut u8, table: &[AtomicU32]) -> Arena {
        assert!(base.addr().is_multiple_of(PAGE_SIZE), "frames are aligned to pages");
        Arena { base, frames: table.len() as u32, table: table.as_ptr() }
    }

    /// The number of frames.
    pub fn frames(self) -> u32 {
        self.frames
    }

    /// Whether the frame exists.
    pub fn contains(self, pfn: Pfn) -> bool {
        pfn.0 < self.frames
    }

    /// The first byte of a frame, which exists.
    pub fn address(self, pfn: Pfn) -> *mut u8 {
        assert!(self.contains(pfn), "frame {} of {}", pfn.0, self.frames);
        let page = if self.table.is_null() {
            pfn.index()
        } else {
            // SAFETY: an entry of the table, which `with_table` was promised.
            unsafe { (*self.table.add(pfn.index())).load(Acquire) as usize }
        };
        // SAFETY: the page lies within the memory that was promised.
        unsafe { self.base.add(page << PAGE_SHIFT) }
    }

    /// The memory of frames in stretches of adjacent pages: offset in the list, address, pages.
    pub fn stretches(
        self,
        frames: impl ExactSizeIterator<Item = Pfn>,
    ) -> impl Iterator<Item = (usize, *mut u8, usize)> {
        let mut pages = frames.map(move |pfn| self.address(pfn)).enumerate().peekable();
        std::iter::from_fn(move || {
            let (offset, first) = pages.next()?;
            let mut count = 1;
            let adjacent = |count: usize| first.wrapping_add(count << PAGE_SHIFT);
            while pages.next_if(|(_, next)| *next == adjacent(count)).is_some() {
                count += 1;
            }
            Some((offset, first, count))
        })
    }
}
