//! The watermarks of a zone, and the limits of its per-CPU lists: both follow from the frames that
//! it may use.
//!
//! Locking: none. The words are not the platform's atomics, because they change only with the size
//! of the zone. A reader during a change may combine old and new values: each is right on its own.

use super::pcp::{Limits, ListRule};
use super::watermark::Watermarks;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The watermarks and list limits of a zone of some size.
pub(super) struct Size {
    /// min, and the gap between two marks.
    marks: AtomicU64,
    /// batch, high.
    limits: AtomicU64,
    /// CPUs of the zone's node.
    cpus: usize,
    rule: ListRule,
}

fn pack(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: &AtomicU64) -> (u32, u32) {
    let word = word.load(Relaxed);
    (word as u32, (word >> 32) as u32)
}

impl Size {
    /// The size of a zone with `frames` frames.
    pub(super) fn new(frames: u32, marks: Watermarks, cpus: usize, rule: ListRule) -> Size {
        let size = Size { marks: AtomicU64::new(0), limits: AtomicU64::new(0), cpus, rule };
        size.set(frames, marks);
        size
    }

    /// Changes the size.
    pub(super) fn set(&self, frames: u32, marks: Watermarks) {
        let gap = marks.low - marks.min;
        debug_assert_eq!(marks.high - marks.low, gap, "the marks are equally far apart");
        self.marks.store(pack(marks.min, gap), Relaxed);
        let Limits { batch, high, .. } = Limits::new(self.rule, frames, marks.low, self.cpus);
        self.limits.store(pack(batch as u32, high as u32), Relaxed);
    }

    /// The watermarks.
    pub(super) fn marks(&self) -> Watermarks {
        let (min, gap) = halves(&self.marks);
        Watermarks { min, low: min + gap, high: min + 2 * gap }
    }

    /// The limits of a CPU's list.
    pub(super) fn limits(&self) -> Limits {
        let (batch, high) = halves(&self.limits);
        Limits { batch: batch as usize, high: high as usize, rule: self.rule }
    }
}
