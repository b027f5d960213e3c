//! The addresses of frames.

use highwater_units::{PAGE_SHIFT, PAGE_SIZE, Pfn};

/// The memory of all frames: base address and number of frames.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: *mut u8,
    frames: u32,
}

// SAFETY: an address and a count. The unsafe callers of `Device::read` and `Device::write` vouch
// for accesses to the address, on any thread.
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
