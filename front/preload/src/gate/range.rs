//! Which addresses are paged memory, for the filter of all processes of a run.

use std::ops::Range;

/// The addresses that the filter takes for paged memory. The range of a process begins with them,
/// and is at most as long. Programs that are not served have nothing there: the kernel maps from
/// 0x2aaa_aaaa_a000 up in its legacy layout, and near the stack in the usual one. Chromium, node
/// and others that use V8 reserve memory at random addresses below 0x4000_0000_0000, before they
/// need any: with the range there, one or two of Chromium's processes found it taken, and ran
/// unpaged.
pub(crate) const RANGE: Range<usize> = 0x4000_0000_0000..0x4c00_0000_0000;

pub(super) fn is_paged(address: usize) -> bool {
    RANGE.contains(&address)
}
