//! Sizes and kinds of requests for memory.

use highwater_units::PAGE_SIZE;

/// Smaller requests are objects of the heap, or the C library's.
pub(crate) const PAGED_MIN: usize = 64 << 10;

/// Whether a request must fit into the free part of memory and swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// It must: it is refused now, so that the program is not ended later.
    Checked,
    /// The program does not intend to use all of it (MAP_NORESERVE, PROT_NONE).
    Unchecked,
}

/// Rounds bytes up to pages.
pub(crate) fn pages_of(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PAGE_SIZE as u64)
}
