//! The state of a part's frames and pageblocks. The buddy allocator changes it; compaction reads it
//! without the lock.
//!
//! ```text
//! Map -- heads     by frame: the order of the free block that starts there
//!     |- untouched blocks of the largest order that were never allocated: `heads` lacks them
//!     |- types     by pageblock: its migrate type
//!     |- free      by pageblock: frames in free blocks
//!     |- unmovable by pageblock: allocated frames that cannot move, by type
//!     \- skips     by pageblock: compaction skips it, because it isolated nothing there
//! ```
//! Locking: all but `skips` changes under the part's lock only. A reader without the lock may see
//! an old state, and checks it under the lock before it acts. The words are not the platform's
//! atomics: compaction reads hundreds at a time, and charges the time for that itself.

use super::mobility::PAGEBLOCK;
use crate::frame::Mobility;
use highwater_units::Order;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32};

/// Number of types that cannot move: all but movable.
const KINDS: usize = Mobility::ALL.len() - 1;

/// Frames and pageblocks of one part, numbered from its first frame.
pub(super) struct Map {
    /// 0: no free block starts here; else its order + 1.
    heads: Box<[AtomicU8]>,
    /// The first frame of the untouched blocks, ...
    untouched: AtomicU32,
    /// ... and the end of the last one.
    whole: u32,
    types: Box<[AtomicU8]>,
    free: Box<[AtomicU16]>,
    unmovable: Box<[[AtomicU16; KINDS]]>,
    skips: Box<[AtomicU8]>,
}

impl Map {
    /// A map of `frames` frames in movable pageblocks. Whole blocks of the largest order are free
    /// and untouched, the rest is not free.
    pub(super) fn new(frames: u32) -> Map {
        // Zeros cost no memory until they are written.
        let bytes = |len: u32, value| vec![value; len as usize].into_iter().map(AtomicU8::new);
        let blocks = frames.div_ceil(PAGEBLOCK);
        let map = Map {
            heads: bytes(frames, 0).collect(),
            untouched: AtomicU32::new(0),
            whole: frames & !(Order::MAX.frames() - 1),
            types: bytes(blocks, Mobility::Movable as u8).collect(),
            free: (0..blocks).map(|_| AtomicU16::new(0)).collect(),
            unmovable: (0..blocks).map(|_| [const { AtomicU16::new(0) }; KINDS]).collect(),
            skips: bytes(blocks, 0).collect(),
        };
        map.untouched().for_each(|block| map.note_free(block, Order::MAX, u16::wrapping_add));
        map
    }

    /// Number of frames.
    pub(super) fn frames(&self) -> u32 {
        self.heads.len() as u32
    }

    /// Number of pageblocks; the last one may be shorter.
    pub(super) fn pageblocks(&self) -> u32 {
        self.types.len() as u32
    }

    /// The order of the free block that starts at a frame; `None` also past the end.
    pub(super) fn head(&self, frame: u32) -> Option<Order> {
        let order = self.heads.get(frame as usize)?.load(Relaxed).checked_sub(1);
        order.map(Order).or_else(|| self.is_untouched(frame).then_some(Order::MAX))
    }

    /// Sets the order of the free block that starts at a frame.
    pub(super) fn set_head(&self, frame: u32, order: Option<Order>) {
        self.heads[frame as usize].store(order.map_or(0, |order| order.0 + 1), Relaxed);
    }

    /// The first frames of untouched blocks.
    pub(super) fn untouched(&self) -> impl Iterator<Item = u32> + use<> {
        (self.untouched.load(Relaxed)..self.whole).step_by(Order::MAX.frames() as usize)
    }

    /// Whether an untouched block starts at a frame.
    pub(super) fn is_untouched(&self, frame: u32) -> bool {
        let starts = frame & (Order::MAX.frames() - 1) == 0;
        starts && (self.untouched.load(Relaxed)..self.whole).contains(&frame)
    }

    /// Makes the first untouched block an ordinary free one; returns it.
    pub(super) fn touch(&self) -> Option<u32> {
        let block = self.untouched().next()?;
        self.set_head(block, Some(Order::MAX));
        self.untouched.store(block + Order::MAX.frames(), Relaxed);
        Some(block)
    }

    /// The migrate type of a pageblock.
    pub(super) fn mobility(&self, pageblock: u32) -> Mobility {
        Mobility::ALL[usize::from(self.types[pageblock as usize].load(Relaxed))]
    }

    /// Sets the migrate type of a pageblock.
    pub(super) fn set_mobility(&self, pageblock: u32, mobility: Mobility) {
        self.types[pageblock as usize].store(mobility as u8, Relaxed);
    }

    /// Frames in free blocks of a pageblock.
    pub(super) fn free(&self, pageblock: u32) -> u32 {
        self.free[pageblock as usize].load(Relaxed).into()
    }

    /// Adds a free block to the counts, or subtracts it.
    pub(super) fn note_free(&self, frame: u32, order: Order, change: fn(u16, u16) -> u16) {
        for pageblock in self.pageblocks_of(frame, order) {
            let free = &self.free[pageblock as usize];
            let frames = order.frames().min(PAGEBLOCK) as u16;
            free.store(change(free.load(Relaxed), frames), Relaxed);
        }
    }

    /// Allocated frames of a pageblock that cannot move.
    pub(super) fn unmovable(&self, pageblock: u32) -> u32 {
        let kinds = &self.unmovable[pageblock as usize];
        kinds.iter().map(|frames| u32::from(frames.load(Relaxed))).sum()
    }

    /// Adds an allocated block to the counts, or subtracts it; movable ones are not counted.
    pub(super) fn note_unmovable(
        &self,
        frame: u32,
        order: Order,
        mobility: Mobility,
        change: fn(u16, u16) -> u16,
    ) {
        let Some(kind) = (mobility as usize).checked_sub(1) else { return };
        for pageblock in self.pageblocks_of(frame, order) {
            let unmovable = &self.unmovable[pageblock as usize][kind];
            let now = change(unmovable.load(Relaxed), order.frames().min(PAGEBLOCK) as u16);
            unmovable.store(now, Relaxed);
            let within = self.frames_of(pageblock).len();
            debug_assert!(usize::from(now) <= within, "{mobility:?} frames of {pageblock}");
        }
    }

    /// Whether compaction skips a pageblock. A hint: it changes without a lock.
    pub(super) fn skips(&self, pageblock: u32) -> bool {
        self.skips[pageblock as usize].load(Relaxed) != 0
    }

    /// Makes compaction skip a pageblock.
    pub(super) fn set_skip(&self, pageblock: u32) {
        self.skips[pageblock as usize].store(1, Relaxed);
    }

    /// Makes compaction skip no pageblock.
    pub(super) fn clear_skips(&self) {
        self.skips.iter().for_each(|skip| skip.store(0, Relaxed));
    }

    /// The frames of a pageblock.
    pub(super) fn frames_of(&self, pageblock: u32) -> Range<u32> {
        pageblock * PAGEBLOCK..((pageblock + 1) * PAGEBLOCK).min(self.frames())
    }

    /// The pageblocks that a block covers, or the one that it is in.
    pub(super) fn pageblocks_of(&self, frame: u32, order: Order) -> Range<u32> {
        let first = frame / PAGEBLOCK;
        first..first + order.frames().div_ceil(PAGEBLOCK)
    }
}
