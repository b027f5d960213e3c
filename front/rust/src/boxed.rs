//! A slice of fixed length in paged memory.

use crate::element::bytes_of;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::memory::Memory;
use bytemuck::Zeroable;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// A value in paged memory; `PagedBox<[T]>` is a slice. Accesses behave as those to a
/// [`PagedVec`](crate::PagedVec).
///
/// ```
/// # fn main() -> Result<(), highwater::Error> {
/// use highwater::{Memory, PagedBox};
/// let memory = Memory::builder().memory("16M").swap("ram:64M").build()?;
/// let mut counts: PagedBox<[u32]> = PagedBox::zeroed(&memory, 10 << 20)?;
/// counts[7 << 20] += 1;
/// assert_eq!(counts.iter().sum::<u32>(), 1);
/// # Ok(())
/// # }
/// ```
pub struct PagedBox<T: ?Sized> {
    value: NonNull<T>,
    _mapping: Mapping,
}

// SAFETY: it owns its value.
unsafe impl<T: ?Sized + Send> Send for PagedBox<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for PagedBox<T> {}

impl<T: Copy> PagedBox<[T]> {
    /// A slice of `len` zeros. It takes memory as it is written.
    ///
    /// # Errors
    /// Those of [`Memory::map`].
    pub fn zeroed(memory: &Memory, len: usize) -> Result<PagedBox<[T]>, Error>
    where
        T: Zeroable,
    {
        Ok(PagedBox::of(memory.map(bytes_of::<T>(len))?, len))
    }

    /// A slice of the first `len` elements of a mapping, which must have values.
    pub(crate) fn of(mut mapping: Mapping, len: usize) -> PagedBox<[T]> {
        let slice = ptr::slice_from_raw_parts_mut(mapping.as_mut_ptr().cast::<T>(), len);
        let value = NonNull::new(slice).expect("mappings do not lie at 0");
        PagedBox { value, _mapping: mapping }
    }
}

impl<T: ?Sized> Deref for PagedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the box owns its value.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for PagedBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, borrowed for writing.
        unsafe { self.value.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for PagedBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
