//! Whether the pages of a block are worth to be one large page: looks, and decides.
//!
//! ```text
//! 512 entries -- Survey::note --> absent, swapped, in use, large, barred -- judge(Limits): Verdict
//! ```
//! Entries are only looked at; they can change at once. Who acts judges them again, held.

use crate::config::{KhugepagedConfig, MAX_PTES};
use crate::space::{Entry, Page, Space};
use highwater_platform::{Platform, Recency};
use highwater_units::{LARGE_PAGES, Vpn};

/// What a block may be like to be collapsed, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Most that are absent.
    none: u32,
    /// Most that are swapped.
    swap: u32,
    /// Least that are in use.
    referenced: u32,
}

impl Limits {
    /// Where somebody asks for the block: anything but a block without contents (MADV_COLLAPSE).
    pub(super) const ASKED: Limits = Limits { none: MAX_PTES, swap: LARGE, referenced: 0 };

    /// Where khugepaged comes by itself. A page that is absent in a page table may belong to
    /// nothing, and an access there is to fail: it is left so.
    pub(super) fn of(config: &KhugepagedConfig, recency: Recency) -> Limits {
        Limits {
            none: match recency {
                Recency::AccessedBit => config.max_ptes_none,
                Recency::Unmapping => 0,
            },
            swap: config.max_ptes_swap,
            referenced: config.referenced_min,
        }
    }
}

/// What is in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    none: u32,
    swap: u32,
    /// In memory, and used since that was last asked.
    referenced: u32,
    /// In memory as part of a large page.
    large: u32,
    /// Held by guards, or by a thread that changes them.
    barred: u32,
}

impl Survey {
    /// Notes an entry.
    pub(super) fn note(&mut self, entry: Entry, recency: Recency) {
        let used = match recency {
            Recency::AccessedBit => entry.is_accessed(),
            Recency::Unmapping => entry.is_mapped(),
        };
        match entry.page() {
            Page::Absent => self.none += 1,
            Page::Swapped(_) => self.swap += 1,
            Page::Resident(_) => {
                self.referenced += u32::from(used);
                self.large += u32::from(entry.is_large());
            }
        }
        self.barred += u32::from(entry.is_locked() || entry.pins() > 0);
    }
}

/// Pages of a block.
const LARGE: u32 = LARGE_PAGES as u32;

/// What to do with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its pages are to be one.
    Collapse,
    /// They are, and in use.
    Large,
    /// Somebody is at one of them.
    Busy,
    /// Too many are absent.
    ExceedNone,
    /// Too many are swapped.
    ExceedSwap,
    /// Too few are in use.
    Cold,
}

/// Decides.
pub(super) fn judge(survey: &Survey, limits: &Limits) -> Verdict {
    match survey {
        Survey { large: LARGE, referenced, .. } if *referenced >= limits.referenced => {
            Verdict::Large
        }
        Survey { large: LARGE, .. } => Verdict::Cold,
        // It is coming apart just now.
        Survey { large: 1.., .. } => Verdict::Busy,
        Survey { none, .. } if *none > limits.none => Verdict::ExceedNone,
        Survey { swap, .. } if *swap > limits.swap => Verdict::ExceedSwap,
        Survey { referenced, .. } if *referenced < limits.referenced => Verdict::Cold,
        Survey { barred: 1.., .. } => Verdict::Busy,
        _ => Verdict::Collapse,
    }
}

/// Looks at the block that starts at `first`, until it is known that it is left as it is.
pub(super) fn look<P: Platform>(
    space: &Space<P>,
    first: Vpn,
    limits: &Limits,
    recency: Recency,
) -> Verdict {
    let mut survey = Survey::default();
    for index in 0..LARGE_PAGES {
        survey.note(space.entry(first.offset(index as u64)), recency);
        let exceeds = survey.none > limits.none || survey.swap > limits.swap;
        let mixed = survey.large > 0 && survey.large <= index as u32;
        if exceeds || mixed {
            break;
        }
    }
    judge(&survey, limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::{Pfn, Slot};

    const LIMITS: Limits = Limits { none: 4, swap: 8, referenced: 400 };

    fn survey(none: u32, swap: u32, referenced: u32) -> Survey {
        Survey { none, swap, referenced, ..Survey::default() }
    }

    #[test]
    fn a_block_is_collapsed_within_all_limits() {
        let table = [
            (survey(0, 0, 512), Verdict::Collapse),
            (survey(4, 8, 400), Verdict::Collapse),
            (survey(5, 0, 507), Verdict::ExceedNone),
            (survey(4, 9, 499), Verdict::ExceedSwap),
            (survey(0, 0, 399), Verdict::Cold),
            (Survey { barred: 1, ..survey(0, 0, 512) }, Verdict::Busy),
            (Survey { barred: 1, ..survey(0, 0, 0) }, Verdict::Cold),
            (Survey { large: 512, ..survey(0, 0, 512) }, Verdict::Large),
            (Survey { large: 512, ..survey(0, 0, 399) }, Verdict::Cold),
            (Survey { large: 511, ..survey(5, 0, 512) }, Verdict::Busy),
        ];
        for (survey, verdict) in table {
            assert_eq!(judge(&survey, &LIMITS), verdict, "{survey:?}");
        }
    }

    #[test]
    fn who_asks_gets_any_block_with_contents() {
        let verdicts = [survey(511, 0, 0), survey(0, 512, 0), survey(512, 0, 0)]
            .map(|survey| judge(&survey, &Limits::ASKED));
        assert_eq!(verdicts, [Verdict::Collapse, Verdict::Collapse, Verdict::ExceedNone]);
    }

    #[test]
    fn entries_count_as_what_they_are() {
        let page = Entry::resident(Pfn(3));
        let slot = Entry::swapped(Slot { device: 0, index: 7 });
        let entries =
            [Entry::ABSENT, slot, slot.large(), page, page.mapped(), page.mapped().accessed()];
        let of = |recency| {
            let mut survey = Survey::default();
            entries.iter().for_each(|entry| survey.note(*entry, recency));
            survey
        };
        assert_eq!(of(Recency::AccessedBit), survey(1, 2, 1));
        assert_eq!(of(Recency::Unmapping), survey(1, 2, 2));
        let mut large = Survey::default();
        large.note(page.large(), Recency::AccessedBit);
        assert_eq!(large, Survey { large: 1, ..Survey::default() });
    }

    #[test]
    fn page_tables_say_nothing_of_absent_pages() {
        let config = KhugepagedConfig::default();
        let of = |recency| Limits::of(&config, recency);
        assert_eq!(of(Recency::AccessedBit), Limits { none: 64, swap: 64, referenced: 448 });
        assert_eq!(of(Recency::Unmapping).none, 0);
    }
}
