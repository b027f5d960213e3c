//! The arena: all frames of the memory budget, and access to their contents.

use highwater_units::{Bytes, NodeId, PAGE_SIZE, Pfn};

/// The frames of one memory node, contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRange {
    /// The node that they lie on.
    pub node: NodeId,
    /// The first frame.
    pub first: Pfn,
    /// The number of frames.
    pub frames: u32,
}

impl FrameRange {
    /// Whether a frame lies in the range.
    pub fn contains(&self, pfn: Pfn) -> bool {
        (self.first.0..self.first.0 + self.frames).contains(&pfn.0)
    }
}

/// Contents of frames.
///
/// Purpose: the manager itself never touches a page; it zeroes, copies and inspects frames through
/// this trait.
///
/// Obligations: the frames of a call are not mapped (see [`crate::Mmu`]) and belong to the caller,
/// so no other call names them at the same time. A method that takes several frames accepts up to
/// 512, adjacent or not. All but [`Memory::populate`] get populated frames, and do not fail.
///
/// Cost: the caller may hold entries, but no locks. A first touch costs one `populate` and one
/// `zero` for up to 16 frames.
///
/// Used by `core/mm/src/alloc/mod.rs` (`populate`), `core/mm/src/machine.rs` (`release`),
/// `core/mm/src/fault/zero.rs` (`zero`), `core/mm/src/compact/migrate.rs` (`copy_frame`) and
/// `core/mm/src/reclaim/large.rs` (`is_zero`).
pub trait Memory {
    /// The frames of every node: one range per node, ascending, the first from frame 0 on, without
    /// gaps. Node numbers are indices of this list. Constant.
    fn ranges(&self) -> Vec<FrameRange>;

    /// Backs frames with memory; frames that have memory keep it, at no cost. The contents are then
    /// undefined, until [`Memory::release`].
    ///
    /// # Errors
    /// The system has no memory left. The manager frees all frames of the call again.
    fn populate(&self, frames: &[Pfn]) -> Result<(), OutOfHostMemory>;

    /// Drops the contents of frames that the manager frees. A platform whose frames keep their
    /// memory does nothing; one that gives memory only to frames with contents takes it back.
    fn release(&self, _frames: &[Pfn]) {}

    /// How many of `frames` frames this manager may use in addition, where several managers share
    /// memory; see `core/mm/src/alloc/balloon.rs`. Allocations call it below the low watermark, so
    /// it does not wait. A platform that shares nothing grants none.
    fn borrow(&self, _frames: u32) -> u32 {
        0
    }

    /// Returns borrowed frames that this manager cannot use.
    fn give_back(&self, _frames: u32) {}

    /// How many frames [`Memory::borrow`] could grant now: a hint.
    fn borrowable(&self) -> u32 {
        0
    }

    /// Memory, in pages, that the platform has taken in addition to its frames since the last
    /// [`Memory::pay`], for example for pages that a device compressed. Reclaim takes as many
    /// frames out of use, so that the sum stays within a limit on all memory. 0 where there is no
    /// such limit.
    fn owed(&self) -> u32 {
        0
    }

    /// Reports that this many frames were taken out of use for memory that the platform has taken.
    fn pay(&self, _frames: u32) {}

    /// Fills frames with zeros.
    fn zero(&self, frames: &[Pfn]);

    /// Copies the contents of frame `from` to frame `to`.
    fn copy_frame(&self, from: Pfn, to: Pfn);

    /// Whether a frame contains only zeros.
    fn is_zero(&self, pfn: Pfn) -> bool;

    /// Reads the 8-byte word number `word` of a frame, below [`WORDS_PER_FRAME`]. For readahead by
    /// pointers, checkers and tests.
    fn load(&self, pfn: Pfn, word: usize) -> u64;

    /// Sets the 8-byte word number `word` of a frame. For checkers and tests.
    fn store(&self, pfn: Pfn, word: usize, value: u64);
}

/// Memory that several managers share: where a platform borrows frames.
pub trait Lender: Send + Sync {
    /// Grants up to `frames` frames; returns how many. Allocations wait for it.
    fn borrow(&self, frames: u32) -> u32;

    /// Takes frames back.
    fn give_back(&self, frames: u32);

    /// The frames that it could grant now.
    fn room(&self) -> u32;

    /// The frames that the borrower has to give up: for memory of its swap devices, which take
    /// `devices` now, and for pages that have parted, that is, are no longer shared with another
    /// process (`parted` so far). See [`Memory::owed`].
    fn owed(&self, devices: Bytes, parted: u64) -> u32;

    /// Reports that the borrower has given up this many frames.
    fn pay(&self, frames: u32);
}

/// 8-byte words in a frame.
pub const WORDS_PER_FRAME: usize = PAGE_SIZE / 8;

/// The operating system refused memory within the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfHostMemory;
