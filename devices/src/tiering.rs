//! Statistics of a device of two levels.

use std::iter::Sum;

/// Pages in each level now, and transfers since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiering {
    /// Pages in the fast level.
    pub fast_pages: u64,
    /// Pages in the slow level.
    pub slow_pages: u64,
    /// Cold pages moved from the fast level to the slow one.
    pub written_back: u64,
    /// Writes made to move them.
    pub writeback_ios: u64,
    /// Pages whose write-back failed; they stayed in the fast level.
    pub writeback_failures: u64,
    /// Pages read from the slow level.
    pub slow_reads: u64,
    /// Pages written directly to the slow level, because the fast one was full.
    pub slow_writes: u64,
}

impl Sum for Tiering {
    fn sum<I: Iterator<Item = Tiering>>(devices: I) -> Tiering {
        devices.fold(Tiering::default(), |sum, device| Tiering {
            fast_pages: sum.fast_pages + device.fast_pages,
            slow_pages: sum.slow_pages + device.slow_pages,
            written_back: sum.written_back + device.written_back,
            writeback_ios: sum.writeback_ios + device.writeback_ios,
            writeback_failures: sum.writeback_failures + device.writeback_failures,
            slow_reads: sum.slow_reads + device.slow_reads,
            slow_writes: sum.slow_writes + device.slow_writes,
        })
    }
}
