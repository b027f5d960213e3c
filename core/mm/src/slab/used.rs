//! Which objects of a slab are in use.
//!
//! ```text
//! Bits   one exchange when an object is handed out, one when it comes back
//! Bytes  free ──reserve──> at hand ──hand_out──> in use        a store each
//!         ^──────put──────/   ^──────take_back─────/           an exchange; a store
//! ```
//! Nobody else looks at an object that is about to be handed out, so a byte of its own may be set
//! by a plain store. To free it for good takes an exchange either way: of two who do so at once,
//! one is told. To take it back to have it at hand takes a load and a store, since an exchange
//! waits until all stores before it are done: those of a program to its objects, a cache miss each.
//! Two who take an object back within those few ns both succeed; whoever is the second to hand it
//! out, or to return it, is told then.

use crate::error::FreeError;
use highwater_platform::{Atomic, Platform};
use std::sync::atomic::{AtomicU8, Ordering::*};

/// How it is noted that objects are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// By a bit each.
    Bits,
    /// By a byte each: faster, and needed for [`super::Slabs::reserve`], whose callers keep objects
    /// so that slabs keep few.
    Bytes,
}

/// Whether an object is in use.
#[derive(Debug)]
pub(super) struct Mark(AtomicU8);

const FREE: u8 = 0;
const IN_USE: u8 = 1;
const AT_HAND: u8 = 2;

impl Mark {
    /// Of an object that nobody else has.
    #[inline]
    pub(super) fn set(&self) {
        assert!(self.0.load(Relaxed) == FREE, "an object is handed out twice");
        self.0.store(IN_USE, Relaxed);
    }

    #[inline]
    pub(super) fn clear(&self) -> Result<(), FreeError> {
        self.exchange(IN_USE)
    }

    /// Of an object that a slab has just given.
    pub(super) fn reserve(&self) {
        assert!(self.0.load(Relaxed) == FREE, "an object is at hand twice");
        self.0.store(AT_HAND, Relaxed);
    }

    #[inline]
    pub(super) fn hand_out(&self) -> Result<(), FreeError> {
        self.step(AT_HAND, IN_USE)
    }

    #[inline]
    pub(super) fn take_back(&self) -> Result<(), FreeError> {
        self.step(IN_USE, AT_HAND)
    }

    /// Of an object that its slab gets back.
    pub(super) fn put(&self) -> Result<(), FreeError> {
        self.exchange(AT_HAND)
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

    /// How many of the first `objects` are in use, and at hand.
    pub(super) fn count(&self, objects: u16) -> (u64, u64) {
        match self {
            Used::Bits(words) => {
                (words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum(), 0)
            }
            Used::Bytes(bytes) => {
                let states = bytes[..usize::from(objects)].iter().map(|byte| byte.0.load(Relaxed));
                states.fold((0, 0), |(used, at_hand), state| {
                    (used + u64::from(state == IN_USE), at_hand + u64::from(state == AT_HAND))
                })
            }
        }
    }

    /// Calls `found` with every object that is at hand.
    pub(super) fn each_at_hand(&self, found: impl FnMut(u16)) {
        if let Used::Bytes(bytes) = self {
            let at_hand = |index: &u16| bytes[usize::from(*index)].0.load(Acquire) == AT_HAND;
            (0..bytes.len() as u16).filter(at_hand).for_each(found);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_tells_where_an_object_is() {
        let mark = Mark(AtomicU8::new(FREE));
        let wrong = Err(FreeError::Free);
        assert_eq!([mark.hand_out(), mark.take_back(), mark.put(), mark.clear()], [wrong; 4]);
        mark.reserve();
        assert_eq!([mark.take_back(), mark.clear()], [wrong; 2], "at hand");
        assert_eq!(mark.hand_out(), Ok(()));
        assert_eq!([mark.hand_out(), mark.put()], [wrong; 2], "in use");
        assert_eq!(mark.take_back(), Ok(()));
        assert_eq!(mark.take_back(), wrong, "taken back twice");
        assert_eq!(mark.put(), Ok(()));
        assert_eq!(mark.put(), wrong, "returned twice");
        mark.set();
        assert_eq!((mark.clear(), mark.clear()), (Ok(()), wrong));
    }
}
