//! A page-table entry: one word with the whole state of a page.
//!
//! ```text
//! 63 . 24 | 23 22  | 21 9 |   8  |   7   |   6   |   5  |    4   |    3    |    2   | 1  0
//! payload | writes | pins | REF. | LARGE | DIRTY | ACC. | MAPPED | WAITERS | LOCKED | kind
//! REF.: REFERENCED. ACC.: ACCESSED. Of a resident page, 63: AHEAD; 62: PROBED
//! ```
//! Kind: Absent (zeros, or the contents of the file), Resident (in a frame), Swapped (in a slot),
//! Poisoned (lost: it could not be read).
//! Payload: a frame, a slot, or the shadow of an absent page.
//!
//! - LOCKED: a thread changes the page. The rest of the word stays as it was, except that pins may
//!   fall and WAITERS may be set.
//! - MAPPED: the program reaches the page without a fault. A resident page without it was unmapped
//!   to see whether it is used.
//! - DIRTY: the page may differ from its slot. While it is clear, the frame's slot, if any, has the
//!   same bytes.
//! - LARGE: of a resident page, part of a large page of 512; of a swapped one, swapped out together
//!   with its neighbours ([`crate::large`]).
//! - AHEAD: read along with another page, and no use of it was seen yet.
//! - REFERENCED: of a file's page, used again after ACCESSED was set; where use is detected by
//!   unmapping, the page was unmapped for that.
//! - PROBED: of an anonymous page, it was unmapped since it was read, to see whether it is used.
//!
//! Writes: writes that are expected, 0 to 3. A store that faults sets it to 3. While it is above 0,
//! a page that is read in for a load may be mapped writable, which uses up one: the store that is
//! expected then does not fault.

use crate::frame::Shadow;
use highwater_units::{Pfn, Slot};

const KIND: u64 = 0b11;
const RESIDENT: u64 = 1;
const SWAPPED: u64 = 2;
const POISONED: u64 = 3;
pub(super) const LOCKED: u64 = 1 << 2;
pub(super) const WAITERS: u64 = 1 << 3;
const MAPPED: u64 = 1 << 4;
pub(super) const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
/// Above the bits of frame numbers.
pub(super) const AHEAD: u64 = 1 << 63;
const PROBED: u64 = 1 << 62;
pub(super) const REFERENCED: u64 = 1 << 8;
pub(super) const PIN: u64 = 1 << 9;
pub(super) const PINS: u64 = 0x1fff << 9;
const WRITES_SHIFT: u32 = 22;
const WRITES: u64 = 0b11 << WRITES_SHIFT;
const PAYLOAD_SHIFT: u32 = 24;

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Never written, or dropped: zeros. A page of a file: on its device.
    Absent,
    /// In a frame.
    Resident(Pfn),
    /// In a slot; its frame may still be in the swap cache.
    Swapped(Slot),
    /// Lost: it could not be read. Accesses fail until it is discarded.
    Poisoned,
}

/// The value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub(super) u64);

impl Entry {
    /// A page of zeros, or one that is on the device of its file.
    pub const ABSENT: Entry = Entry(0);

    /// A page that is lost.
    pub const POISONED: Entry = Entry(POISONED);

    /// A page in a frame, unmapped and clean.
    pub fn resident(pfn: Pfn) -> Entry {
        Entry(u64::from(pfn.0) << PAYLOAD_SHIFT | RESIDENT)
    }

    /// This resident page moved to another frame.
    pub fn moved_to(self, pfn: Pfn) -> Entry {
        debug_assert!(matches!(self.page(), Page::Resident(_)), "only pages in frames are moved");
        let rest = self.0 & (AHEAD | PROBED | ((1 << PAYLOAD_SHIFT) - 1));
        Entry(rest | u64::from(pfn.0) << PAYLOAD_SHIFT)
    }

    /// A page in a slot.
    pub fn swapped(slot: Slot) -> Entry {
        Entry(slot.to_bits() << PAYLOAD_SHIFT | SWAPPED)
    }

    /// An evicted page of a file, with its shadow.
    pub fn evicted(shadow: Shadow) -> Entry {
        Entry(shadow.to_bits() << PAYLOAD_SHIFT)
    }

    /// Sets MAPPED; the page is used.
    pub fn mapped(self) -> Entry {
        Entry(self.0 & !AHEAD | MAPPED)
    }

    /// Sets ACCESSED; the page is used.
    pub fn accessed(self) -> Entry {
        Entry(self.0 & !AHEAD | ACCESSED)
    }

    /// Sets REFERENCED.
    pub fn referenced(self) -> Entry {
        Entry(self.0 | REFERENCED)
    }

    /// Clears MAPPED, ACCESSED and REFERENCED.
    pub fn unmapped(self) -> Entry {
        Entry(self.0 & !(MAPPED | ACCESSED | REFERENCED))
    }

    /// Sets PROBED, of a resident page.
    pub fn probed(self) -> Entry {
        Entry(self.0 | PROBED)
    }

    /// Clears MAPPED and keeps what is known of the use.
    pub fn revoked(self) -> Entry {
        Entry(self.0 & !MAPPED)
    }

    /// Clears DIRTY.
    pub fn clean(self) -> Entry {
        Entry(self.0 & !DIRTY)
    }

    /// Clears ACCESSED.
    pub fn idle(self) -> Entry {
        Entry(self.0 & !ACCESSED)
    }

