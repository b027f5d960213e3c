//! The contents of frames.
//!
//! A page is 4 KiB behind a reference count, copied when it is written while a slot of a device or
//! a reader refers to it. So a transfer costs the host an increment, and equal pages share memory.

use highwater_platform::WORDS_PER_FRAME;
use highwater_units::Pfn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The words of a page.
pub type Words = [AtomicU64; WORDS_PER_FRAME];

/// A page full of one value.
pub(crate) fn filled(value: u64) -> Arc<Words> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(value)))
}

/// The contents of all frames.
pub(crate) struct Contents {
    frames: Vec<Arc<Words>>,
    zeros: Arc<Words>,
    garbage: Arc<Words>,
}

impl Contents {
    /// Frames that hold anything.
    pub(crate) fn new(frames: usize) -> Contents {
        let garbage = filled(0xdbdb_dbdb_dbdb_dbdb);
        Contents { frames: vec![garbage.clone(); frames], zeros: filled(0), garbage }
    }

    /// What a frame holds.
    pub(crate) fn get(&self, pfn: Pfn) -> &Arc<Words> {
        &self.frames[pfn.index()]
    }

    /// A frame's words, to be written by nobody else's leave.
    pub(crate) fn get_mut(&mut self, pfn: Pfn) -> &Arc<Words> {
        let words = &mut self.frames[pfn.index()];
        if Arc::strong_count(words) > 1 {
            *words = Arc::new(std::array::from_fn(|at| AtomicU64::new(words[at].load(Relaxed))));
        }
        words
    }

    /// Replaces what a frame holds.
    pub(crate) fn set(&mut self, pfn: Pfn, words: Arc<Words>) {
        self.frames[pfn.index()] = words;
    }

    /// The frame holds anything from now on.
    pub(crate) fn spoil(&mut self, pfn: Pfn) {
        self.frames[pfn.index()] = self.garbage.clone();
    }

    /// The frame holds zeros.
    pub(crate) fn clear(&mut self, pfn: Pfn) {
        self.frames[pfn.index()] = self.zeros.clone();
    }
}
