//! Which objects of a slab are in use.
//!
//! ```text
//! Bits   one exchange when an object is handed out, one when it comes back
//! Bytes  a store when it is handed out; one exchange when it comes back
//! ```
//! Nobody else looks at an object that is about to be handed out, so a byte of its own may be set
//! by a plain store. To clear it takes an exchange either way: of two who give an object back at
//! once, one is told.

use crate::error::FreeError;
use highwater_platform::{Atomic, Platform};
use std::sync::atomic::{AtomicU8, Ordering::*};

/// How it is noted that objects are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// By a bit each.
    Bits,
    /// By a byte each: faster, and needed for [`super::Slabs::reserve`].
    Bytes,
}

/// Whether an object is in use.
#[derive(Debug)]
pub(super) struct Mark(AtomicU8);

const FREE: u8 = 0;
const IN_USE: u8 = 1;

impl Mark {
    /// Of an object that nobody else has.
    #[inline]
    pub(super) fn set(&self) {
        assert!(self.0.load(Relaxed) == FREE, "an object is handed out twice");
        self.0.store(IN_USE, Relaxed);
    }

    #[inline]
    pub(super) fn clear(&self) -> Result<(), FreeError> {
        match self.0.swap(FREE, AcqRel) {
            IN_USE => Ok(()),
            _ => Err(FreeError::Free),
        }
    }
}

/// The marks of a slab.
pub(super) enum Used<P: Platform> {
    Bits(Box<[P::Atomic<u64>]>),
    Bytes(Box<[Mark]>),
}

impl<P: Platform> Used<P> {
    /// None of so many objects is in use.
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
            Used::Bits(_) => panic!("objects at hand need a byte each"),
        }
    }

    #[inline]
    pub(super) fn set(&self, index: u16) {
        match self {
            Used::Bits(words) => {
                let bit = 1 << (index % 64);
                let before = words[usize::from(index / 64)].fetch_add(bit, AcqRel);
                assert!(before & bit == 0, "an object is handed out twice");
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
            Used::Bytes(_) => self.byte(index).0.load(Acquire) == IN_USE,
        }
    }

    /// Calls `found` with every object that is in use.
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
