//! Places with a value each, which one thread holds at a time.
//!
//! Locks: none ([`Busy`]). A place that its holder leaves stays taken, and is found again by its
//! number.

use crate::busy::{Busy, PLACES};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// [`PLACES`] places.
pub(crate) struct Places<T> {
    busy: Busy,
    values: [UnsafeCell<T>; PLACES],
}

// SAFETY: only the thread that took a place reaches its value.
unsafe impl<T: Send> Sync for Places<T> {}

impl<T: Default> Places<T> {
    /// Free places.
    pub(crate) fn new() -> Places<T> {
        let values = std::array::from_fn(|_| UnsafeCell::default());
        Places { busy: Busy::new(PLACES), values }
    }
}

impl<T> Places<T> {
    /// Waits until a place is free, and takes the lowest.
    pub(crate) fn take(&self) -> Taken<'_, T> {
        self.back(self.busy.take())
    }

    /// The lowest free place among the first `most`; `None`: all are taken.
    pub(crate) fn try_take(&self, most: usize) -> Option<Taken<'_, T>> {
        self.busy.try_take(most).map(|index| self.back(index))
    }

    /// The place that [`Taken::leave`] has left under this number.
    pub(crate) fn back(&self, index: u32) -> Taken<'_, T> {
        Taken { places: self, index }
    }
}

/// A place that a thread holds.
pub(crate) struct Taken<'a, T> {
    places: &'a Places<T>,
    /// Its number.
    pub(crate) index: u32,
}

impl<T> Taken<'_, T> {
    /// Keeps the place taken, for [`Places::back`].
    pub(crate) fn leave(self) -> u32 {
        let index = self.index;
        std::mem::forget(self);
        index
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a place has one holder.
        unsafe { &*self.places.values[self.index as usize].get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a place has one holder, which is borrowed mutably.
        unsafe { &mut *self.places.values[self.index as usize].get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.places.busy.put(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_left_keeps_its_value_and_its_holder() {
        let places = Places::<u32>::new();
        let mut first = places.take();
        *first = 7;
        let number = first.leave();
        let other = places.try_take(1).map(|taken| taken.index);
        assert_eq!(other, None, "the first place is still held");
        assert_eq!(*places.back(number), 7);
        assert_eq!(places.try_take(1).map(|taken| *taken), Some(7), "free again");
    }
}
