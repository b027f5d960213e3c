//! The arena: the frames that the budget allows.

use highwater_units::{NodeId, PAGE_SIZE, Pfn};

/// The frames of one memory node, contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRange {
    /// The node they lie on.
    pub node: NodeId,
    /// The first frame.
    pub first: Pfn,
    /// How many.
    pub frames: u32,
}

/// Frame contents. A frame named here is not mapped in a program (see [`crate::Mmu`]).
pub trait Memory {
    /// The frames of every node, in ascending order, without holes. Constant.
    fn ranges(&self) -> Vec<FrameRange>;

    /// Backs frames that were never used with memory; contents are then undefined. Free for frames
    /// that have memory already.
    ///
    /// # Errors
    /// The system has no memory left: the frame cannot be used.
    fn populate(&self, frames: &[Pfn]) -> Result<(), OutOfHostMemory>;

    /// Fills populated frames with zeros.
    fn zero(&self, frames: &[Pfn]);

    /// Copies the contents of a populated frame to another.
    fn copy_frame(&self, from: Pfn, to: Pfn);

    /// Whether a populated frame holds zeros only.
    fn is_zero(&self, pfn: Pfn) -> bool;

    /// The `word`th 8-byte word of a populated frame: for checkers and tests.
    fn load(&self, pfn: Pfn, word: usize) -> u64;

    /// Sets a word of a populated frame: for checkers and tests.
    fn store(&self, pfn: Pfn, word: usize, value: u64);
}

/// 8-byte words in a frame.
pub const WORDS_PER_FRAME: usize = PAGE_SIZE / 8;

/// The operating system refused memory within the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfHostMemory;
