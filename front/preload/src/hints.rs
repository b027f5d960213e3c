//! Hints of mmap that were not followed, and addresses outside the range that a program asks for:
//! whether it insists on them.

use crate::units::PAGED_MIN;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// A hint below this address asks for small pointers (Java's), which programs can do without.
const INSISTED_MIN: usize = 1 << 40;
/// The shortest reservation that a program may have elsewhere.
const RESERVED_MIN: usize = 16 << 20;
/// How often reservations are refused. Java asks for fewer places.
const REFUSALS_MAX: u32 = 256;
/// The last mapping whose hint was not followed.
#[derive(Default)]
pub(crate) struct Hints {
    /// Its address, ...
    elsewhere: AtomicU64,
    /// ... and its length.
    len: AtomicU64,
    insists: AtomicBool,
    refusals: AtomicU32,
}

impl Hints {
    pub(crate) fn turned_down(&self, address: usize, len: usize) {
        self.elsewhere.store(address as u64, Relaxed);
        self.len.store(len as u64, Relaxed);
    }

    /// Notes that the program unmaps a mapping. A program that has not used it wanted its hint.
    pub(crate) fn note_unmapped(&self, address: usize, len: usize, is_used: impl FnOnce() -> bool) {
        let found = [self.elsewhere.load(Relaxed), self.len.load(Relaxed)];
        if found == [address as u64, len as u64] && !is_used() {
            self.insists.store(true, Relaxed);
        }
    }

    /// Whether a reservation at a fixed low address is refused, as if something lay there: a
    /// program that asks for other addresses, and at last for any (Java's heap), gets paged memory.
    /// A program that keeps trying cannot do without such an address.
    pub(crate) fn are_refused(&self, address: usize, len: usize) -> bool {
        let is_wish = address < INSISTED_MIN && len >= RESERVED_MIN;
        is_wish && self.refusals.fetch_add(1, Relaxed) < REFUSALS_MAX
    }

    /// Whether a mapping goes to its hint, unpaged.
    pub(crate) fn are_followed(&self, hint: usize, len: usize) -> bool {
        len < PAGED_MIN || hint >= INSISTED_MIN && self.insists.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::PAGE_SIZE;

    #[test]
    fn a_program_insists_once_it_gives_back_what_it_got_elsewhere() {
        let (hints, large) = (Hints::default(), PAGED_MIN);
        assert!(hints.are_followed(PAGE_SIZE, PAGED_MIN - 1), "small ones always");
        assert!(!hints.are_followed(INSISTED_MIN, large));
        hints.turned_down(0x1000, large);
        hints.note_unmapped(0x2000, large, || false);
        hints.note_unmapped(0x1000, large - 1, || false);
        assert!(!hints.are_followed(INSISTED_MIN, large), "another mapping, or a part");
        hints.note_unmapped(0x1000, large, || true);
        assert!(
            !hints.are_followed(INSISTED_MIN, large),
            "it was used, and is not needed any more"
        );
        hints.note_unmapped(0x1000, large, || false);
        assert!(hints.are_followed(INSISTED_MIN, large));
        assert!(!hints.are_followed(INSISTED_MIN - 1, large), "a low address is a wish");
    }

    #[test]
    fn low_places_for_reservations_are_taken_until_a_program_tries_on() {
        let hints = Hints::default();
        assert!(!hints.are_refused(INSISTED_MIN, RESERVED_MIN));
        assert!(!hints.are_refused(PAGE_SIZE, RESERVED_MIN - 1));
        assert!((0..REFUSALS_MAX).all(|_| hints.are_refused(PAGE_SIZE, RESERVED_MIN)));
        assert!(!hints.are_refused(PAGE_SIZE, RESERVED_MIN));
    }
}
