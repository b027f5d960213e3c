//! Where frames lie in memory.

use highwater_units::{PAGE_SHIFT, PAGE_SIZE, Pfn};

/// A handle on the memory of all frames: its base address and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: *mut u8,
    frames: u32,
}

// SAFETY: an address and a count; what may be done at the address is up to the unsafe callers of
// `Device::read` and `Device::write`, on whatever thread they are.
unsafe impl Send for Arena {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for Arena {}

impl Arena {
    /// A handle on `frames` frames from `base`.
    ///
    /// # Safety
    /// `base` is aligned to a page, and the frames stay mapped, readable and writable, while any
    /// copy of the handle is used.
    pub unsafe fn new(base: *mut u8, frames: u32) -> Arena {
        assert!(base.addr().is_multiple_of(PAGE_SIZE), "frames are aligned to pages");
        Arena { base, frames }
    }

    /// The number of frames.
    pub fn frames(self) -> u32 {
        self.frames
    }

    /// Whether there is such a frame.
    pub fn contains(self, pfn: Pfn) -> bool {
        pfn.0 < self.frames
    }

    /// The first byte of a frame, which exists.
    pub fn address(self, pfn: Pfn) -> *mut u8 {
        assert!(self.contains(pfn), "frame {} of {}", pfn.0, self.frames);
        // SAFETY: the frame lies within the memory that `new` was promised.
        unsafe { self.base.add(pfn.index() << PAGE_SHIFT) }
    }
}
