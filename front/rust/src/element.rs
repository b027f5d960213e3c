//! Elements of vectors and boxes in paged memory.

use highwater_units::PAGE_SIZE;

/// The length of an element, in bytes. Other lengths and alignments do not compile.
pub(crate) const fn size_of_element<T>() -> usize {
    const {
        assert!(size_of::<T>() > 0, "elements have a size");
        assert!(align_of::<T>() <= PAGE_SIZE, "elements are aligned to a page at most");
    }
    size_of::<T>()
}

/// The bytes of so many elements; more than there is memory if the number is too large.
pub(crate) fn bytes_of<T>(elements: usize) -> usize {
    elements.checked_mul(size_of_element::<T>()).unwrap_or(usize::MAX - PAGE_SIZE)
}
