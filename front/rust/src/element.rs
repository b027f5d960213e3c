//! Elements of vectors and boxes in paged memory.

use highwater_units::PAGE_SIZE;

/// The length of an element, in bytes. Elements without a size, or aligned to more than a page, do
/// not compile.
pub(crate) const fn size_of_element<T>() -> usize {
    const {
        assert!(size_of::<T>() > 0, "elements have a size");
        assert!(align_of::<T>() <= PAGE_SIZE, "elements are aligned to a page at most");
    }
    size_of::<T>()
}

/// The length of so many elements, in bytes. If the number is too large, a length that does not fit
/// in any memory.
pub(crate) fn bytes_of<T>(elements: usize) -> usize {
    elements.checked_mul(size_of_element::<T>()).unwrap_or(usize::MAX - PAGE_SIZE)
}
