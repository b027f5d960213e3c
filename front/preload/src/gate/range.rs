//! Which addresses are paged memory, for the filter of all processes of a run.

use std::ops::Range;

/// The addresses that the filter takes for paged memory. The range of a process begins with them,
/// and is at most as long. Programs that are not served have nothing there.
pub(crate) const RANGE: Range<usize> = 0x2000_0000_0000..0x2c00_0000_0000;

pub(super) fn is_paged(address: usize) -> bool {
    RANGE.contains(&address)
}
