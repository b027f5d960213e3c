//! The contents of frames.
//!
//! A page is 4 KiB behind a reference count. A write copies it if a device slot or a reader holds
//! another reference. So a transfer costs the host one increment, and equal pages share memory.

use highwater_platform::WORDS_PER_FRAME;
use highwater_units::Pfn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The words of a page.
pub type Words = [AtomicU64; WORDS_PER_FRAME];

/// A page whose words all have one value.
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
    /// Frames with undefined contents.
    pub(crate) fn new(frames: usize) -> Contents {
        let garbage = filled(0xdbdb_dbdb_dbdb_dbdb);
        Contents { frames: vec![garbage.clone(); frames], zeros: filled(0), garbage }
    }

    /// The contents of a frame.
    pub(crate) fn get(&self, pfn: Pfn) -> &Arc<Words> {
        &self.frames[pfn.index()]
    }

    /// A frame's words for writing; copies them first if they are shared.
    pub(crate) fn get_mut(&mut self, pfn: Pfn) -> &Arc<Words> {
        let words = &mut self.frames[pfn.index()];
        if Arc::strong_count(words) > 1 {
            *words = Arc::new(std::array::from_fn(|at| AtomicU64::new(words[at].load(Relaxed))));
        }
        words
    }

    /// Replaces the contents of a frame.
    pub(crate) fn set(&mut self, pfn: Pfn, words: Arc<Words>) {
        self.frames[pfn.index()] = words;
    }

    /// Makes the contents of a frame undefined.
    pub(crate) fn spoil(&mut self, pfn: Pfn) {
        self.frames[pfn.index()] = self.garbage.clone();
    }

    /// Zeroes a frame.
    pub(crate) fn clear(&mut self, pfn: Pfn) {
        self.frames[pfn.index()] = self.zeros.clone();
    }
}
