//! Hints of mmap that were not followed, and whether the program insists on them.

use crate::units::PAGED_MIN;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// A hint below this address asks for small pointers (Java's), which programs can do without.
const INSISTED_MIN: usize = 1 << 40;
/// The last mapping whose hint was not followed.
#[derive(Default)]
pub(crate) struct Hints {
    /// Its address, ...
    elsewhere: AtomicU64,
    /// ... and its length.
    len: AtomicU64,
    insists: AtomicBool,
}

impl Hints {
    pub(crate) fn turned_down(&self, address: usize, len: usize) {
        self.elsewhere.store(address as u64, Relaxed);
        self.len.store(len as u64, Relaxed);
    }

    /// Notes that the program unmaps a mapping.
    pub(crate) fn note_unmapped(&self, address: usize, len: usize) {
        let found = [self.elsewhere.load(Relaxed), self.len.load(Relaxed)];
        if found == [address as u64, len as u64] {
            self.insists.store(true, Relaxed);
        }
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
        hints.note_unmapped(0x2000, large);
        hints.note_unmapped(0x1000, large - 1);
        assert!(!hints.are_followed(INSISTED_MIN, large), "another mapping, or a part");
        hints.note_unmapped(0x1000, large);
        assert!(hints.are_followed(INSISTED_MIN, large));
        assert!(!hints.are_followed(INSISTED_MIN - 1, large), "a low address is a wish");
    }
}
