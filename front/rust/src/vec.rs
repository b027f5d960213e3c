//! A vector in paged memory.

use crate::advice::Advice;
use crate::boxed::PagedBox;
use crate::element::{bytes_of, size_of_element};
use crate::error::Error;
use crate::mapping::Mapping;
use crate::memory::Memory;
use bytemuck::Zeroable;
use highwater_units::PAGE_SIZE;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::slice;

/// A vector whose elements may take more memory than the budget. It dereferences to a slice, so
/// everything that works on slices works on it; accesses through the slice end the process if a
/// page cannot be brought in, and [`PagedVec::read_at`] and [`PagedVec::write_at`] return an error
/// instead ([`Mapping`]).
///
/// It grows in place, or moves to other addresses without being copied.
///
/// ```
/// # fn main() -> Result<(), highwater::Error> {
/// let memory = highwater::Memory::builder().memory("16M").swap("ram:64M").build()?;
/// let mut found = highwater::PagedVec::new(&memory);
/// for number in (0..4_000_000u64).rev() {
///     found.push(number)?;
/// }
/// found.sort_unstable();
/// assert!(found.iter().copied().eq(0..4_000_000));
/// # Ok(())
/// # }
/// ```
pub struct PagedVec<T: Copy> {
    mapping: Mapping,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Copy> PagedVec<T> {
    const SIZE: usize = size_of_element::<T>();

    /// An empty vector.
    ///
    /// # Panics
    /// In a forked child of the process that made `memory`.
    pub fn new(memory: &Memory) -> PagedVec<T> {
        PagedVec::with_capacity(memory, 0).expect("no memory is needed")
    }

    /// An empty vector with room for `capacity` elements.
    ///
    /// # Errors
    /// Those of [`Memory::map`].
    pub fn with_capacity(memory: &Memory, capacity: usize) -> Result<PagedVec<T>, Error> {
        let mapping = memory.map(bytes_of::<T>(capacity))?;
        Ok(PagedVec { mapping, len: 0, elements: PhantomData })
    }

    /// A vector of `len` zeros. It takes memory as it is written.
    ///
    /// # Errors
    /// Those of [`Memory::map`].
    pub fn zeroed(memory: &Memory, len: usize) -> Result<PagedVec<T>, Error>
    where
        T: Zeroable,
    {
        let mut vec = PagedVec::with_capacity(memory, len)?;
        vec.len = len;
        Ok(vec)
    }

    /// A copy of a slice.
    ///
    /// # Errors
    /// Those of [`PagedVec::extend_from_slice`].
    pub fn from_slice(memory: &Memory, slice: &[T]) -> Result<PagedVec<T>, Error> {
        let mut vec = PagedVec::with_capacity(memory, slice.len())?;
        vec.extend_from_slice(slice)?;
        Ok(vec)
    }

    /// The number of elements for which there is room.
    pub fn capacity(&self) -> usize {
        self.mapping.len() / Self::SIZE
    }

    /// Makes room for `additional` elements after the existing ones.
    ///
    /// # Errors
    /// Those of [`Mapping::resize`].
    pub fn reserve(&mut self, additional: usize) -> Result<(), Error> {
        let wanted = self.len.saturating_add(additional);
        if wanted <= self.capacity() {
            return Ok(());
        }
        // Doubles the room where that fits, so that the time to push n elements is proportional to
        // n.
        let ample = bytes_of::<T>(wanted.max(self.capacity().saturating_mul(2)));
        let ample = self.mapping.resize(ample.next_multiple_of(PAGE_SIZE));
        ample.or_else(|_| self.mapping.resize(bytes_of::<T>(wanted)))
    }

    /// Gives back the unused room after the elements.
    ///
    /// # Errors
    /// Those of [`Mapping::resize`].
    pub fn shrink_to_fit(&mut self) -> Result<(), Error> {
        self.mapping.resize(bytes_of::<T>(self.len))
    }

    /// Appends an element.
    ///
    /// # Errors
    /// Those of [`Mapping::resize`].
    pub fn push(&mut self, value: T) -> Result<(), Error> {
        if self.len == self.capacity() {
            self.reserve(1)?;
        }
        // SAFETY: there is room for one more element.
        unsafe { self.mapping.as_mut_ptr().cast::<T>().add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Removes the last element.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.last().copied()?;
        self.len -= 1;
        Some(last)
    }

    /// Appends the elements of a slice.
    ///
    /// # Errors
    /// Those of [`Mapping::resize`] and [`Mapping::write_at`]; the vector is unchanged.
    pub fn extend_from_slice(&mut self, slice: &[T]) -> Result<(), Error> {
        self.reserve(slice.len())?;
        self.copy_in(self.len, slice)?;
        self.len += slice.len();
        Ok(())
    }

    /// Drops the elements from `len` on. The capacity is unchanged.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Drops all elements.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Copies elements out; see [`Mapping::read_at`].
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    pub fn read_at(&self, index: usize, to: &mut [T]) -> Result<(), Error> {
        self.expect_inside(index, to.len())?;
        let (address, len) = (to.as_mut_ptr().cast::<u8>(), size_of_val(to));
        // SAFETY: the bytes of a slice that is borrowed for writing; they come from elements.
        unsafe { self.mapping.copy_out(index * Self::SIZE, address, len) }
    }

    /// Copies elements in; see [`Mapping::write_at`].
    ///
    /// # Errors
    /// Those of [`Mapping::write_at`].
    pub fn write_at(&mut self, index: usize, from: &[T]) -> Result<(), Error> {
        self.expect_inside(index, from.len())?;
        self.copy_in(index, from)
    }

    fn copy_in(&mut self, index: usize, from: &[T]) -> Result<(), Error> {
        let (address, len) = (from.as_ptr().cast::<u8>(), size_of_val(from));
        // SAFETY: the bytes of a slice that is borrowed for reading.
        unsafe { self.mapping.copy_in(index * Self::SIZE, address, len) }
    }

    /// Requests elements that will be used soon; see [`Mapping::prefetch`].
    pub fn prefetch(&self, range: std::ops::Range<usize>) {
        let end = range.end.min(self.len);
        self.mapping.prefetch(range.start * Self::SIZE..end * Self::SIZE);
    }

    /// Says how the elements are going to be used.
    pub fn advise(&self, advice: Advice) {
        self.mapping.advise(advice);
    }

    /// Makes its elements a box, which cannot grow.
    ///
    /// # Errors
    /// Those of [`PagedVec::shrink_to_fit`].
    pub fn into_boxed_slice(mut self) -> Result<PagedBox<[T]>, Error> {
        self.shrink_to_fit()?;
        Ok(PagedBox::of(self.mapping, self.len))
    }

    fn expect_inside(&self, index: usize, count: usize) -> Result<(), Error> {
        let end = index.saturating_add(count);
        if end <= self.len {
            return Ok(());
        }
        Err(Error::Range { end: bytes_of::<T>(end) as u64, len: bytes_of::<T>(self.len) as u64 })
    }
}

impl<T: Copy> Deref for PagedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements have values; the mapping is aligned to pages.
        unsafe { slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}

impl<T: Copy> DerefMut for PagedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, borrowed for writing.
        unsafe { slice::from_raw_parts_mut(self.mapping.as_mut_ptr().cast(), self.len) }
    }
}

impl<'a, T: Copy> IntoIterator for &'a PagedVec<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for PagedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
