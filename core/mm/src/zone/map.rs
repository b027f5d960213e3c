//! What the frames and pageblocks of a part are, for its buddy allocator, and for who only looks.
//!
//! ```text
//! Map -- heads   by frame: the order of the free block that starts there
//!     |- types   by pageblock: its mobility
//!     |- free    by pageblock: frames in free blocks
//!     |- staying by pageblock: frames handed out that cannot be moved, by kind
//!     \- skips   by pageblock: compaction found nothing there
//! ```
//! Locking: changed under the part's lock only. Who looks without it sees what was so a moment ago,
//! and looks again under the lock before it acts. These are no words of the platform: compaction
//! goes over hundreds at a time, and says so itself.

use super::mobility::PAGEBLOCK;
use crate::frame::Mobility;
use highwater_units::Order;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16};

/// Not the head of a free block.
const NOT_FREE: u8 = u8::MAX;

/// Kinds of frames that stay: all types but the movable one.
const KINDS: usize = Mobility::ALL.len() - 1;

/// The frames and pageblocks of one part, by number from its first frame on.
pub(super) struct Map {
    heads: Box<[AtomicU8]>,
    types: Box<[AtomicU8]>,
    free: Box<[AtomicU16]>,
    staying: Box<[[AtomicU16; KINDS]]>,
    skips: Box<[AtomicU8]>,
}

impl Map {
    /// Of `frames` frames, none of them free, in movable pageblocks.
    pub(super) fn new(frames: u32) -> Map {
        let bytes = |len: u32, value| (0..len).map(|_| AtomicU8::new(value)).collect();
        let blocks = frames.div_ceil(PAGEBLOCK);
        Map {
            heads: bytes(frames, NOT_FREE),
            types: bytes(blocks, Mobility::Movable as u8),
            free: (0..blocks).map(|_| AtomicU16::new(0)).collect(),
            staying: (0..blocks).map(|_| [const { AtomicU16::new(0) }; KINDS]).collect(),
            skips: bytes(blocks, 0),
        }
    }

    /// Frames.
    pub(super) fn frames(&self) -> u32 {
        self.heads.len() as u32
    }

    /// Pageblocks; the last one may be shorter.
    pub(super) fn pageblocks(&self) -> u32 {
        self.types.len() as u32
    }

    /// The order of the free block that starts with a frame; `None` also beyond the end.
    pub(super) fn head(&self, frame: u32) -> Option<Order> {
        let order = self.heads.get(frame as usize)?.load(Relaxed);
        (order != NOT_FREE).then_some(Order(order))
    }

    /// A free block starts with a frame, or no longer does.
    pub(super) fn set_head(&self, frame: u32, order: Option<Order>) {
        self.heads[frame as usize].store(order.map_or(NOT_FREE, |order| order.0), Relaxed);
    }

    /// The type of a pageblock.
    pub(super) fn mobility(&self, pageblock: u32) -> Mobility {
        Mobility::ALL[usize::from(self.types[pageblock as usize].load(Relaxed))]
    }

    /// Changes it.
    pub(super) fn set_mobility(&self, pageblock: u32, mobility: Mobility) {
        self.types[pageblock as usize].store(mobility as u8, Relaxed);
    }

    /// Frames in free blocks of a pageblock.
    pub(super) fn free(&self, pageblock: u32) -> u32 {
        self.free[pageblock as usize].load(Relaxed).into()
    }

    /// Notes a free block that comes or goes.
    pub(super) fn note_free(&self, frame: u32, order: Order, change: fn(u16, u16) -> u16) {
        for pageblock in self.pageblocks_of(frame, order) {
            let free = &self.free[pageblock as usize];
            let frames = order.frames().min(PAGEBLOCK) as u16;
            free.store(change(free.load(Relaxed), frames), Relaxed);
        }
    }

    /// Frames of a pageblock that are out and cannot be moved.
    pub(super) fn staying(&self, pageblock: u32) -> u32 {
        let kinds = &self.staying[pageblock as usize];
        kinds.iter().map(|frames| u32::from(frames.load(Relaxed))).sum()
    }

    /// Notes a block that comes or goes for who cannot move it.
    pub(super) fn note_staying(
        &self,
        frame: u32,
        order: Order,
        mobility: Mobility,
        change: fn(u16, u16) -> u16,
    ) {
        let Some(kind) = (mobility as usize).checked_sub(1) else { return };
        for pageblock in self.pageblocks_of(frame, order) {
            let staying = &self.staying[pageblock as usize][kind];
            let now = change(staying.load(Relaxed), order.frames().min(PAGEBLOCK) as u16);
            staying.store(now, Relaxed);
            let within = self.frames_of(pageblock).len();
            debug_assert!(usize::from(now) <= within, "{mobility:?} frames of {pageblock}");
        }
    }

    /// Whether compaction leaves a pageblock out. Changed without a lock: a hint.
    pub(super) fn skips(&self, pageblock: u32) -> bool {
        self.skips[pageblock as usize].load(Relaxed) != 0
    }

    /// It does from now on.
    pub(super) fn set_skip(&self, pageblock: u32) {
        self.skips[pageblock as usize].store(1, Relaxed);
    }

    /// It leaves none out.
    pub(super) fn clear_skips(&self) {
        self.skips.iter().for_each(|skip| skip.store(0, Relaxed));
    }

    /// The frames of a pageblock.
    pub(super) fn frames_of(&self, pageblock: u32) -> std::ops::Range<u32> {
        pageblock * PAGEBLOCK..((pageblock + 1) * PAGEBLOCK).min(self.frames())
    }

    /// Whether a frame is the first of a free block, or the pageblock's type says where it is: the
    /// pageblocks of a block.
    pub(super) fn pageblocks_of(&self, frame: u32, order: Order) -> std::ops::Range<u32> {
        let first = frame / PAGEBLOCK;
        first..first + order.frames().div_ceil(PAGEBLOCK)
    }
}
