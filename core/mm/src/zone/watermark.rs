//! The watermarks: how many frames a zone keeps free, and what happens below each of them.
//!
//! ```text
//! free frames:  0 ............ min ........... low ............. high ............
//!               direct reclaim | kswapd wakes  | kswapd continues | kswapd sleeps
//! ```
//! The kernel's formula (mm/page_alloc.c, Linux 6.1): min = sqrt(16 * KiB of memory) KiB, within
//! 128 KiB and 256 MiB; the gaps are a quarter of min or `scale`/10000 of memory, whichever is
//! larger. Two departures: a budget can be far smaller than any machine, so min is at most 1/16 of
//! it; and unless `scale` is given, the gaps are at least 8 MiB or 1/64 of the zone, whichever is
//! smaller. The gaps give kswapd time: in a small memory, allocations use up the kernel's 512 KiB
//! before kswapd's first write is complete. At 256 MiB, 2 threads that streamed to a disk wrote 1.0
//! GB/s with the kernel's gaps and 1.3 GB/s with these; a fault's p99 was 1.7 ms and 0.23 ms.

use highwater_units::PAGE_SIZE;

/// The kernel's watermark_scale_factor.
const KERNEL_SCALE: u32 = 10;

/// The gap that gives kswapd enough time in any zone: 8 MiB, twice its pages under write.
const GAP_ENOUGH: u32 = (8 << 20) / PAGE_SIZE as u32;

/// In a small zone, the least gap is one frame in this many.
const GAP_SHARE: u32 = 64;

/// The watermark above which an allocation takes frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// None: for threads that have just freed memory.
    Nothing,
    /// An allocation that finds nothing above min reclaims.
    Min,
    /// An allocation that finds nothing above low wakes kswapd.
    Low,
    /// kswapd sleeps above high.
    High,
}

/// The watermarks of a zone, in frames: min < low < high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Allocations reclaim directly below it.
    pub min: u32,
    /// Allocations wake kswapd below it.
    pub low: u32,
    /// kswapd sleeps at or above it.
    pub high: u32,
}

impl Watermarks {
    /// The watermarks of a zone that has `frames` of a machine's `total` frames.
    /// `min_free` (frames, for the whole machine) replaces the square root; `scale` is
    /// watermark_scale_factor, in 10000ths of the zone; `None`: by the zone's size.
    pub fn new(frames: u32, total: u32, min_free: Option<u32>, scale: Option<u32>) -> Watermarks {
        let formula = || {
            let kib = u64::from(total) * (PAGE_SIZE as u64 / 1024);
            let min_kib = (kib * 16).isqrt().clamp(128, 262_144);
            ((min_kib * 1024 / PAGE_SIZE as u64) as u32).min(total / 16)
        };
        let machine_min = min_free.unwrap_or_else(formula);
        let share = u64::from(machine_min) * u64::from(frames) / u64::from(total.max(1));
        let min = (share as u32).max(1);
        let enough = match scale {
            Some(_) => 0,
            None => GAP_ENOUGH.min(frames / GAP_SHARE),
        };
        let scale = scale.unwrap_or(KERNEL_SCALE);
        let scaled = (u64::from(frames) * u64::from(scale) / 10_000) as u32;
        let gap = (min / 4).max(scaled).max(enough).max(1);
        Watermarks { min, low: min + gap, high: min + 2 * gap }
    }

    /// Frames that must stay free at a level.
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::Nothing => 0,
            Level::Min => self.min,
            Level::Low => self.low,
            Level::High => self.high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames, min_free, scale, expected (min, low, high).
    #[track_caller]
    fn assert_marks(
        frames: u32,
        min_free: Option<u32>,
        scale: Option<u32>,
        expected: (u32, u32, u32),
    ) {
        let marks = Watermarks::new(frames, frames, min_free, scale);
        assert_eq!((marks.min, marks.low, marks.high), expected);
    }

    #[test]
    fn watermarks_follow_the_kernel() {
        assert_marks(1 << 16, None, Some(10), (512, 640, 768)); // 256 MiB: 2 MiB
        assert_marks(1 << 22, None, Some(10), (4096, 8290, 12_484)); // 16 GiB: 16 MiB
        assert_marks(1 << 22, Some(100), Some(10), (100, 100 + 4194, 100 + 8388));
    }

    #[test]
    fn gaps_of_small_zones_are_larger_than_the_kernels() {
        assert_marks(1 << 16, None, None, (512, 1536, 2560)); // 256 MiB: 4 MiB each
        assert_marks(1 << 18, None, None, (1024, 3072, 5120)); // 1 GiB: 8 MiB
        assert_marks(1 << 22, None, None, (4096, 8290, 12_484)); // 16 GiB: as the kernel's
    }

    #[test]
    fn watermarks_of_tiny_budgets_leave_most_of_the_memory() {
        assert_marks(1024, None, None, (64, 80, 96));
        assert_marks(64, None, None, (4, 5, 6));
        assert_marks(16, None, None, (1, 2, 3));
    }

    #[test]
    fn a_node_gets_its_share_of_the_machines_minimum() {
        let half = Watermarks::new(1 << 15, 1 << 16, None, None);
        assert_eq!(half.min, 256);
    }
}
