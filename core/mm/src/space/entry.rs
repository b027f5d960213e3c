//! A page-table entry: one word says everything about a page.
//!
//! ```text
//! 63 .... 24 | 23 . 9 |     8      |   7   |   6   |    5     |   4    |    3    |   2    | 1  0
//!   payload  |  pins  | REFERENCED | LARGE | DIRTY | ACCESSED | MAPPED | WAITERS | LOCKED | kind
//! 63: AHEAD, of a resident page
//! ```
//! Kind: Absent (reads as zeros; in a file's space: as the file), Resident (in a frame), Swapped
//! (in a slot). LOCKED is DESIGN's `Moving`: one thread is changing the page; what it was stays
//! readable. Only pins may fall and WAITERS may rise while it is set. MAPPED: the program reaches
//! the page without the manager; a Resident page that is not is in memory, unmapped to see whether
//! it is used. DIRTY: it may differ from its slot; while it is clear, the frame's slot (if any)
//! holds the same bytes. LARGE: part of a block of 512 pages that came, and goes, whole
//! ([`crate::large`]); of a swapped page it only says that its neighbours were swapped with it.
//! AHEAD: it was read along with another page, and no use of it was seen yet.
//! REFERENCED, of a file's page: it was used again after ACCESSED was set; or, where unmapping
//! asks, it was asked. The payload is a frame, a slot, or a shadow of an absent page.

use crate::frame::Shadow;
use highwater_units::{Pfn, Slot};

const KIND: u64 = 0b11;
const RESIDENT: u64 = 1;
const SWAPPED: u64 = 2;
pub(super) const LOCKED: u64 = 1 << 2;
pub(super) const WAITERS: u64 = 1 << 3;
const MAPPED: u64 = 1 << 4;
pub(super) const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
/// Frame numbers leave it free.
pub(super) const AHEAD: u64 = 1 << 63;
pub(super) const REFERENCED: u64 = 1 << 8;
pub(super) const PIN: u64 = 1 << 9;
pub(super) const PINS: u64 = 0x7fff << 9;
const PAYLOAD_SHIFT: u32 = 24;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Never written, or dropped: zeros. Of a file: on its device.
    Absent,
    /// In a frame.
    Resident(Pfn),
    /// On a device, and possibly still in the swap cache.
    Swapped(Slot),
}

/// The value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub(super) u64);

impl Entry {
    /// A page that reads as zeros, or as its file.
    pub const ABSENT: Entry = Entry(0);

    /// A page in a frame, not mapped, equal to its slot.
    pub fn resident(pfn: Pfn) -> Entry {
        Entry(u64::from(pfn.0) << PAYLOAD_SHIFT | RESIDENT)
    }

    /// The same resident page in another frame; all that is known of it stays.
    pub fn moved_to(self, pfn: Pfn) -> Entry {
        debug_assert!(matches!(self.page(), Page::Resident(_)), "only pages in frames are moved");
        let rest = self.0 & (AHEAD | ((1 << PAYLOAD_SHIFT) - 1));
        Entry(rest | u64::from(pfn.0) << PAYLOAD_SHIFT)
    }

    /// A page in a slot.
    pub fn swapped(slot: Slot) -> Entry {
        Entry(slot.to_bits() << PAYLOAD_SHIFT | SWAPPED)
    }

    /// A page of a file that was evicted, and when.
    pub fn evicted(shadow: Shadow) -> Entry {
        Entry(shadow.to_bits() << PAYLOAD_SHIFT)
    }

    /// The same, mapped.
    pub fn mapped(self) -> Entry {
        Entry(self.0 & !AHEAD | MAPPED)
    }

    /// The same, accessed.
    pub fn accessed(self) -> Entry {
        Entry(self.0 & !AHEAD | ACCESSED)
    }

    /// The same, used again, or asked whether it is.
    pub fn referenced(self) -> Entry {
        Entry(self.0 | REFERENCED)
    }

