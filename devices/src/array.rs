//! Tables that take memory only where they are touched.

use crate::sys::Mapping;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::AtomicU64;

/// A type for which all-zero bits are a value.
///
/// # Safety
/// All-zero bits are a value, and the alignment is at most that of a page.
pub(crate) unsafe trait Zeroable {}

// SAFETY: every bit pattern is a value.
unsafe impl Zeroable for AtomicU64 {}

/// A fixed number of values in a mapping of their own, initially zero.
pub(crate) struct Array<T: Zeroable> {
    mapping: Mapping,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Zeroable> Array<T> {
    /// `len` zeros, at least one.
    ///
    /// # Errors
    /// The system's error number: ENOMEM when overcommit or a limit forbids it.
    pub(crate) fn new(len: usize) -> Result<Array<T>, i32> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(libc::ENOMEM)?;
        Ok(Array { mapping: Mapping::new(bytes)?, len, values: PhantomData })
    }
}

impl<T: Zeroable> Array<T> {
    /// The memory of the values.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl<T: Zeroable> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` aligned values, zero or written as values, and its memory
        // is reached only through this table.
        unsafe { from_raw_parts(self.mapping.at(0).cast(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { from_raw_parts_mut(self.mapping.at(0).cast(), self.len) }
    }
}
