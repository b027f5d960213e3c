//! Sizes and kinds of requests for memory.

use highwater_units::PAGE_SIZE;

/// Requests below this are objects of the heap, or the C library's.
pub(crate) const PAGED_MIN: usize = 64 << 10;

/// Whether a request must fit what is left of memory and swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// It must: better refused now than ended later.
    Checked,
    /// The program said that it will not use all of it (MAP_NORESERVE, PROT_NONE).
    Unchecked,
}

/// Bytes as whole pages.
pub(crate) fn pages_of(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PAGE_SIZE as u64)
}