    /// The same, no longer mapped nor accessed.
    pub fn unmapped(self) -> Entry {
        Entry(self.0 & !(MAPPED | ACCESSED | REFERENCED))
    }

    /// The same, no longer mapped; what is known of its use stays.
    pub fn revoked(self) -> Entry {
        Entry(self.0 & !MAPPED)
    }

    /// The same, equal to its place.
    pub fn clean(self) -> Entry {
        Entry(self.0 & !DIRTY)
    }

    /// The same, not accessed since now.
    pub fn idle(self) -> Entry {
        Entry(self.0 & !ACCESSED)
    }

    /// The same resident page, read along with another one and not used yet.
    pub fn ahead(self) -> Entry {
        Entry(self.0 & !ACCESSED | AHEAD)
    }

    /// The same, possibly different from its slot.
    pub fn dirty(self) -> Entry {
        Entry(self.0 | DIRTY)
    }

    /// The same, part of a large page.
    pub fn large(self) -> Entry {
        Entry(self.0 | LARGE)
    }

    /// The same, a page of its own.
    pub fn small(self) -> Entry {
        Entry(self.0 & !LARGE)
    }

    /// Whether it is part of a large page, or was swapped out as such.
    pub fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }

    /// Whether it is in memory as part of a large page.
    pub fn is_large_resident(self) -> bool {
        self.is_large() && self.0 & KIND == RESIDENT
    }

    /// What the page is.
    pub fn page(self) -> Page {
        match self.0 & KIND {
            RESIDENT => Page::Resident(Pfn((self.0 >> PAYLOAD_SHIFT) as u32)),
            SWAPPED => Page::Swapped(Slot::from_bits(self.0 >> PAYLOAD_SHIFT)),
            _ => Page::Absent,
        }
    }

    /// Whether a thread is changing the page.
    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// Whether the program reaches the page without a fault.
    pub fn is_mapped(self) -> bool {
        self.0 & MAPPED != 0
    }

    /// Whether it was used since that was last asked.
    pub fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// Whether it was read along with another page, and no use of it was seen.
    pub fn is_ahead(self) -> bool {
        self.0 & KIND == RESIDENT && self.0 & AHEAD != 0
    }

    /// Whether it was used again, or asked whether it is.
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// When an absent page was evicted, if that is known.
    pub fn shadow(self) -> Option<Shadow> {
        let absent = self.page() == Page::Absent;
        absent.then(|| Shadow::from_bits(self.0 >> PAYLOAD_SHIFT)).flatten()
    }

    /// Whether it may differ from its slot.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Guards that hold the page in place.
    pub fn pins(self) -> u64 {
        (self.0 & PINS) / PIN
    }

    /// Without the bits that belong to waiting and locking.
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
    fn payloads_do_not_meet_the_flags() {
        let slot = Slot { device: 255, index: u32::MAX };
        let pfn = Pfn(u32::MAX);
        assert_eq!(Entry::swapped(slot).page(), Page::Swapped(slot));
        let marked = Entry::resident(pfn).mapped().accessed().referenced().dirty().large();
        let full = Entry(marked.0 | LOCKED | WAITERS | PINS);
        assert_eq!(full.page(), Page::Resident(pfn));
        assert_eq!(full.pins(), 0x7fff);
        assert_eq!(full.settled(), marked);
        assert!(full.is_large_resident() && !full.small().is_large());
        let ahead = Entry(marked.0 | AHEAD);
        assert_eq!(ahead.moved_to(Pfn(7)).page(), Page::Resident(Pfn(7)));
        assert_eq!(ahead.moved_to(Pfn(7)).moved_to(pfn), ahead);
        let shadow = Shadow::new(NodeId(255), u64::MAX, History::Active);
        let evicted = Entry::evicted(shadow);
        assert_eq!((evicted.page(), evicted.shadow()), (Page::Absent, Some(shadow)));
        assert_eq!((Entry::ABSENT.shadow(), full.shadow()), (None, None));
        assert_eq!(Entry::ABSENT.page(), Page::Absent);
    }
}