    /// Sets AHEAD, of a resident page that was not used yet.
    pub fn ahead(self) -> Entry {
        Entry(self.0 & !ACCESSED | AHEAD)
    }

    /// Clears AHEAD.
    pub fn used(self) -> Entry {
        Entry(self.0 & !AHEAD)
    }

    /// Expects three writes, after a store that faulted.
    pub fn expect_writes(self) -> Entry {
        Entry(self.0 | WRITES)
    }

    /// Uses up an expected write; `None` if none is expected.
    pub fn use_expected_write(self) -> Option<Entry> {
        (self.0 & WRITES != 0).then(|| Entry(self.0 - (1 << WRITES_SHIFT)))
    }

    /// This entry with the expected writes of an earlier state of the page.
    pub fn with_writes_of(self, before: Entry) -> Entry {
        Entry(self.0 & !WRITES | before.0 & WRITES)
    }

    /// Sets DIRTY.
    pub fn dirty(self) -> Entry {
        Entry(self.0 | DIRTY)
    }

    /// Sets LARGE.
    pub fn large(self) -> Entry {
        Entry(self.0 | LARGE)
    }

    /// Clears LARGE.
    pub fn small(self) -> Entry {
        Entry(self.0 & !LARGE)
    }

    /// Whether the page is part of a large page, or was swapped out as such.
    pub fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }

    /// Whether the page is in memory as part of a large page.
    pub fn is_large_resident(self) -> bool {
        self.is_large() && self.0 & KIND == RESIDENT
    }

    /// The state of the page.
    pub fn page(self) -> Page {
        match self.0 & KIND {
            RESIDENT => Page::Resident(Pfn((self.0 >> PAYLOAD_SHIFT) as u32)),
            SWAPPED => Page::Swapped(Slot::from_bits(self.0 >> PAYLOAD_SHIFT)),
            POISONED => Page::Poisoned,
            _ => Page::Absent,
        }
    }

    /// Whether a thread holds the entry.
    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// Whether the program reaches the page without a fault.
    pub fn is_mapped(self) -> bool {
        self.0 & MAPPED != 0
    }

    /// Whether the page was used since the bit was cleared.
    pub fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// Whether the page was read along with another one and no use of it was seen.
    pub fn is_ahead(self) -> bool {
        self.0 & KIND == RESIDENT && self.0 & AHEAD != 0
    }

    /// Whether REFERENCED is set.
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// Whether PROBED is set.
    pub fn is_probed(self) -> bool {
        self.0 & KIND == RESIDENT && self.0 & PROBED != 0
    }

    /// The shadow of an absent page, if it has one.
    pub fn shadow(self) -> Option<Shadow> {
        let absent = self.page() == Page::Absent;
        absent.then(|| Shadow::from_bits(self.0 >> PAYLOAD_SHIFT)).flatten()
    }

    /// Whether the page may differ from its slot.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Guards that pin the page.
    pub fn pins(self) -> u64 {
        (self.0 & PINS) / PIN
    }

    /// The entry without LOCKED, WAITERS and pins.
    pub(super) fn settled(self) -> Entry {
        Entry(self.0 & !(LOCKED | WAITERS | PINS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::History;
    use highwater_units::NodeId;

    #[test]
    fn a_store_that_faults_lets_three_writes_be_expected() {
        let mut entry = Entry::resident(Pfn(u32::MAX)).mapped().expect_writes();
        for _ in 0..3 {
            entry = entry.use_expected_write().expect("stored to");
            let swapped = Entry::swapped(Slot { device: 255, index: 7 }).with_writes_of(entry);
            assert_eq!(swapped.page(), Page::Swapped(Slot { device: 255, index: 7 }));
            entry = Entry::resident(Pfn(1)).with_writes_of(swapped);
        }
        assert_eq!(entry.use_expected_write(), None);
        assert_eq!(entry, Entry::resident(Pfn(1)));
    }

    #[test]
    fn payloads_do_not_meet_the_flags() {
        let slot = Slot { device: 255, index: u32::MAX };
        let pfn = Pfn(u32::MAX);
        assert_eq!(Entry::swapped(slot).page(), Page::Swapped(slot));
        let marked =
            Entry::resident(pfn).mapped().accessed().referenced().dirty().large().expect_writes();
        let full = Entry(marked.0 | LOCKED | WAITERS | PINS);
        assert_eq!(full.page(), Page::Resident(pfn));
        assert_eq!(full.pins(), 0x1fff);
        assert_eq!(full.settled(), marked);
        assert!(full.is_large_resident() && !full.small().is_large());
        let ahead = Entry(marked.0 | AHEAD | PROBED);
        assert_eq!(ahead.moved_to(Pfn(7)).page(), Page::Resident(Pfn(7)));
        assert_eq!(ahead.moved_to(Pfn(7)).moved_to(pfn), ahead);
        let shadow = Shadow::new(NodeId(255), u64::MAX, History::Active);
        let evicted = Entry::evicted(shadow);
        assert_eq!((evicted.page(), evicted.shadow()), (Page::Absent, Some(shadow)));
        assert_eq!((Entry::ABSENT.shadow(), full.shadow()), (None, None));
        assert_eq!(Entry::ABSENT.page(), Page::Absent);
        let poisoned = Entry(Entry::POISONED.0 | LOCKED | WAITERS).settled();
        assert_eq!((poisoned.page(), poisoned.shadow()), (Page::Poisoned, None));
        assert!(!poisoned.is_mapped() && !poisoned.is_dirty() && poisoned != Entry::ABSENT);
    }
}
