//! Marks: which objects of a slab are allocated.
//!
//! ```text
//! Bits   an exchange for each allocation and each free
//! Bytes  free ──reserve──> reserved ──hand_out──> allocated    a store each
//!         ^──────put──────/    ^──────take_back─────/          an exchange; a store
//! ```
//! A byte of a free or reserved object is set by a plain store, since one thread only has the
//! object. `clear` and `put` are exchanges: of two threads that free an object at the same time,
//! one gets the error. `take_back` is a load and a store, because an exchange waits for all earlier
//! stores, those of the program to its objects, each a possible cache miss. So two threads that
//! take an object back within some ns both succeed; the second of them to allocate or return it
//! gets the error.

use crate::error::FreeError;
use highwater_platform::{Atomic, Platform};
use std::sync::atomic::{AtomicU8, Ordering::*};

/// How allocated objects are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// A bit for each object.
    Bits,
    /// A byte for each object: faster, and required for [`super::Slabs::reserve`]. Caches with
    /// bytes keep few empty slabs, because their callers keep objects.
    Bytes,
}

/// The mark of an object.
#[derive(Debug)]
pub(super) struct Mark(AtomicU8);

const FREE: u8 = 0;
const ALLOCATED: u8 = 1;
const RESERVED: u8 = 2;

impl Mark {
    /// Marks a free object allocated. No other thread has the object.
    #[inline]
    pub(super) fn set(&self) {
        assert!(self.0.load(Relaxed) == FREE, "an object is allocated twice");
        self.0.store(ALLOCATED, Relaxed);
    }

    #[inline]
    pub(super) fn clear(&self) -> Result<(), FreeError> {
        self.exchange(ALLOCATED)
    }

    /// Marks a free object reserved. No other thread has the object.
    pub(super) fn reserve(&self) {
        assert!(self.0.load(Relaxed) == FREE, "an object is reserved twice");
        self.0.store(RESERVED, Relaxed);
    }

    #[inline]
    pub(super) fn hand_out(&self) -> Result<(), FreeError> {
        self.step(RESERVED, ALLOCATED)
    }

    #[inline]
    pub(super) fn take_back(&self) -> Result<(), FreeError> {
        self.step(ALLOCATED, RESERVED)
    }

    /// Marks a reserved object free: it returns to its slab.
    pub(super) fn put(&self) -> Result<(), FreeError> {
        self.exchange(RESERVED)
    }

    #[inline]
    fn step(&self, from: u8, to: u8) -> Result<(), FreeError> {
        if self.0.load(Relaxed) != from {
            return Err(FreeError::Free);
        }
        self.0.store(to, Relaxed);
        Ok(())
    }

    #[inline]
    fn exchange(&self, from: u8) -> Result<(), FreeError> {
        let exchanged = self.0.compare_exchange(from, FREE, AcqRel, Relaxed);
        exchanged.map(drop).map_err(|_| FreeError::Free)
    }
}

/// The marks of a slab.
pub(super) enum Used<P: Platform> {
    Bits(Box<[P::Atomic<u64>]>),
    Bytes(Box<[Mark]>),
}

impl<P: Platform> Used<P> {
    /// The marks of free objects.
    pub(super) fn new(marks: Marks, objects: u16) -> Used<P> {
        match marks {
            Marks::Bits => {
                let words = usize::from(objects).div_ceil(64);
                Used::Bits((0..words).map(|_| Atomic::new(0)).collect())
            }
            Marks::Bytes => Used::Bytes((0..objects).map(|_| Mark(AtomicU8::new(FREE))).collect()),
        }
    }

    /// The byte of an object.
    ///
    /// # Panics
    /// If objects have bits.
    #[inline]
    pub(super) fn byte(&self, index: u16) -> &Mark {
        match self {
            Used::Bytes(bytes) => &bytes[usize::from(index)],
            Used::Bits(_) => panic!("reserved objects need a byte each"),
        }
    }

    #[inline]
    pub(super) fn set(&self, index: u16) {
        match self {
            Used::Bits(words) => {
                let bit = 1 << (index % 64);
                let before = words[usize::from(index / 64)].fetch_add(bit, AcqRel);
                assert!(before & bit == 0, "an object is allocated twice");
            }
            Used::Bytes(_) => self.byte(index).set(),
        }
    }

    #[inline]
    pub(super) fn clear(&self, index: u16) -> Result<(), FreeError> {
        match self {
            Used::Bits(words) => {
                let bit = 1 << (index % 64);
                let before = words[usize::from(index / 64)].fetch_and(!bit, AcqRel);
                if before & bit == 0 { Err(FreeError::Free) } else { Ok(()) }
            }
            Used::Bytes(_) => self.byte(index).clear(),
        }
    }

    #[inline]
    pub(super) fn is_set(&self, index: u16) -> bool {
        match self {
            Used::Bits(words) => {
                words[usize::from(index / 64)].load(Acquire) >> (index % 64) & 1 == 1
            }
            Used::Bytes(_) => self.byte(index).0.load(Acquire) == ALLOCATED,
        }
    }

    /// How many of the first `objects` are allocated, and how many are reserved.
    pub(super) fn count(&self, objects: u16) -> (u64, u64) {
        match self {
            Used::Bits(words) => {
                (words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum(), 0)
            }
            Used::Bytes(bytes) => {
                let states = bytes[..usize::from(objects)].iter().map(|byte| byte.0.load(Relaxed));
                states.fold((0, 0), |(used, at_hand), state| {
                    (used + u64::from(state == ALLOCATED), at_hand + u64::from(state == RESERVED))
                })
            }
        }
    }

    /// Calls `found` with every reserved object.
    pub(super) fn each_reserved(&self, found: impl FnMut(u16)) {
        if let Used::Bytes(bytes) = self {
            let at_hand = |index: &u16| bytes[usize::from(*index)].0.load(Acquire) == RESERVED;
            (0..bytes.len() as u16).filter(at_hand).for_each(found);
        }
    }

    /// Calls `found` with every allocated object.
    pub(super) fn each(&self, mut found: impl FnMut(u16)) {
        match self {
            Used::Bits(words) => {
                for (word, used) in words.iter().enumerate() {
                    let mut left = used.load(Acquire);
                    while left != 0 {
                        found(word as u16 * 64 + left.trailing_zeros() as u16);
                        left &= left - 1;
                    }
                }
            }
            Used::Bytes(bytes) => {
                (0..bytes.len() as u16).filter(|index| self.is_set(*index)).for_each(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_marks_reject_wrong_transitions() {
        let mark = Mark(AtomicU8::new(FREE));
        let wrong = Err(FreeError::Free);
        assert_eq!([mark.hand_out(), mark.take_back(), mark.put(), mark.clear()], [wrong; 4]);
        mark.reserve();
        assert_eq!([mark.take_back(), mark.clear()], [wrong; 2], "reserved");
        assert_eq!(mark.hand_out(), Ok(()));
        assert_eq!([mark.hand_out(), mark.put()], [wrong; 2], "allocated");
        assert_eq!(mark.take_back(), Ok(()));
        assert_eq!(mark.take_back(), wrong, "taken back twice");
        assert_eq!(mark.put(), Ok(()));
        assert_eq!(mark.put(), wrong, "returned twice");
        mark.set();
        assert_eq!((mark.clear(), mark.clear()), (Ok(()), wrong));
    }
}
