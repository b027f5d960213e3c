//! The fate of a page at the end of an inactive list.

use crate::lru::Kind;
use crate::space::Entry;
use highwater_platform::Recency;

/// The outcome of the scan for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was used since it was probed: to the active list.
    Activate,
    /// It was not probed yet: unmapped, and once more round the inactive list.
    Probe,
    /// Its slot or file has the same bytes: the frame is free at once.
    Drop,
    /// It is written first.
    Write,
}

/// Decides. `recency` says what the entry of a used page looks like: where pages are probed by
/// unmapping them, the entry is mapped again. A file's page, and an anonymous one that was read
/// from swap, may come to the inactive list without a probe; with an accessed bit, the second use
/// of a file's page activates it. `has_copy`: its slot or file has the bytes that it had when it
/// was clean.
pub(super) fn decide(kind: Kind, entry: Entry, has_copy: bool, recency: Recency) -> Fate {
    let (used, probed) = match (recency, kind) {
        (Recency::AccessedBit, Kind::Anon) => (entry.is_accessed(), true),
        (Recency::AccessedBit, Kind::File) => (entry.is_referenced(), true),
        (Recency::Unmapping, Kind::Anon) => (entry.is_mapped(), entry.is_probed()),
        (Recency::Unmapping, Kind::File) => (entry.is_mapped(), entry.is_referenced()),
    };
    match (used, probed, has_copy && !entry.is_dirty()) {
        (true, true, _) => Fate::Activate,
        (true, false, _) => Fate::Probe,
        (false, _, true) => Fate::Drop,
        (false, _, false) => Fate::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Pfn;

    #[track_caller]
    fn assert_fate(kind: Kind, recency: Recency, entry: Entry, has_copy: bool, fate: Fate) {
        assert_eq!(decide(kind, entry, has_copy, recency), fate, "{kind:?} {entry:?} {recency:?}");
    }

    #[test]
    fn anonymous_pages_stay_if_used_and_are_written_unless_the_slot_is_current() {
        let idle = Entry::resident(Pfn(1));
        let used = idle.mapped().accessed();
        let table = [
            (idle, true, Fate::Drop),
            (idle.dirty(), true, Fate::Write),
            (idle, false, Fate::Write),
            (used, true, Fate::Activate),
            (used.dirty(), false, Fate::Activate),
        ];
        for (entry, has_slot, fate) in table {
            assert_fate(Kind::Anon, Recency::AccessedBit, entry, has_slot, fate);
            assert_fate(Kind::Anon, Recency::Unmapping, entry.probed(), has_slot, fate);
        }
        assert_fate(Kind::Anon, Recency::Unmapping, used, true, Fate::Probe);
        assert_fate(Kind::Anon, Recency::Unmapping, idle, true, Fate::Drop);
    }

    #[test]
    fn files_pages_stay_if_used_twice() {
        use Recency::{AccessedBit, Unmapping};
        let (idle, mapped) = (Entry::resident(Pfn(1)), Entry::resident(Pfn(1)).mapped());
        let table = [
            (AccessedBit, mapped, Fate::Drop),
            (AccessedBit, mapped.accessed(), Fate::Drop),
            (AccessedBit, mapped.accessed().dirty(), Fate::Write),
            (AccessedBit, mapped.accessed().referenced(), Fate::Activate),
            (Unmapping, mapped, Fate::Probe),
            (Unmapping, mapped.dirty(), Fate::Probe),
            (Unmapping, mapped.referenced(), Fate::Activate),
            (Unmapping, idle.referenced(), Fate::Drop),
            (Unmapping, idle.dirty(), Fate::Write),
        ];
        for (recency, entry, fate) in table {
            assert_fate(Kind::File, recency, entry, true, fate);
        }
    }
}
